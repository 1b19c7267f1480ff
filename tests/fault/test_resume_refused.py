"""Who may resume a session, what is refused, and that this harms nobody."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol import server_messages as s
from server.gateway.auth import add_key
from tests.support.faults import scene
from tests.support.resume_steps import FIVE, PAUSE_S, drain, session, to_the_end
from tests.support.resumer import Resumer, resumer
from tests.support.server import url_of


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


async def test_a_position_that_cannot_be() -> None:
    cases: Sequence[tuple[dict[str, Any], str]] = (
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
    )
    await asyncio.gather(*(a_position_that_cannot_be(changes, reason) for changes, reason in cases))


async def a_position_that_cannot_be(changes: dict[str, Any], reason: str) -> None:
    """Is refused, and disturbs nobody."""
    async with session(alone=False) as (there, bare, pcm):
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


async def test_an_ack_of_what_was_never_sent_ends_the_session() -> None:
    cases: Sequence[dict[str, Any]] = ({"next_sample": 2**50}, {"event": 2**50}, {"utterance": 2})
    await asyncio.gather(*(an_ack_of_what_was_never_sent(changes) for changes in cases))


async def an_ack_of_what_was_never_sent(changes: dict[str, Any]) -> None:
    """It cannot be honest."""
    async with session(alone=False, engine_options={"step_delay_ms": 20}) as (there, bare, _):
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
