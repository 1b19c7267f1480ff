"""One line on stderr that says how far it got, and for how long a lost connection is looked for."""

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
        self._audio_s = 0.0
        self._trying_s: float | None = None
        self._width = 0

    def audio(self, seconds: float) -> None:
        """So much audio is here."""
        self._audio_s = seconds
        if not self._shown or (now := time.monotonic()) < self._next:
            return
        self._next = now + INTERVAL_S
        self._show()

    def trying(self, seconds: float | None) -> None:
        """For so long the connection has been lost; None: it is back."""
        self._trying_s = seconds
        if self._shown and seconds is not None:
            self._show()

    def _show(self) -> None:
        trying = "" if self._trying_s is None else f"; still trying, {self._trying_s:.0f} s"
        text = f"{self._audio_s:.1f} s of audio{trying}"
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
