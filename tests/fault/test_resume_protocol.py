"""`resume` message by message: wherever the line is cut, the session goes on exactly where it stopped."""

import asyncio
from dataclasses import replace

from protocol import client_messages as c
from protocol import server_messages as s
from tests.support.resume_steps import FIVE, PAUSE_S, came, session, to_the_end
from tests.support.resumer import EVERYTHING


async def test_after_the_text_before_the_first_sound() -> None:
    async with session(engine_options={"step_delay_ms": 30}) as (_, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until(s.SeqAck)
        bare.abort()
        assert not bare.pcm
        await asyncio.sleep(PAUSE_S)
        await bare.resume()
        await to_the_end(bare, pcm)


async def test_in_the_middle() -> None:
    await asyncio.gather(*(in_the_middle(pause_s) for pause_s in (0.0, PAUSE_S, 0.5)))


async def in_the_middle(pause_s: float) -> None:
    """The client comes back after so long."""
    async with session(alone=False) as (_, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until_bytes(48_000)
        bare.abort()
        await asyncio.sleep(pause_s)
        resumed = await bare.resume()
        assert (resumed.utterance, resumed.from_sample) == (1, bare.state.next_sample)
        assert resumed.generation == 2
        await to_the_end(bare, pcm)


async def test_between_the_last_sound_and_the_end() -> None:
    async with session() as (_, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until_bytes(len(pcm))
        while not isinstance(item := await bare.client.receive(), s.Done):
            if isinstance(item, s.EVENTS):
                bare.state = replace(bare.state, events_seen=item.event)
                bare.events.append(item)
        bare.abort()  # `done` was lost on the way
        await bare.resume()
        frames = len(bare.client.frames)
        await to_the_end(bare, pcm)
        assert all(frame.count == 0 for frame in bare.client.frames[frames:])


async def test_twice() -> None:
    async with session() as (_, bare, pcm):
        await bare.say(1, FIVE)
        for end in (48_000, 96_000):
            await bare.until_bytes(end)
            bare.abort()
            await bare.resume()
        await to_the_end(bare, pcm)


async def test_acked_audio_is_let_go_and_the_rest_comes() -> None:
    async with session() as (there, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until_bytes(len(pcm) - 10_000)
        bare.abort()
        await bare.resume()
        await to_the_end(bare, pcm)
        await bare.ack(played_sample=bare.state.next_sample)
        await asyncio.sleep(PAUSE_S)
        (live,) = there.server.sessions._live.values()
        assert live.session.delivery.ring.bytes == 0


async def test_too_late() -> None:
    async with session(resume_ttl_s=0.3) as (there, bare, _):
        await bare.say(1, FIVE)
        await bare.until_bytes(48_000)
        bare.abort()
        await asyncio.sleep(0.5)
        answer = await bare.ask()
        assert isinstance(answer, s.ResumeFailed)
        assert answer.reason == "expired"
        assert there.server.sessions.taken == 0
        await bare.client.send(EVERYTHING)  # the same connection may open another session
        assert isinstance(await bare.client.receive(), s.Opened)


# What may be lost on the way


async def test_a_lost_resumed_locks_nobody_out() -> None:
    async with session() as (_, bare, pcm):
        await bare.say(1, FIVE)
        bare.acks = False
        await bare.until_bytes(48_000)
        for _ in range(3):
            bare.abort()
            lost = await bare.ask()  # nothing of it arrives, so the old token is used again
            assert isinstance(lost, s.Resumed)
        bare.abort()
        resumed = await bare.resume(generation_seen=1)
        assert resumed.generation == 5
        bare.acks = True
        await to_the_end(bare, pcm)


async def test_the_last_ack_is_lost() -> None:
    async with session() as (_, bare, pcm):
        await bare.say(1, FIVE)
        await to_the_end(bare, pcm)
        bare.abort()  # `done` itself was not acked
        await bare.resume()
        assert await came(bare) == []
        await bare.say(2, "好。")
        assert (await bare.until(s.Done)).utterance == 2


async def test_nothing_is_new_and_resumed_twice_in_a_row() -> None:
    async with session() as (_, bare, pcm):
        await bare.say(1, FIVE)
        await to_the_end(bare, pcm)
        await bare.ack(played_sample=bare.state.next_sample)
        for _ in range(2):
            bare.abort()
            await bare.resume()
            await bare.ack(played_sample=bare.state.next_sample)
        assert await came(bare) == []
        await bare.say(2, "好。")
        assert (await bare.until(s.Done)).utterance == 2


async def test_a_session_that_never_said_anything() -> None:
    async with session() as (_, bare, pcm):
        bare.abort()
        resumed = await bare.resume()
        assert (resumed.utterance, resumed.from_sample, resumed.seq) == (0, 0, 0)
        await bare.say(1, FIVE)
        await to_the_end(bare, pcm)


async def test_numbered_messages_are_sent_again_and_taken_once() -> None:
    async with session() as (_, bare, pcm):
        await bare.client.numbered(c.Start, utterance=1)
        await bare.client.numbered(c.Text, text=FIVE[:10])
        await bare.until(s.SeqAck)
        bare.abort()
        resumed = await bare.resume()
        assert resumed.seq <= 2
        again: tuple[c.Numbered, ...] = (c.Start(1, 1), c.Text(2, FIVE[:10]), c.Text(3, FIVE[10:]), c.End(4))
        for message in again:
            await bare.client.send(message)
        await to_the_end(bare, pcm)
