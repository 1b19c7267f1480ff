"""Learning voices beside speaking: bounded, one at a time, and in no listener's way; here and in worker processes."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from server.cache.audio import AudioCache
from server.cache.keys import BlockKey
from server.cluster import EnginePool, InProcessPool, PoolUnavailable
from server.cluster.cached import CachedPool
from server.cluster.learning import MAX_WAITING, Learning
from server.engines import EngineError
from server.engines.context_cache import EngineContextCache
from server.engines.loading import start_engine
from server.engines.tone import ToneEngine
from server.engines.tone_voice import pitch_of
from server.voices import VoiceStore
from tests.support.pools import collect, connected, in_process, pcm, processes, request
from tests.support.voices import strongest_hz, voice_fields, wav


class SlowLearner(ToneEngine):
    """Learns when it is let, and does to a recording what the test says."""

    def __init__(self, made: Callable[[bytes], bytes] = bytes.upper) -> None:
        super().__init__(cloning=True)
        self.let = threading.Event()
        self.begun: list[bytes] = []
        self.at_once = self.most_at_once = 0
        self.closed = False
        self._made = made

    def make_voice(self, recording: bytes, text: str) -> bytes:
        self.begun.append(recording)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.let.wait(10)
        self.at_once -= 1
        return self._made(recording)

    def close(self) -> None:
        self.closed = True


async def until(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.002)


async def test_speech_goes_on_meanwhile() -> None:
    engine = SlowLearner()
    async with in_process(engine, threads=1) as pool:
        learning = asyncio.ensure_future(pool.make_voice(b"abc", ""))
        await until(lambda: engine.begun)
        async with asyncio.timeout(2):
            assert pcm(await collect(pool.synthesize(request())))
        assert not learning.done()
        engine.let.set()
        assert await learning == b"ABC"


async def test_one_at_a_time_in_order_and_only_so_many_wait() -> None:
    engine = SlowLearner()
    async with in_process(engine) as pool:
        names = [bytes([97 + number]) for number in range(1 + MAX_WAITING)]
        learning = [asyncio.ensure_future(pool.make_voice(name, "")) for name in names]
        await until(lambda: engine.begun)
        with pytest.raises(PoolUnavailable, match="too many voices") as refused:
            await pool.make_voice(b"z", "")
        assert refused.value.retry_after_s > 0
        engine.let.set()
        assert await asyncio.gather(*learning) == [name.upper() for name in names]
    assert (engine.begun, engine.most_at_once) == (names, 1)


async def test_who_leaves_frees_nothing_before_the_engine_is_done() -> None:
    engine = SlowLearner()
    async with in_process(engine) as pool:
        left = asyncio.ensure_future(pool.make_voice(b"a", ""))
        await until(lambda: engine.begun)
        left.cancel()
        waiting = asyncio.ensure_future(pool.make_voice(b"b", ""))
        await asyncio.sleep(0.02)
        assert engine.begun == [b"a"]
        engine.let.set()
        assert await waiting == b"B"
        assert engine.most_at_once == 1


async def test_an_engine_that_hangs_is_waited_for_only_so_long() -> None:
    engine = SlowLearner()
    learning = Learning(engine, limit_s=0.05)
    with pytest.raises(EngineError, match=r"within 0\.05 s") as failed:
        await learning.make_voice(b"a", "")
    assert failed.value.kind == "time_out"
    with pytest.raises(PoolUnavailable, match="other voices"):  # it would hang, too
        await learning.make_voice(b"b", "")
    engine.let.set()
    await until(lambda: engine.at_once == 0)
    assert await learning.close()


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (ValueError("the recording is silent"), ValueError, "the recording is silent"),
        (EngineError("broken"), EngineError, "broken"),
        (RuntimeError("odd"), EngineError, "RuntimeError: odd"),
        (MemoryError(), EngineError, "MemoryError"),
        (None, EngineError, "is not 1 to"),
    ],
)
async def test_what_goes_wrong_is_told_apart(error: Exception | None, raised: type[Exception], message: str) -> None:
    def make(_: bytes) -> bytes:
        if error is not None:
            raise error
        return b""

    engine = SlowLearner(make)
    engine.let.set()
    async with in_process(engine) as pool:
        for _ in range(2):  # the first one leaves nothing behind
            with pytest.raises(raised, match=message):
                await pool.make_voice(b"a", "")


async def test_an_engine_that_learns_is_not_freed_under_its_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.cluster.learning.CLOSE_S", 0.02)
    engine = SlowLearner()
    pool = InProcessPool(engine, threads=1)
    learning = asyncio.ensure_future(pool.make_voice(b"a", ""))
    await until(lambda: engine.begun)
    await pool.close()
    assert not engine.closed
    engine.let.set()
    assert await learning == b"A"
    with pytest.raises(PoolUnavailable):
        await pool.make_voice(b"b", "")
    other = SlowLearner()
    async with in_process(other):
        pass
    assert other.closed


async def test_an_engine_without_cloning_says_so() -> None:
    async with in_process(ToneEngine()) as pool:
        with pytest.raises(EngineError, match="the engine tone cannot learn voices"):
            await pool.make_voice(wav(), "")


def test_an_engine_that_only_says_that_it_clones_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetless(ToneEngine):
        forget_voice = None  # type: ignore[assignment]  # as if it had none

    monkeypatch.setattr("server.engines.registry.create", lambda *_: Forgetless(cloning=True))
    with pytest.raises(EngineError, match="tells of cloning"):
        start_engine("tone", {"cloning": True})


# ---- what is deleted ----


async def test_nothing_is_kept_of_a_voice_that_was_deleted(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    data = ToneEngine().make_voice(wav(300), "")
    voice, other = (store.add(**voice_fields(data=data)).id for _ in range(2))
    context = EngineContextCache(megabytes=1)
    engine = start_engine("tone", {"cloning": True}, context, store)
    assert isinstance(engine, ToneEngine)
    keys = [BlockKey("f", name, (), ("a",)) for name in (voice, other)]
    for key in keys:
        context.put(key, "state", 100)
    async with in_process(engine, context_cache=context) as inner:
        cache = AudioCache(2**20)
        pool = CachedPool(inner, cache)
        for name in (voice, other):
            await collect(pool.synthesize(request(voice=name)))
        assert cache.size.entries == 2
        at_work = pool.synthesize(request("你好，世界，", voice=voice))
        first = await anext(at_work)
        assert store.remove(voice, "ann")
        pool.forget_voice(voice)
        rest = await collect(at_work)  # what is at work may finish ...
        assert pcm([first, *rest])
        assert cache.size.entries == 1  # ... but is not kept
        assert context.get(keys[0]) is None
        context.put(keys[0], "state", 100)
        assert context.get(keys[0]) is None
        assert context.get(keys[1]) == "state"
        with pytest.raises(EngineError, match="is gone"):
            await collect(pool.synthesize(request(voice=voice)))
        assert pcm(await collect(pool.synthesize(request(voice=other))))


# ---- worker processes ----


@asynccontextmanager
async def one_worker(folder: Path, **options: Any) -> AsyncIterator[Any]:
    async with processes(1, {"cloning": True, **options}, voices=str(folder)) as running:
        async with connected(running.paths) as pool:
            yield running, pool


async def test_a_worker_learns_speaks_and_forgets(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    async with one_worker(tmp_path) as (_, pool):
        data = await pool.make_voice(wav(300), "你好")
        assert pitch_of(data) == pytest.approx(300, abs=1)
        with pytest.raises(ValueError, match="3 to 30 s long, not 1"):
            await pool.make_voice(wav(seconds=1), "")
        voice = store.add(**voice_fields(data=data)).id
        low = pcm(await collect(pool.synthesize(request("你，", voice=voice))))
        expected = pcm(await collect(pool.synthesize(request("你，", voice="tone-low"))))
        assert strongest_hz(low) / strongest_hz(expected) == pytest.approx(300 / 220, rel=0.02)
        store.remove(voice, "ann")
        with pytest.raises(EngineError, match="is gone"):
            await _speak_on(pool, voice)


async def _speak_on(pool: EnginePool, voice: str) -> None:
    """Until the worker has noticed."""
    async with asyncio.timeout(10):
        while True:
            await collect(pool.synthesize(request("你，", voice=voice)))
            await asyncio.sleep(0.05)


async def test_a_worker_that_dies_while_it_learns_is_no_fault_of_the_recording(tmp_path: Path) -> None:
    async with one_worker(tmp_path) as (running, pool):
        (pid,) = running.pids
        os.kill(pid, signal.SIGSTOP)
        learning = asyncio.ensure_future(pool.make_voice(wav(), ""))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PoolUnavailable, match="gone"):
            await learning
        assert time.monotonic() - began < 5
        with pytest.raises(PoolUnavailable, match="no worker"):
            await pool.make_voice(wav(), "")
