"""`resume` message by message: what goes on exactly where it stopped, what is refused, and that this harms nobody."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame
from server.gateway.auth import add_key
from tests.support.faults import Scene, scene
from tests.support.resumer import EVERYTHING, Resumer, resumer
from tests.support.server import url_of

FIVE = "第一句话。第二句话。 Sentence number three. 第四句话。最后一句话。"  # 4 s of audio
PAUSE_S = 0.05


@asynccontextmanager
async def session(**settings: Any) -> AsyncIterator[tuple[Scene, Resumer, bytes]]:
    """A scene, an open session, and what `FIVE` sounds like."""
    async with scene(**settings) as there:
        undisturbed = await there.undisturbed(FIVE)
        async with resumer(url_of(there.server)) as bare:
            yield there, bare, undisturbed.pcm


async def to_the_end(bare: Resumer, pcm: bytes) -> s.Done:
    """Everything comes, and is what it should be."""
    done = await bare.until(s.Done)
    assert bytes(bare.pcm) == pcm
    assert done.samples == len(pcm) // 2
    ends = [event.segment for event in bare.events if isinstance(event, s.SegmentEnd)]
    assert ends == list(range(5))
    return done


# Where the line may be cut


async def test_after_the_text_before_the_first_sound() -> None:
    async with session(engine_options={"step_delay_ms": 30}) as (_, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until(s.SeqAck)
        bare.abort()
        assert not bare.pcm
        await asyncio.sleep(PAUSE_S)
        await bare.resume()
        await to_the_end(bare, pcm)


@pytest.mark.parametrize("pause_s", [0.0, PAUSE_S, 0.5])
async def test_in_the_middle(pause_s: float) -> None:
    async with session() as (_, bare, pcm):
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


async def came(bare: Resumer) -> list[Any]:
    """What comes in a moment, but for the mark of the end: whether that arrived `resume` does not say."""
    found = []
    with contextlib.suppress(TimeoutError):
        while True:
            found.append(await bare.receive(0.15))
    return [item for item in found if not (isinstance(item, AudioFrame) and item.count == 0)]


async def drain(bare: Resumer) -> None:
    """Whatever still comes, until the server ends the connection."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await bare.client.receive()


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


# Who may


