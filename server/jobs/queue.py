"""Dead letters on their way to the disk. Nothing here blocks the event loop: one thread writes.

Bound: `MAX_WAITING_CHARS` of what waits for the disk. Where it is reached, new letters are dropped and counted. What
cannot be written is counted, too, and lost; the next one is tried again, so all is well again as soon as the disk is.
"""

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import structlog

from server.cluster.failures import FailedSegment
from server.jobs.folder import LetterFolder
from server.jobs.letters import ID_BYTES, Letter, encode

log = structlog.get_logger(__name__)

MAX_WAITING_CHARS: Final = 4 * 1024 * 1024
_CHARS_OF_A_LETTER: Final = 1_000  # what is in it beside texts
GROUP_LETTERS: Final = 64  # written at once: their lines are in memory beside them
CLOSE_TIMEOUT_S: Final = 1.0
WARN_EVERY_S: Final = 60.0

Result = Literal["written", "dropped", "failed"]
Count: TypeAlias = Callable[[Result, int], None]
"""Told on the event loop what became of how many letters."""


@dataclass(frozen=True, slots=True)
class _Report:
    """What the thread did with some letters. `reason`: why it could not write all of them."""

    chars: int
    written: int
    failed: int = 0
    reason: str = ""


def new_letter(failed: FailedSegment) -> Letter:
    """A letter about this, from now."""
    return Letter(secrets.token_hex(ID_BYTES), timestamp(), failed)


def timestamp() -> str:
    """Now, UTC, as ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class DeadLetters:
    """Takes what engines failed at. Everything is called on the event loop."""

    def __init__(self, folder: LetterFolder | None, count: Count) -> None:
        """`folder` None: they are off."""
        self._folder = folder
        self._count = count
        self._queue: queue.SimpleQueue[tuple[Letter, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._waiting = 0  # characters
        self._closing = False
        self._lost = 0  # since it was told how many
        self._failing = False  # and said so
        self._warned_at = float("-inf")

    @property
    def folder(self) -> LetterFolder | None:
        """Where they are written. None: nowhere."""
        return self._folder

    def add(self, failed: FailedSegment) -> None:
        """Write this down. Returns at once and never raises."""
        if self._folder is None:
            return
        chars = _chars(failed)
        if self._closing or self._waiting + chars > MAX_WAITING_CHARS:
            self._lose("dropped", 1, "the disk is too slow")
            return
        if self._thread is None:
            try:
                self._start(self._folder)
            except RuntimeError as error:  # the system has no thread for us
                self._lose("failed", 1, str(error))
                return
        self._waiting += chars
        self._queue.put((new_letter(failed), chars))

    async def close(self) -> None:
        """Write what waits, within `CLOSE_TIMEOUT_S`. What comes later is dropped."""
        if self._closing:
            return
        self._closing = True
        if self._ended is None:
            return
        self._queue.put(None)
        await asyncio.wait({self._ended}, timeout=CLOSE_TIMEOUT_S)
        if not self._ended.done():
            log.warning("the disk is too slow: dead letters were not written", characters=self._waiting)

    def _start(self, folder: LetterFolder) -> None:
        """Start the thread. Raises RuntimeError."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        work = _Writing(folder, self._queue, loop, self._told, ended)
        thread = threading.Thread(target=work.run, name="dead letters", daemon=True)
        thread.start()
        self._thread, self._ended = thread, ended

    def _told(self, report: _Report) -> None:
        self._waiting -= report.chars
        if report.written:
            self._count("written", report.written)
            if self._failing:
                log.info("dead letters are written again", lost=self._lost)
                self._failing, self._lost = False, 0
        if report.failed:
            self._lose("failed", report.failed, report.reason)

    def _lose(self, result: Result, letters: int, reason: str) -> None:
        self._count(result, letters)
        self._lost += letters
        now = time.monotonic()
        if not self._failing and now - self._warned_at > WARN_EVERY_S:
            self._failing, self._warned_at = True, now
            log.warning("dead letters are not written", reason=reason)


class _Writing:
    """The thread's part."""

    def __init__(
        self,
        folder: LetterFolder,
        letters: "queue.SimpleQueue[tuple[Letter, int] | None]",
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[_Report], None],
        ended: "asyncio.Future[None]",
    ) -> None:
        self._folder = folder
        self._letters = letters
        self._loop = loop
        self._tell = tell
        self._ended = ended

    def run(self) -> None:
        """Write until a None comes."""
        while True:
            waiting = [self._letters.get()]
            try:
                while waiting[-1] is not None and len(waiting) < GROUP_LETTERS:
                    waiting.append(self._letters.get_nowait())
            except queue.Empty:
                pass
            group = [each for each in waiting if each is not None]
            if group:
                self._on_loop(self._tell, self._write(group))
            if waiting[-1] is None:
                self._on_loop(_end, self._ended)
                return

    def _write(self, group: list[tuple[Letter, int]]) -> _Report:
        lines: list[bytes] = []
        failed, reason = 0, ""
        for letter, _ in group:
            try:
                lines.append(encode(letter, self._folder.max_line_bytes))
            except (ValueError, TypeError) as error:  # too long, or an engine of somebody's put odd values into it
                failed, reason = failed + 1, type(error).__name__
        written, problem = self._folder.append(lines) if lines else (0, None)
        if problem is not None:
            failed += len(lines) - written
            reason = problem.strerror or type(problem).__name__
        return _Report(sum(chars for _, chars in group), written, failed, reason)

    def _on_loop(self, call: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, argument)
        except RuntimeError:
            pass  # the loop is closed: nobody wants to know


def _end(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)


def _chars(failed: FailedSegment) -> int:
    request = failed.request
    texts = len(request.cut.text) + len(request.before) + len(request.instruct)
    return _CHARS_OF_A_LETTER + texts + sum(len(each.error) + len(each.trace) for each in failed.attempts)
