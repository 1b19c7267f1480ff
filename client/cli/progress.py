"""One line on stderr: how far it got, how long the rest will take, for how long a lost connection is looked for."""

import os
import sys
import time
from typing import Final, TextIO

INTERVAL_S: Final = 0.1
ETA_AFTER_S: Final = 1.0  # before, a forecast would be a guess
TRYING_AFTER_S: Final = 1.0  # a shorter outage is nothing to wait for
CLOCK_FROM_S: Final = 100.0  # audio up to there is told in seconds


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

    @property
    def is_due(self) -> bool:
        """Whether `audio` would show something, so that `text` is worth finding out."""
        return self._shown and time.monotonic() >= self._next

    def begin(self, audio_s: float, characters: int, total: int | None) -> None:
        """So much is there from an earlier run. `total` None: nobody knows how long the text is."""
        self._audio_s, self._characters, self._total = audio_s, characters, total
        self._begun = (time.monotonic(), audio_s, characters)

    def audio(self, seconds: float) -> None:
        """So much audio is here."""
        self._audio_s = seconds
        if not self.is_due:
            return
        now = time.monotonic()
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
        parts = [*self._of_text(), f"{audio_length(self._audio_s)} of audio"]
        trying = ""
        if self._trying_s is None:
            parts += self._forecast(now)
        elif self._trying_s >= TRYING_AFTER_S:
            trying = f"still trying, {self._trying_s:.0f} s"
        room = self._room()
        least = 0 if trying else 1
        while len(text := "; ".join(filter(None, (", ".join(parts), trying)))) > room and len(parts) > least:
            parts.pop()
        text = text[:room]
        self._stream.write("\r" + text.ljust(min(self._width, room)))
        self._stream.flush()
        self._width = len(text)

    def _room(self) -> int:
        """Columns of a line that stays one: a terminal scrolls where a line is longer. What is none has no end."""
        try:
            columns = int(os.environ.get("COLUMNS") or 0)
        except ValueError:
            columns = 0
        if columns <= 0:
            try:
                columns = os.get_terminal_size(self._stream.fileno()).columns
            except (OSError, ValueError):  # no terminal, or no descriptor
                columns = 0
        return columns - 1 if columns > 1 else sys.maxsize

    def _of_text(self) -> list[str]:
        if self._total is None:
            return [f"{self._characters:,} characters"] if self._characters else []
        if not self._total:
            return []
        done = min(self._characters, self._total)
        return [f"{done:,} of {self._total:,} characters ({100 * done // self._total} %)"]

    def _forecast(self, now: float) -> list[str]:
        """How fast it goes, and how long the rest will take at the pace of this run."""
        if self._begun is None or (spent := now - self._begun[0]) < ETA_AFTER_S:
            return []
        speed = (self._audio_s - self._begun[1]) / spent
        parts = [f"{speed:.1f}x real time" if speed < 10 else f"{speed:.0f}x real time"]
        said = self._characters - self._begun[2]
        if self._total is not None and said > 0 and self._characters < self._total:
            parts.append(f"{_clock(spent * (self._total - self._characters) / said)} left")
        return parts

    def say(self, text: str) -> None:
        """A message of its own line, unless quiet."""
        if not self._quiet:
            self.error(text)

    def error(self, text: str) -> None:
        """A message that is always shown."""
        if self._width:
            self._stream.write("\r" + " " * min(self._width, self._room()) + "\r")
            self._width = 0
        self._stream.write(text + "\n")
        self._stream.flush()


def audio_length(seconds: float) -> str:
    """16.6 s, or 0:01:40 and above."""
    if round(seconds, 1) < CLOCK_FROM_S:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}"


def _clock(seconds: float) -> str:
    """1:05, or 2:01:05."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
