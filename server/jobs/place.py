"""Which directory the dead letters are in: what the settings say, and what this process finds."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from server.jobs.folder import FolderError, LetterFolder
from server.jobs.queue import DeadLetters
from server.observe.metrics import Metrics
from server.settings import Settings

log = structlog.get_logger(__name__)

OFF: Final = "off"
AUTO: Final = "auto"
_OF_STATE: Final = Path("cosystream", "dead-letters")


def folder_of(settings: Settings, environ: Mapping[str, str]) -> LetterFolder | None:
    """The directory that the settings name, or that `auto` means (see `state_directory`). None: they are off.

    Raises FolderError where `auto` finds no directory.
    """
    place = settings.dead_letters
    if place == OFF or (place == AUTO and settings.no_text_at_rest):
        return None
    path = state_directory(environ) / _OF_STATE if place == AUTO else Path(place)
    return LetterFolder(path.absolute(), settings.dead_letter_mb * 1024 * 1024)


def state_directory(environ: Mapping[str, str]) -> Path:
    """Where programs of this user keep what is to stay (XDG Base Directory Specification). Raises FolderError."""
    given = environ.get("XDG_STATE_HOME", "")
    if given.startswith("/"):  # others are to be ignored, it says
        return Path(given)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise FolderError("this user has no home directory") from error


def open_dead_letters(settings: Settings, metrics: Metrics, *, warns: bool = True) -> DeadLetters:
    """The queue that the settings ask for. `warns`: say so where `auto` finds no place, so that they are off.

    Raises FolderError for a directory that the settings name and that cannot be written.
    """

    def count(result: str, letters: int) -> None:
        metrics.dead_letters.labels(result).inc(letters)

    try:
        folder = folder_of(settings, os.environ)
        if folder is not None:
            folder.open()
    except FolderError as error:
        if settings.dead_letters != AUTO:
            raise FolderError(f"dead_letters: {error}") from error
        if warns:
            log.warning(
                "texts that the engine fails at are not written down: "
                "set dead_letters to a directory that can be written, or to off",
                reason=str(error),
            )
        folder = None
    return DeadLetters(folder, count)
