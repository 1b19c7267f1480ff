"""A real server behind a line that fails on request, the real client, and the proof that nothing was lost."""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import client
from client.line import LineStatistics
from deploy.faulty_proxy import FaultyProxy
from protocol import server_messages as s
from server.app import Server
from tests.support.server import running, url_of

PATIENCE_S = 20.0
SHORT = "第一句。第二句。 And a third one, in English. "  # 2.3 s of audio with the engine `tone`


@dataclass
class Heard:
    """One utterance as the client had it."""

    pcm: bytes = b""
    packets: list[bytes] = field(default_factory=list)  # in place of `pcm`, with Opus and `decode=False`
    done: s.Done | None = None
    segments: list[s.SegmentEnd] = field(default_factory=list)
    words: list[s.Word] = field(default_factory=list)
    modes: list[s.ModeChange] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    line: LineStatistics = field(default_factory=lambda: LineStatistics("stream", 0.0))
    first_audio: list[float] = field(default_factory=list)  # when each stretch of audio came (monotonic)


def prove(heard: Heard, undisturbed: Heard) -> None:
    """Nothing is missing, nothing came twice, every sample is the server's and that of the undisturbed run."""
    done = heard.done
    assert done is not None
    if not heard.packets:
        assert len(heard.pcm) == 2 * done.samples
        check_digests(heard)
    assert undisturbed.done is not None
    assert (heard.pcm, heard.packets) == (undisturbed.pcm, undisturbed.packets)
    assert done.digest == undisturbed.done.digest
    assert heard.words == undisturbed.words
    assert [end.segment for end in heard.segments] == list(range(len(undisturbed.segments)))


def check_digests(heard: Heard) -> None:
    """The samples have the digests that the server names, segment by segment and as a whole."""
    at, whole = 0, hashlib.sha256()
    for end in heard.segments:
        digest = hashlib.sha256(heard.pcm[2 * at : 2 * (at + end.samples)])
        assert digest.hexdigest() == end.digest
        whole.update(digest.digest())
        at += end.samples
    assert heard.done is not None
    assert (at, whole.hexdigest()) == (heard.done.samples, heard.done.digest)


async def write_all(utterance: client.Utterance, text: str | Iterable[str] | AsyncIterable[str]) -> None:
    """All of the text, then its end."""
    if isinstance(text, AsyncIterable):
        async for piece in text:
            await utterance.write(piece)
    else:
        for piece in [text] if isinstance(text, str) else text:
            await utterance.write(piece)
    await utterance.end()


async def hear(utterance: client.Utterance, heard: Heard) -> None:
    """Everything that the utterance yields. AssertionError at a gap or a repeat."""
    parts: list[bytes] = []
    at = 0
    async for item in utterance:
        match item:
            case client.Audio():
                assert item.first_sample == at
                assert item.packets or len(item.pcm) == 2 * item.count
                at = item.end_sample
                parts.append(item.pcm)
                heard.packets.extend(item.packets)
                heard.first_audio.append(time.monotonic())
            case s.SegmentEnd():
                heard.segments.append(item)
            case s.Timing():
                heard.words.extend(item.words)
            case s.ModeChange():
                heard.modes.append(item)
            case s.Done():
                heard.done = item
    heard.pcm = b"".join(parts)


async def speak(
    url: str, text: str | Iterable[str] | AsyncIterable[str], *, patience_s: float = PATIENCE_S, **options: Any
) -> Heard:
    """One text through the real client; options are those of `client.connect`."""
    heard = Heard()
    async with asyncio.timeout(patience_s), client.connect(url, on_notice=heard.notices.append, **options) as session:
        utterance = await session.start()
        heard.line = session.line
        writing = asyncio.create_task(write_all(utterance, text))
        try:
            await hear(utterance, heard)
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
    return heard


@dataclass
class Scene:
    """The server, the proxy before it, and what was said without disturbance."""

    server: Server
    proxy: FaultyProxy
    _undisturbed: dict[str, Heard] = field(default_factory=dict)

    async def undisturbed(self, text: str = SHORT, **options: Any) -> Heard:
        """The same without the proxy; remembered."""
        key = f"{text} {sorted(options.items())}"
        if key not in self._undisturbed:
            self._undisturbed[key] = await speak(url_of(self.server), text, **options)
            prove(self._undisturbed[key], self._undisturbed[key])
        return self._undisturbed[key]

    async def speak(self, text: str = SHORT, **options: Any) -> Heard:
        """Through the proxy, and proven whole."""
        undisturbed = await self.undisturbed(text, **options)
        heard = await speak(self.proxy.url, text, **options)
        prove(heard, undisturbed)
        return heard

    async def no_session_is_left(self, timeout: float = 3.0) -> None:
        """Waits until every session and every connection is over."""
        listener = self.server.listener
        assert listener is not None
        async with asyncio.timeout(timeout):
            while self.server.sessions.taken or listener.connection_count:
                await asyncio.sleep(0.01)
        assert gauge(self.server, "cosystream_sessions_open") == 0
        assert gauge(self.server, "cosystream_sessions_detached") == 0


def gauge(server: Server, name: str) -> float:
    """What /metrics says."""
    lines = server.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # listing, no paths


@asynccontextmanager
async def scene(
    *, tcp_backoff: bool = False, buffer_bytes: int = 65_536, alone: bool = True, **settings: Any
) -> AsyncIterator[Scene]:
    """In the end no session, no connection and no descriptor may be left, with the server still running.

    `alone`: nothing else in this process opens and closes descriptors meanwhile.
    Sessions that wait for their client are over with `resume_ttl_s`, 1 s where the test does not say.
    """
    settings = {"resume_ttl_s": 1.0, **settings}
    async with running(**settings) as server:
        assert server.listener is not None
        before = descriptors()
        async with FaultyProxy(server.listener.port, tcp_backoff=tcp_backoff, buffer_bytes=buffer_bytes) as proxy:
            found = Scene(server, proxy)
            yield found
        await found.no_session_is_left(settings["resume_ttl_s"] + 3.0)
        async with asyncio.timeout(2.0):
            while alone and descriptors() > before:
                await asyncio.sleep(0.01)
