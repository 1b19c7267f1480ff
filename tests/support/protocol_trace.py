"""Replays the traces of docs/protocol.md against the session machine, so that they stay true.

A trace has lines `C: MESSAGE` (what the client sends), `S: MESSAGE` or `S: [audio ...]` or `S: [close ...]` (what the
server answers), `-- N ms` (time passes), `-- the connection breaks` and `# ...` (a remark). Client lines that follow
each other are sent at once. An indented line continues the one before. `…` in a server line stands for anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_client, encode
from protocol.errors import ProtocolError, close_reason
from protocol.frames import AudioFrame, FrameFlag, decode_frame
from server.engines.base import WordTiming
from server.engines.rendering import RenderedChunk, SegmentRequest
from tests.support.session_driver import Driver

WORD_MS: Final = 200
MARK_MS: Final = 100
BREAK: Final = "-- the connection breaks"
WHOLE: Final = 1_000_000  # samples: a segment is rendered at once
_TOKEN: Final = re.compile(r"[A-Za-z']+|[\u4e00-\u9fff]|[,.!?，。！？]")


def logical_lines(block: str) -> list[str]:
    """A trace's lines without remarks, continued ones joined."""
    lines: list[str] = []
    for line in block.splitlines():
        if line.startswith("  "):
            lines[-1] += line.strip()
        elif line and not line.startswith("#"):
            lines.append(line)
    return lines


def matches(written: str, actual: str) -> bool:
    """Whether a written line, in which `…` stands for anything, is the actual one."""
    return re.fullmatch(".*".join(map(re.escape, written.split("…"))), actual) is not None


def replay(lines: list[str]) -> list[str]:
    """The whole trace that follows from its `C:` and `--` lines."""
    player = _Player()
    found: list[str] = []
    sent = False
    for line in lines:
        if line.startswith("S:"):
            if sent:
                found += player.answers()
            sent = False
        elif line.startswith("C:"):
            found.append(line)
            player.send(line.removeprefix("C:").strip())
            sent = True
        else:
            if sent:
                found += player.answers()
            found.append(line)
            sent = False
            if line == BREAK:
                player.driver.session.detach(player.driver.now)
                continue
            match = re.fullmatch(r"-- (\d+) ms", line)
            assert match, f"not a line of a trace: {line}"
            found += player.wait(int(match[1]) / 1000)
    return found + (player.answers() if sent else [])


@dataclass
class _Audio:
    utterance: int
    first: int
    end: int
    frames: int
    flags: FrameFlag

    def __str__(self) -> str:
        flags = "".join(f", {flag.name.lower()}" for flag in FrameFlag if flag.name and flag & self.flags)
        frames = "1 frame" if self.frames == 1 else f"{self.frames} frames"
        return f"S: [audio of utterance {self.utterance}, samples {self.first} to {self.end}, {frames}{flags}]"


@dataclass
class _Player:
    driver: Driver = field(
        default_factory=lambda: Driver(now=0.0, render=_speak, session_id="vD3Wc0mYq8nKfT2x", token="Zk1rPq7s")
    )
    failure: ProtocolError | None = None

    def send(self, text: str) -> None:
        assert self.failure is None, f"sent after an error: {text}"
        message, session = decode_client(text), self.driver.session
        try:
            if isinstance(message, c.Resume):
                assert session.accepts(message.token)
                session.resume(message, "8sVtY2eX", self.driver.now)
            else:
                session.receive(message, self.driver.now)
        except ProtocolError as error:
            self.failure = error

    def wait(self, seconds: float) -> list[str]:
        driver = self.driver
        until = driver.now + seconds
        lines: list[str] = []
        while driver.session.deadline() <= until:
            driver.now = max(driver.now, driver.session.deadline())
            driver.session.on_time(driver.now)
            lines += self.answers()
        driver.now = until
        return lines

    def answers(self) -> list[str]:
        lines: list[str] = []
        audio: _Audio | None = None
        for data in self._outgoing():
            if isinstance(data, bytes):
                frame = decode_frame(data)
                if audio and frame.flags == audio.flags == FrameFlag.NONE and frame.utterance == audio.utterance:
                    audio.end, audio.frames = frame.end_sample, audio.frames + 1
                else:
                    lines += [str(audio)] if audio else []
                    audio = _first(frame)
            else:
                lines += [str(audio)] if audio else []
                audio = None
                lines.append(f"S: {data}")
        return lines + ([str(audio)] if audio else [])

    def _outgoing(self) -> Iterator[str | bytes]:
        if self.failure is not None:
            error = self.failure
            assert error.kind.close is not None
            yield encode(s.Error(error.code, error.message, error.field, error.kind.retryable))
            yield f"[close {int(error.kind.close)}: {close_reason(error.message)}]"
            return
        while True:
            while (data := self.driver.session.next_outgoing(self.driver.now)) is not None:
                yield data
            if (work := self.driver.take_work()) is None:
                return
            self.driver.do(work, chunk_samples=WHOLE)


def _first(frame: AudioFrame) -> _Audio:
    return _Audio(frame.utterance, frame.first_sample, frame.end_sample, 1, frame.flags)


def _speak(request: SegmentRequest) -> RenderedChunk:
    """An engine without a voice: a constant level for each word, silence for each mark."""
    pcm, words = b"", []
    for token in _TOKEN.finditer(request.cut.text):
        at = len(pcm) // 2
        is_word = token.group()[0].isalpha()
        count = request.sample_rate * (WORD_MS if is_word else MARK_MS) // 1000
        pcm += (b"\xe8\x03" if is_word else b"\0\0") * count
        if is_word:
            start = request.cut.start + token.start()
            words.append(WordTiming(token.group(), start, start + len(token.group()), at, at + count))
    return RenderedChunk(pcm, tuple(words))
