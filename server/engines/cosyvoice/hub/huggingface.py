"""A model on Hugging Face, or on a mirror that HF_ENDPOINT names.

Names, tokens and lists of files are `huggingface_hub`'s. The files are not fetched by it: what it has of one when its
process ends is fetched again from the beginning, and these have up to two gigabytes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils._headers import build_hf_headers

from server.engines.cosyvoice.hub.ranged import fetch_ranged
from server.engines.cosyvoice.hub.remote import (
    TIMEOUT_S,
    HubError,
    Listing,
    RemoteFile,
    no_hub,
    no_such_model,
    odd_answer,
    unreachable,
)
from server.engines.cosyvoice.sections import one_line

ENDPOINT: Final = "https://huggingface.co"
_VARIABLE: Final = "HF_ENDPOINT"
# Also those of whatever it speaks HTTP with, which changed from release to release: its own error is derived of them.
_ERRORS: Final[tuple[type[Exception], ...]] = (
    OSError,
    ValueError,
    LookupError,  # it and the next one: of an answer that is something else
    TypeError,
    *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)),
)


class HuggingFace:
    """See `Remote`."""

    def __init__(self, name: str, revision: str, environment: Mapping[str, str]) -> None:
        self._name, self._revision = name, revision
        self.where = environment.get(_VARIABLE, "").strip().rstrip("/") or ENDPOINT
        self._commit = revision

    def listing(self) -> Listing:
        """See `Remote`."""
        api = HfApi(endpoint=self.where, library_name="cosystream")
        try:
            found = api.model_info(self._name, revision=self._revision or None, files_metadata=True, timeout=TIMEOUT_S)
        except _ERRORS as error:
            raise self._told(error) from error
        self._commit = found.sha or self._revision or "main"
        files = {}
        for each in found.siblings or ():
            digest = each.lfs.sha256 if each.lfs is not None else ""
            sha1 = "" if digest else each.blob_id or ""
            files[each.rfilename] = RemoteFile(each.rfilename, each.size or 0, digest, sha1)
        return Listing(self._commit, files)

    def fetch(self, file: RemoteFile, into: Path, *, afresh: bool) -> None:
        """See `Remote`."""
        url = hf_hub_url(self._name, file.path, revision=self._commit, endpoint=self.where)
        headers = build_hf_headers(library_name="cosystream")
        fetch_ranged(url, headers, file, into, self._refusal, afresh=afresh)

    def _told(self, error: Exception) -> HubError:
        if isinstance(error, GatedRepoError):
            return self._gated()
        status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
        if status in (401, 403):  # which is also the answer for what nobody may know of
            return HubError(
                f"{self.where} does not give out {self._name}: look at its name, or set HF_TOKEN where it is private"
            )
        if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
            return no_such_model(self._name, self._revision, self.where)
        if status:
            return odd_answer(self._name, self.where, status, _VARIABLE)
        if isinstance(error, json.JSONDecodeError | LookupError | TypeError):
            return no_hub(self._name, self.where, "Hugging Face", _VARIABLE)
        return unreachable(self._name, self.where, _reason(error))

    def _refusal(self, status: int) -> HubError | None:
        if status in (401, 403):  # a list can be had of what is gated, its files cannot
            return self._gated()
        if status in (404, 410):
            return HubError(f"{self.where} does not have all files of {self._name} that it lists")
        return None

    def _gated(self) -> HubError:
        return HubError(
            f"{self._name} on {self.where} is gated: accept its terms there, and set HF_TOKEN to a token of yours"
        )


def _reason(error: BaseException) -> str:
    """The innermost error: those around it say how it came there."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return one_line(error) or type(error).__name__
