"""One line on stderr that says how far it got."""

import sys
import time
from typing import Final, TextIO

INTERVAL_S: Final = 0.1


class Progress:
    """Shows seconds of audio while they arrive, and messages. `quiet` shows only errors."""

    def __init__(self, *, shown: bool, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._shown = shown and not quiet
        self._quiet = quiet
        self._next = 0.0
        self._width = 0

    def audio(self, seconds: float) -> None:
        """So much audio is here."""
        if not self._shown or (now := time.monotonic()) < self._next:
            return
        self._next = now + INTERVAL_S
        text = f"{seconds:.1f} s of audio"
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def say(self, text: str) -> None:
        """A message of its own line, unless quiet."""
        if not self._quiet:
            self.error(text)

    def error(self, text: str) -> None:
        """A message that is always shown."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0
        self._stream.write(text + "\n")
        self._stream.flush()
