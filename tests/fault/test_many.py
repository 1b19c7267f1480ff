"""Many drops, many sessions: nothing is lost, and nothing grows beyond what was allowed."""

import asyncio
import os
import random
from typing import Any

from deploy.faulty_proxy import DOWN, UP, Connection, Cut
from protocol import server_messages as s
from tests.support.faults import Scene, descriptors, gauge, prove, scene, speak
from tests.support.resumer import Resumer
from tests.support.server import url_of

# `make soak` asks for a thousand.
DROPS = int(os.environ.get("COSYSTREAM_SOAK_DROPS", "50"))
WORDS = ("山高水远，", "天蓝云白。", "a line that breaks, ", "再说一遍！", "and goes on. ", "十二个字的句子在这里。")
TEXT = "第一句。第二句。 And a third one. "  # 1.9 s of audio
MIB = 1_048_576


async def test_many_drops_over_one_long_text() -> None:
    await asyncio.gather(many_drops("pcm", DROPS, 90_000), many_drops("opus", DROPS // 2, 9_000))


async def many_drops(format_: str, drops: int, most: int) -> None:
    """`most`: bytes before a cut. Far fewer than one message has, and no connection would bring anything new."""
    chance = random.Random(drops)
    hows = (Connection.reset, Connection.reset, Connection.finish, Connection.half_open)
    text = "".join(chance.choice(WORDS) for _ in range(4 * drops + 20))
    options: dict[str, Any] = {"format": format_, "bitrate": 32_000, "decode": False, "patience_s": 20 + drops / 5}
    async with scene(alone=False, max_sessions=4) as there:
        undisturbed = await there.undisturbed(text, **options)
        for _ in range(drops):
            way, least, up_to = (DOWN, 1_400, most) if chance.random() < 0.92 else (UP, 600, 800)
            there.proxy.cut_next(Cut(way, chance.choice(hows), byte=chance.randrange(least, up_to)))
        heard = await speak(there.proxy.url, text, **options)
        prove(heard, undisturbed)
        assert not there.proxy._cuts
        assert heard.line.resumes > drops // 2
        assert gauge(there.server, "cosystream_sessions_open") <= 1


async def test_a_hundred_sessions_without_connection_stay_within_the_budget() -> None:
    count, budget_mb = 100, 4
    async with scene(resume_budget_mb=budget_mb, resume_ttl_s=60, max_sessions=count) as there:
        undisturbed = await there.undisturbed(TEXT)
        before = descriptors()
        left = await _leave(there, count)
        assert descriptors() <= before
        sessions = there.server.sessions
        assert sessions._waiting.bytes <= budget_mb * MIB
        waiting = int(gauge(there.server, "cosystream_sessions_detached"))
        assert 20 < waiting < count
        answers = [await each.ask() for each in left]
        refused = [answer.reason for answer in answers if isinstance(answer, s.ResumeFailed)]
        assert refused == ["evicted"] * (count - waiting)
        assert all(isinstance(answer, s.ResumeFailed) for answer in answers[: count - waiting])  # the oldest went first
        for each, answer in zip(left, answers, strict=True):
            if isinstance(answer, s.Resumed):
                each.accept(answer)
                await each.until(s.Done)
                assert bytes(each.pcm) == undisturbed.pcm
            await each.close()


async def _leave(there: Scene, count: int) -> list[Resumer]:
    """So many sessions, each left by its client in mid-sentence."""
    left = []
    for _ in range(count):
        bare = Resumer(url_of(there.server))
        await bare.open()
        await bare.say(1, TEXT)
        await bare.until_bytes(10_000)
        bare.abort()
        left.append(bare)
    async with asyncio.timeout(10):
        while there.server.listener is not None and there.server.listener.connection_count:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # the last ones are made to their end
    return left


async def test_a_session_without_connection_makes_way_for_one_with_a_client() -> None:
    async with scene(max_sessions=2, resume_ttl_s=60) as there:
        first, second = await _leave(there, 2)
        heard = await speak(url_of(there.server), TEXT)
        assert heard.done is not None
        assert (await first.refused()).reason == "evicted"
        await second.resume()
        await second.close()


async def test_strangers_who_ask_for_sessions_cost_nothing() -> None:
    async with scene() as there:
        bare = Resumer(url_of(there.server))
        for _ in range(40):
            assert (await _stranger(bare)).reason == "unknown"
        assert there.server.sessions.taken == 0
        assert not there.server.sessions._ended
        assert not there.server.sessions._claiming


async def _stranger(bare: Resumer) -> s.ResumeFailed:
    answer = await bare.ask(session="nobody", token="nothing")
    assert isinstance(answer, s.ResumeFailed)
    await bare.close()
    return answer
