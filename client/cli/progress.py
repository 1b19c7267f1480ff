"""One line on stderr: how far it got, how long the rest will take, for how long a lost connection is looked for."""

import sys
import time
from typing import Final, TextIO

INTERVAL_S: Final = 0.1
ETA_AFTER_S: Final = 2.0  # before, a forecast would be a guess


class Progress:
    """Shows characters and seconds of audio while they arrive, and messages.

    `shown`: progress too, as one line that changes. `quiet` shows only errors.
    """

    def __init__(self, *, shown: bool, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._shown = shown and not quiet
        self._quiet = quiet
        self._next = 0.0
        self._audio_s = 0.0
        self._characters = 0
        self._total: int | None = None  # characters of the whole text
        self._begun: tuple[float, float, int] | None = None  # when, and how much audio and text there was by then
        self._trying_s: float | None = None
        self._width = 0

    def begin(self, audio_s: float, characters: int, total: int | None) -> None:
        """So much is there from an earlier run. `total` None: nobody knows how long the text is."""
        self._audio_s, self._characters, self._total = audio_s, characters, total
        self._begun = (time.monotonic(), audio_s, characters)

    def audio(self, seconds: float) -> None:
        """So much audio is here."""
        self._audio_s = seconds
        if not self._shown or (now := time.monotonic()) < self._next:
            return
        self._next = now + INTERVAL_S
        self._show(now)

    def text(self, characters: int) -> None:
        """So many characters are spoken."""
        self._characters = characters

    def trying(self, seconds: float | None) -> None:
        """For so long the connection has been lost; None: it is back."""
        self._trying_s = seconds
        if self._shown and seconds is not None:
            self._show(time.monotonic())

    def _show(self, now: float) -> None:
        more = self._forecast(now) if self._trying_s is None else f"; still trying, {self._trying_s:.0f} s"
        text = f"{self._of_text()}{self._audio_s:.1f} s of audio{more}"
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def _of_text(self) -> str:
        if self._total is None:
            return f"{self._characters:,} characters, " if self._characters else ""
        if not self._total:
            return ""
        done = min(self._characters, self._total)
        return f"{done:,} of {self._total:,} characters ({100 * done // self._total} %), "

    def _forecast(self, now: float) -> str:
        """How fast it goes, and how long the rest will take at the pace of this run."""
        if self._begun is None or (spent := now - self._begun[0]) < ETA_AFTER_S:
            return ""
        speed = (self._audio_s - self._begun[1]) / spent
        text = f", {speed:.1f}x real time" if speed < 10 else f", {speed:.0f}x real time"
        said = self._characters - self._begun[2]
        if self._total is None or said <= 0 or self._characters >= self._total:
            return text
        return f"{text}, {_clock(spent * (self._total - self._characters) / said)} left"

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


def _clock(seconds: float) -> str:
    """1:05, or 2:01:05."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
