"""A model on ModelScope, by its HTTP interface: a list of files with SHA-256, and ranges of each file."""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode

from server.engines.cosyvoice.hub.ranged import fetch_ranged, open_url, reason_of
from server.engines.cosyvoice.hub.remote import HubError, Listing, RemoteFile, no_such_model, unreachable
from server.engines.cosyvoice.sections import one_line

ENDPOINT: Final = "https://modelscope.cn"
DEFAULT_REVISION: Final = "master"
_OTHER_NAMES: Final = {"FunAudioLLM/CosyVoice2-0.5B": "iic/CosyVoice2-0.5B"}  # what Hugging Face calls so
_HEADERS: Final = {"User-Agent": "cosystream"}
_LIST_BYTES: Final = 16 << 20  # of an answer that is a list


class ModelScope:
    """See `Remote`."""

    def __init__(self, name: str, revision: str, environment: Mapping[str, str]) -> None:
        self._name = _OTHER_NAMES.get(name, name)
        self._asked = revision
        self._revision = revision or DEFAULT_REVISION
        domain = environment.get("MODELSCOPE_DOMAIN", "").strip()
        given = environment.get("MODELSCOPE_ENDPOINT", "").strip().rstrip("/")
        self.where = given or (f"https://{domain}" if domain else ENDPOINT)

    def listing(self) -> Listing:
        """See `Remote`."""
        try:
            with open_url(self._url("/files", Recursive="true"), _HEADERS) as response:
                answer = json.loads(response.read(_LIST_BYTES))
            files = [_file(each) for each in answer["Data"]["Files"] if each["Type"] != "tree"]
        except HTTPError as error:
            with error:
                raise self._refusal(error.code) or unreachable(self.where, f"HTTP status {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.where, reason_of(error)) from error
        except (ValueError, KeyError, TypeError) as error:
            raise HubError(f"{self.where} does not answer as ModelScope does: {one_line(error)}") from error
        return Listing(self._revision, {file.path: file for file in files})

    def fetch(self, file: RemoteFile, into: Path, *, afresh: bool) -> None:
        """See `Remote`."""
        fetch_ranged(self._url("", FilePath=file.path), _HEADERS, file, into, self._refusal, afresh=afresh)

    def _url(self, place: str, **query: str) -> str:
        asked = urlencode({"Revision": self._revision, **query})
        return f"{self.where}/api/v1/models/{self._name}/repo{place}?{asked}"

    def _refusal(self, status: int) -> HubError | None:
        if status in (401, 403):
            return HubError(
                f"{self.where} asks for a login before it gives {self._name}: fetch it by hand, and give the folder"
            )
        return no_such_model(self._name, self._asked, self.where) if status in (404, 410) else None


def _file(told: Mapping[str, Any]) -> RemoteFile:
    return RemoteFile(str(told["Path"]), int(told["Size"]), str(told.get("Sha256") or ""))
