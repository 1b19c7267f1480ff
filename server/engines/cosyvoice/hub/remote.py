"""What a hub has of a model, and what can go wrong with one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from server.engines.base import EngineError

TIMEOUT_S: Final = 30.0  # without a byte
_TOO_MANY: Final = 429
_SERVER_FAULT: Final = 500


class HubError(EngineError):
    """The model cannot be had; one line that says why and what to do."""


class Interrupted(Exception):
    """A transfer broke off; the next try goes on where it stopped."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a model. One of the digests is known, or none: `git_sha1` is of what git calls a blob."""

    path: str
    bytes: int
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a model, by path, at one revision of it."""

    revision: str
    files: Mapping[str, RemoteFile]


class Remote(Protocol):
    """A model on a hub."""

    @property
    def where(self) -> str:
        """The hub's address, for messages."""
        ...

    def listing(self) -> Listing:
        """What there is. Raises HubError."""
        ...

    def fetch(self, file: RemoteFile, into: Path, *, afresh: bool) -> None:
        """Bring a file to `into / file.path`, going on with what an earlier call left, unless `afresh`. Raises
        HubError, Interrupted, and OSError where it cannot be written.
        """
        ...


def no_such_model(name: str, revision: str, where: str) -> HubError:
    """Neither model nor revision is there."""
    at = f" at revision {revision}" if revision else ""
    return HubError(f"there is no model {name}{at} on {where}, and no folder {name} here: look at its name")


def unreachable(name: str, where: str, reason: object) -> HubError:
    """Nobody answers."""
    return HubError(
        f"{where} cannot be reached ({reason}), and there is no folder {name} here: look at the network, or give a"
        " folder that has the model"
    )


def odd_answer(name: str, where: str, status: int, variable: str) -> HubError:
    """A status that no hub means `name` by; `variable` names the hub's address in the environment."""
    hint = "try later" if status >= _SERVER_FAULT or status == _TOO_MANY else f"is {variable} right?"
    return HubError(f"{where} answered {status} when asked for {name}: {hint}")


def no_hub(name: str, where: str, kind: str, variable: str) -> HubError:
    """Something else answers there."""
    return HubError(f"{where} does not answer as {kind} does when asked for {name}: is {variable} right?")
