"""Voices of which nothing may be kept any more. Pure."""

from typing import Final

REMEMBERED: Final = 1_024  # what was begun before a voice was deleted is over long before so many others were


class Forgotten:
    """The last voices that were deleted: what was at work with one then may still want to be kept afterwards."""

    def __init__(self) -> None:
        self._voices: dict[str, None] = {}

    def add(self, voice: str) -> None:
        """It was deleted."""
        self._voices[voice] = None
        if len(self._voices) > REMEMBERED:
            del self._voices[next(iter(self._voices))]

    def __contains__(self, voice: object) -> bool:
        return voice in self._voices
