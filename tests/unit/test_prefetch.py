"""A segment that is fetched before its turn: in order, bounded, with its errors, and let go of when nobody wants it."""

import asyncio
from typing import Self

import pytest

from server.cluster.base import Urgency, WorkerLost
from server.engines.rendering import RenderedChunk
from server.gateway import prefetch
from server.gateway.prefetch import Prefetched


class Stream:
    """Gives chunks of 1,000 samples as fast as they are asked for, then ends or fails."""

    def __init__(self, chunks: int, failure: Exception | None = None) -> None:
        self.urgency = Urgency()
        self.asked: list[Urgency] = []
        self.given = 0
        self.cancelled = False
        self._chunks = chunks
        self._failure = failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        self.asked.append(self.urgency)
        await asyncio.sleep(0)
        if self.given == self._chunks:
            if self._failure is not None:
                raise self._failure
            raise StopAsyncIteration
        self.given += 1
        return RenderedChunk(self.given.to_bytes(2, "little") * 1_000)

    def cancel(self) -> None:
        self.cancelled = True


def ahead_of(stream: Stream, due: float = 0.0) -> Prefetched:
    return Prefetched(stream, due=due, sample_rate=1_000)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_it_gives_what_the_stream_gives_and_ends_with_it() -> None:
    plain = [chunk async for chunk in Stream(7)]
    ahead = ahead_of(Stream(7))
    await settle()
    assert [chunk async for chunk in ahead] == plain
    assert [chunk async for chunk in ahead] == []


async def test_it_fetches_before_it_is_asked_but_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "MAX_BYTES", 6_000)
    stream = Stream(100)
    ahead = ahead_of(stream)
    await settle()
    assert stream.given == 3
    await anext(ahead)
    await settle()
    assert stream.given == 4
    assert [chunk.pcm[0] for chunk in [chunk async for chunk in ahead]] == list(range(2, 101))


async def test_what_failed_ahead_fails_in_its_turn_and_what_came_before_it_is_given() -> None:
    ahead = ahead_of(Stream(2, WorkerLost("gone")))
    await settle()
    assert [(await anext(ahead)).pcm[0] for _ in range(2)] == [1, 2]
    for _ in range(2):
        with pytest.raises(WorkerLost, match="gone"):
            await anext(ahead)


async def test_a_chunk_is_due_when_what_comes_before_it_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for cannot be hurried, so it is asked for with the right time from the beginning."""
    monkeypatch.setattr(prefetch, "MAX_BYTES", 6_000)
    stream = Stream(100)
    ahead = ahead_of(stream, due=50.0)
    await settle()
    assert stream.asked == [Urgency(50.0), Urgency(51.0), Urgency(52.0)]
    ahead.urgency = Urgency(7.0, first=True)
    await anext(ahead)
    await settle()
    assert stream.asked[3] == Urgency(53.0), "there is more to take first"
    while len(stream.asked) < 10:
        await anext(ahead)
    assert Urgency(7.0, first=True) in stream.asked, "somebody waits for it"
    assert stream.urgency in stream.asked, "it may not change while it is waited for"
    ahead.cancel()


async def test_cancelled_it_lets_go_and_whoever_waits_hears_the_end() -> None:
    stream = Stream(10**9)
    ahead = ahead_of(stream)
    await settle()
    ahead.cancel()
    given = stream.given
    await settle()
    assert stream.cancelled
    assert stream.given <= given + 1
    assert [chunk async for chunk in ahead] == []


async def test_a_cancel_reaches_one_who_waits() -> None:
    class Never(Stream):
        async def __anext__(self) -> RenderedChunk:
            await asyncio.Event().wait()
            raise AssertionError

    ahead = ahead_of(Never(1))
    waiting = asyncio.create_task(anext(ahead, None))
    await settle()
    ahead.cancel()
    assert await asyncio.wait_for(waiting, 1) is None
