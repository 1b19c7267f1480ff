"""Kernel TCP over a link that fails: what retransmission timers and send buffers really do."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import client
from deploy.faulty_proxy import DOWN, UP
from protocol import server_messages as s
from tests.support.faults import Heard, check_digests, write_all
from tests.support.processes import server_process
from tests.support.tun_link import SERVER_ADDRESS, TunLink, missing

pytestmark = pytest.mark.privileged

SENTENCE = "山高水远，天蓝云白，风轻日暖。 The link goes down, and the sentence goes on. "  # 3 s with the engine `tone`
RATE = 24_000
LEAD_MS = 4_000
TICK_S = 0.02


@pytest.fixture(autouse=True)
def _rights() -> None:
    if reason := missing():
        pytest.skip(reason)


@dataclass
class Paced(Heard):
    """What a listener had who plays at normal speed."""

    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when (monotonic), and up to which sample
    stalls: int = 0
    opus: bool = False

    def sound_after(self, moment: float) -> float:
        """How long after this moment new sound came."""
        return next(when for when, _ in self.arrivals if when > moment) - moment


@asynccontextmanager
async def link_and_server(tmp_path: Path) -> AsyncIterator[tuple[TunLink, str]]:
    """The link, with 40 ms of round trip, and the address of a server behind it."""
    async with TunLink() as link:
        link.change(UP, DOWN, delay_s=0.02)
        process = server_process(
            tmp_path / "server.log", "--engine", "tone", "--host", SERVER_ADDRESS, "--insecure",
            prefix=link.server_prefix,
        )  # fmt: skip
        server = await asyncio.to_thread(process.__enter__)
        try:
            yield link, f"ws://{SERVER_ADDRESS}:{server.port}/v1/stream"
        finally:
            await asyncio.to_thread(process.__exit__, None, None, None)


async def listen(url: str, text: str, started: Callable[[], None], **options: Any) -> Paced:
    """Speak a text and play it at normal speed. `started` is called with the first sound."""
    heard = Paced()
    parts = []
    options = {"max_lead_ms": LEAD_MS, "sample_rate": RATE, **options}
    async with client.connect(url, on_notice=heard.notices.append, **options) as session:
        utterance = await session.start()
        writing = asyncio.create_task(write_all(utterance, text))
        playout = client.Playout(RATE)
        playing = asyncio.create_task(_play(utterance, playout))
        try:
            async for item in utterance:
                match item:
                    case client.Audio():
                        if not heard.arrivals:
                            started()
                        heard.arrivals.append((time.monotonic(), item.end_sample))
                        playout.push(item.pcm, time.monotonic())
                        parts.append(item.pcm)
                    case s.SegmentBegin():
                        playout.between(False)
                    case s.SegmentEnd():
                        heard.segments.append(item)
                        playout.between(True)
                    case s.ModeChange():
                        heard.modes.append(item)
                    case s.Done():
                        heard.done = item
            await writing
        finally:
            for task in (writing, playing):
                task.cancel()
            await asyncio.gather(writing, playing, return_exceptions=True)
        heard.line, heard.stalls = session.line, playout.stalls
    heard.pcm = b"".join(parts)
    return heard


async def _play(utterance: client.Utterance, playout: client.Playout) -> None:
    began, taken = time.monotonic(), 0
    while True:
        await asyncio.sleep(TICK_S)
        due = round((time.monotonic() - began) * RATE) - taken
        taken += due
        playout.pull(due)
        utterance.played(playout.played_samples, playout.buffered_ms, playout.stalls)


class _Script:
    """What happens to the link while the client listens, from its first sound on."""

    def __init__(self, link: TunLink, url: str) -> None:
        self.link = link
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._started = asyncio.Event()

    async def run(self, text: str, what: Callable[[], Any], **options: Any) -> Paced:
        """The client's side, with `what` (a coroutine function) on this side."""

        def started() -> None:
            self._loop.call_soon_threadsafe(self._started.set)

        async def happen() -> None:
            await self._started.wait()
            await what()

        happening = asyncio.create_task(happen())
        try:
            async with asyncio.timeout(60):
                return await self.link.at_the_client(lambda: listen(self._url, text, started, **options))
        finally:
            happening.cancel()
            await asyncio.gather(happening, return_exceptions=True)


async def test_sound_is_back_soon_after_a_hole(tmp_path: Path) -> None:
    healed: list[float] = []
    async with link_and_server(tmp_path) as (link, url):

        async def holes() -> None:
            for seconds in (5.0, 2.0, 3.0):
                await asyncio.sleep(1.5)
                link.hole(UP, DOWN)
                await asyncio.sleep(seconds)
                link.heal()
                healed.append(time.monotonic())

        heard = await _Script(link, url).run(SENTENCE * 6, holes)
    check_digests(heard)
    waits = [heard.sound_after(moment) for moment in healed]
    assert len(waits) == 3
    assert waits[0] < 0.8
    assert median(waits) < 0.8
    assert heard.line.resumes >= 1
    ends = [end for _, end in heard.arrivals]
    assert all(before < after for before, after in pairwise(ends))


async def test_links_without_holes(tmp_path: Path) -> None:
    """Side by side, because they mostly wait."""
    scenes: tuple[Callable[[Path], Awaitable[None]], ...] = (
        partial(a_calm_link_stays_in_stream_mode, delay_s=0.0005),
        partial(a_calm_link_stays_in_stream_mode, delay_s=0.15),
        a_link_that_becomes_too_narrow_makes_blocks,
        packets_that_get_lost_are_tcp_s_business,
    )
    folders = [tmp_path / str(number) for number in range(len(scenes))]
    for folder in folders:
        folder.mkdir()
    await asyncio.gather(*(each(folder) for each, folder in zip(scenes, folders, strict=True)))


async def a_calm_link_stays_in_stream_mode(tmp_path: Path, delay_s: float) -> None:
    """Near and far."""
    async with link_and_server(tmp_path) as (link, url):
        link.change(UP, DOWN, delay_s=delay_s)
        heard = await _Script(link, url).run(SENTENCE * 3, _nothing)
    check_digests(heard)
    assert (heard.modes, heard.line.resumes) == ([], 0)
    assert heard.stalls <= 1  # at first TCP sends 300 ms of sound in a round trip, which may be just too little


async def _nothing() -> None:
    """The link stays as it is."""


async def a_link_that_becomes_too_narrow_makes_blocks(tmp_path: Path) -> None:
    """PCM of 384 kbit/s, of which 200 are left after a second."""
    async with link_and_server(tmp_path) as (link, url):

        async def narrow() -> None:
            await asyncio.sleep(1.0)
            link.change(DOWN, rate=200_000 / 8)

        heard = await _Script(link, url).run(SENTENCE * 2, narrow, format="auto")
    check_lengths(heard)
    assert heard.modes[0].mode == "block"
    assert heard.line.resumes == 0


def check_lengths(heard: Paced) -> None:
    """Every sample came once; PCM and Opus in one utterance have no common digest on the client's side."""
    assert heard.done is not None
    assert len(heard.pcm) == 2 * heard.done.samples


async def packets_that_get_lost_are_tcp_s_business(tmp_path: Path) -> None:
    """One in fifty, both ways."""
    async with link_and_server(tmp_path) as (link, url):

        async def lossy() -> None:
            link.change(UP, DOWN, loss=0.02)

        heard = await _Script(link, url).run(SENTENCE, lossy)
    check_digests(heard)
    assert heard.line.resumes == 0
