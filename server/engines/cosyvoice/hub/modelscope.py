"""A model on ModelScope, by its HTTP interface: a list of files with SHA-256, and ranges of each file."""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode

from server.engines.cosyvoice.hub.ranged import fetch_ranged, open_url, reason_of
from server.engines.cosyvoice.hub.remote import (
    HubError,
    Listing,
    RemoteFile,
    no_hub,
    no_such_model,
    odd_answer,
    unreachable,
)

ENDPOINT: Final = "https://modelscope.cn"
_VARIABLE: Final = "MODELSCOPE_ENDPOINT"
_GONE: Final = (404, 410)
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
        given = environment.get(_VARIABLE, "").strip().rstrip("/")
        self.where = given or (f"https://{domain}" if domain else ENDPOINT)

    def listing(self) -> Listing:
        """See `Remote`."""
        try:
            with open_url(self._url("/files", Recursive="true"), _HEADERS) as response:
                answer = json.loads(response.read(_LIST_BYTES))
            files = [_file(each) for each in answer["Data"]["Files"] if each["Type"] != "tree"]
        except HTTPError as error:
            with error:
                # What it has no model of is told in JSON; other servers have pages for it.
                told = "json" in error.headers.get("Content-Type", "") or error.code not in _GONE
                odd = odd_answer(self._name, self.where, error.code, _VARIABLE)
                raise (self._refusal(error.code) if told else None) or odd from error
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self._name, self.where, reason_of(error)) from error
        except (ValueError, KeyError, TypeError) as error:
            raise no_hub(self._name, self.where, "ModelScope", _VARIABLE) from error
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
        return no_such_model(self._name, self._asked, self.where) if status in _GONE else None


def _file(told: Mapping[str, Any]) -> RemoteFile:
    return RemoteFile(str(told["Path"]), int(told["Size"]), str(told.get("Sha256") or ""))