async def test_two_at_once() -> None:
    async with session() as (there, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until_bytes(48_000)
        bare.abort()
        rivals = [Resumer(bare.url, state=bare.state, pcm=bytearray(bare.pcm)) for _ in range(2)]
        for rival in rivals:
            rival.events = list(bare.events)
            await rival.dial()
        answers = await asyncio.gather(*(rival.ask_here() for rival in rivals), return_exceptions=True)
        last = next(answer for answer in answers if isinstance(answer, s.Resumed) and answer.generation == 3)
        winner = rivals[answers.index(last)]
        loser = rivals[1 - answers.index(last)]
        winner.accept(last)
        await to_the_end(winner, pcm)
        await drain(loser)  # it had generation 2 for a moment, and was cut
        assert all(frame.generation == 2 for frame in loser.client.frames)
        assert there.server.sessions.taken == 1
        await winner.close()


async def test_a_wrong_token_disturbs_nobody() -> None:
    async with session() as (_, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until_bytes(48_000)
        for token in ("wrong", bare.state.token[:-1], bare.state.token + "a", bare.state.token.swapcase()):
            assert (await bare.refused(token=token)).reason == "auth"
        await to_the_end(bare, pcm)


async def test_an_old_token_is_void_after_the_first_ack() -> None:
    async with session() as (_, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until_bytes(20_000)
        old = bare.state.token
        bare.abort()
        await bare.resume()
        await bare.until_bytes(40_000)
        await bare.ack()
        await asyncio.sleep(PAUSE_S)
        assert (await bare.refused(token=old)).reason == "auth"
        await to_the_end(bare, pcm)


async def test_another_principal_s_token(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    ours, theirs = add_key(keys, "ours"), add_key(keys, "theirs")
    async with scene(keys=keys) as there:
        url = url_of(there.server)
        mine: dict[str, Any] = {"additional_headers": {"Authorization": f"Bearer {ours}"}}
        async with resumer(url, **mine) as bare:
            undisturbed = await there.undisturbed(FIVE, api_key=ours)
            await bare.say(1, FIVE)
            await bare.until_bytes(48_000)
            bare.options = {"additional_headers": {"Authorization": f"Bearer {theirs}"}}
            assert (await bare.refused()).reason == "auth"
            bare.options = {}
            assert (await bare.refused(api_key=theirs)).reason == "auth"
            await bare.until_bytes(60_000)
            bare.abort()
            resumed = await bare.ask(api_key=ours)
            assert isinstance(resumed, s.Resumed)
            bare.accept(resumed)
            await to_the_end(bare, undisturbed.pcm)


async def test_without_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    ours = add_key(keys, "ours")
    async with scene(keys=keys) as there:
        mine: dict[str, Any] = {"additional_headers": {"Authorization": f"Bearer {ours}"}}
        async with resumer(url_of(there.server), **mine) as bare:
            stranger = Resumer(bare.url)
            await stranger.dial()
            await stranger.client.send(bare.state)
            error = await stranger.client.receive()
            assert isinstance(error, s.Error)
            assert error.code == "unauthorized"
            await stranger.close()


# What is refused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"session": "no-such-session"}, "unknown"),
        ({"epoch": 7}, "epoch"),
        ({"generation_seen": 9}, "range"),
        ({"next_sample": 2**40}, "range"),
        ({"next_sample": 0}, "range"),  # that was acked
        ({"events_seen": 2**40}, "range"),
        ({"events_seen": 0}, "range"),  # those were acked
        ({"utterance": 2}, "range"),
        ({"utterance": 0}, "range"),
        ({"played_sample": 2**40}, "range"),
    ],
)
async def test_a_position_that_cannot_be(changes: dict[str, Any], reason: str) -> None:
    async with session() as (there, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until_bytes(48_000)
        await bare.ack()
        await bare.until_bytes(60_000)
        await asyncio.sleep(PAUSE_S)
        failed = await bare.refused(**changes)
        assert failed.reason == reason
        await bare.until_bytes(70_000)  # the live connection heard nothing of it
        bare.abort()
        await asyncio.sleep(PAUSE_S)
        assert (await bare.refused(**changes)).reason == reason  # nor is the one that waits disturbed
        await bare.resume()
        await to_the_end(bare, pcm)
        assert there.server.sessions.taken == 1


async def test_one_connection_may_not_guess_for_ever() -> None:
    async with session() as (there, bare, pcm):
        await bare.say(1, FIVE)
        guesser = Resumer(bare.url, state=bare.state)
        await guesser.dial()
        for guess in range(50):
            await guesser.client.send(replace(bare.state, token=f"guess {guess}"))
        await drain(guesser)
        assert len(guesser.client.messages) < 20
        await to_the_end(bare, pcm)
        assert there.server.sessions.taken == 1


async def test_forged_acks_change_nothing() -> None:
    async with session() as (there, bare, pcm):
        await bare.say(1, FIVE)
        await bare.until_bytes(20_000)
        bare.abort()
        await bare.resume()
        await bare.ack(generation=1, next_sample=5)  # of the connection before: ignored
        await bare.ack(generation=1, next_sample=2**50)
        await bare.ack(next_sample=10)  # older than what is known: ignored
        await to_the_end(bare, pcm)
        assert there.server.sessions.taken == 1


@pytest.mark.parametrize("changes", [{"next_sample": 2**50}, {"event": 2**50}, {"utterance": 2}])
async def test_an_ack_of_what_was_never_sent_ends_the_session(changes: dict[str, Any]) -> None:
    async with session(engine_options={"step_delay_ms": 20}) as (there, bare, _):
        await bare.say(1, FIVE)
        await bare.until_bytes(20_000)
        await bare.ack(**changes)
        error = await bare.until(s.Error)
        assert error.code == "bad_ack"
        await drain(bare)
        await there.no_session_is_left()
        assert (await bare.refused()).reason == "unknown"


async def test_resume_on_an_open_session_is_an_error() -> None:
    async with session() as (_, bare, _):
        await bare.client.send(bare.state)
        error = await bare.receive()
        assert isinstance(error, s.Error)
        assert error.code == "unexpected"
