"""The line breaks while the real client listens: it hears every sample once, as if nothing had happened."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import client
from deploy.faulty_proxy import DOWN, UP, Connection, Cut, Direction
from tests.support.faults import SHORT, Heard, Scene, gauge, hear, prove, scene, speak
from tests.support.loops import each_loop

LONG = "山高水远，天蓝云白，风轻日暖。 The line goes down, and the sentence goes on. " * 12  # 60 s of audio


@each_loop
async def test_a_connection_that_dies() -> None:
    hows = (Connection.reset, Connection.finish, Connection.half_open, Connection.silence)
    await asyncio.gather(*(a_connection_that_dies(how) for how in hows))


async def a_connection_that_dies(how: Callable[[Connection], None]) -> None:
    """In the middle of the audio."""
    async with scene(alone=False, resume_ttl_s=3.0) as there:
        there.proxy.cut_next(Cut(DOWN, how, byte=48_000))
        heard = await there.speak()
        assert heard.line.resumes == 1
        assert len(heard.notices) == 2
        assert gauge(there.server, "cosystream_resumes_total") == 1


async def test_several_cuts() -> None:
    await asyncio.gather(
        *(pcm_goes_on_at_the_next_sample(rate) for rate in (8_000, 22_050, 48_000)),
        *(opus_goes_on_at_the_next_packet(rate) for rate in (8_000, 24_000, 48_000)),
        decoded_opus_has_the_same_length_and_no_seam(),
        three_ways_to_die_in_one_sentence(),
        nothing_is_lost_where_the_text_is_still_written(),
    )


async def pcm_goes_on_at_the_next_sample(rate: int) -> None:
    """After three cuts."""
    async with scene(alone=False) as there:
        there.proxy.cut_next(*[Cut(DOWN, Connection.reset, byte=byte) for byte in (2_501, 8_002, 6_503)])
        heard = await there.speak(sample_rate=rate)
        assert heard.line.resumes == 3


async def opus_goes_on_at_the_next_packet(rate: int) -> None:
    """After three cuts."""
    async with scene(alone=False) as there:
        there.proxy.cut_next(*[Cut(DOWN, Connection.reset, byte=byte) for byte in (2_500, 3_000, 2_500)])
        heard = await there.speak(sample_rate=rate, format="opus", bitrate=32_000, decode=False)
        assert heard.line.resumes == 3


async def decoded_opus_has_the_same_length_and_no_seam() -> None:
    """A new decoder is warmed up."""
    async with scene(alone=False) as there:
        options: dict[str, Any] = {"sample_rate": 48_000, "format": "opus", "bitrate": 32_000}
        undisturbed = await speak(there.proxy.url, SHORT, **options)
        there.proxy.cut_next(*[Cut(DOWN, Connection.reset, byte=byte) for byte in (2_500, 3_000, 2_500)])
        heard = await speak(there.proxy.url, SHORT, **options)
        assert heard.line.resumes == 3
        assert heard.done is not None
        assert len(heard.pcm) == len(undisturbed.pcm) == 2 * heard.done.samples
        apart = np.abs(np.frombuffer(heard.pcm, "<i2").astype(int) - np.frombuffer(undisturbed.pcm, "<i2"))
        assert apart.max() <= 600  # of about 10,000: what 80 ms of warming up leave of a new decoder's ignorance


async def three_ways_to_die_in_one_sentence() -> None:
    """And one of them again."""
    async with scene(alone=False) as there:
        hows = (Connection.reset, Connection.finish, Connection.half_open, Connection.reset)
        there.proxy.cut_next(*[Cut(DOWN, how, byte=20_000) for how in hows])
        heard = await there.speak()
        assert heard.line.resumes == 4


async def nothing_is_lost_where_the_text_is_still_written() -> None:
    """Cuts of what goes up."""

    async def slowly() -> AsyncIterator[str]:
        for character in SHORT:
            yield character
            await asyncio.sleep(0.005)

    async with scene(alone=False) as there:
        there.proxy.cut_next(*[Cut(UP, Connection.reset, byte=byte) for byte in (900, 900, 700, 700)])
        undisturbed = await there.undisturbed()
        heard = await speak(there.proxy.url, slowly())
        prove(heard, undisturbed)
        assert heard.line.resumes == 4


async def test_outages() -> None:
    holes = (a_hole_in_the_line(*ways) for ways in ((UP,), (DOWN,), (UP, DOWN)))
    await asyncio.gather(*holes, a_server_that_cannot_be_reached_for_a_while(), a_client_that_comes_too_late())


async def a_hole_in_the_line(*ways: Direction) -> None:
    """Longer than the client's patience; then a new connection works at once, the old one not yet."""
    async with scene(tcp_backoff=True, alone=False, resume_ttl_s=4.0, engine_options={"step_delay_ms": 10}) as there:
        undisturbed = await there.undisturbed(LONG[:400])
        speaking = asyncio.ensure_future(speak(there.proxy.url, LONG[:400]))
        while there.proxy.carried[DOWN] < 60_000:
            await asyncio.sleep(0.005)
        there.proxy.hole(*ways)
        await asyncio.sleep(1.4)
        there.proxy.heal()
        healed = time.monotonic()
        heard = await speaking
        prove(heard, undisturbed)
        assert next(when for when in heard.first_audio if when > healed) - healed < 0.8
        assert heard.line.resumes <= 1


async def test_what_is_no_fault() -> None:
    await asyncio.gather(a_hole_shorter_than_the_patience(), a_slow_reader(), a_narrow_line())


async def a_hole_shorter_than_the_patience() -> None:
    """It needs no new connection."""
    async with scene(alone=False, engine_options={"step_delay_ms": 5}) as there:
        undisturbed = await there.undisturbed(LONG[:200])
        speaking = asyncio.ensure_future(speak(there.proxy.url, LONG[:200]))
        while there.proxy.carried[DOWN] < 60_000:
            await asyncio.sleep(0.005)
        there.proxy.hole(UP, DOWN)
        await asyncio.sleep(0.6)
        there.proxy.heal()
        heard = await speaking
        prove(heard, undisturbed)
        assert (heard.line.resumes, there.proxy.accepted) == (0, 1)


async def a_server_that_cannot_be_reached_for_a_while() -> None:
    """The session waits for its client."""
    async with scene(alone=False, resume_ttl_s=3.0) as there:
        undisturbed = await there.undisturbed()

        def vanish(connection: Connection) -> None:
            there.proxy.refusing = True
            connection.reset()

        there.proxy.cut_next(Cut(DOWN, vanish, byte=48_000))
        speaking = asyncio.ensure_future(speak(there.proxy.url, SHORT))
        await asyncio.sleep(1.2)
        assert not speaking.done()
        there.proxy.refusing = False
        heard = await speaking
        prove(heard, undisturbed)
        assert heard.line.resumes == 1
        assert 1.0 < heard.line.outage_s < 2.0


async def test_a_cut_during_the_resume() -> None:
    """The second connection dies too, somewhere between its handshake and the first message after `resumed`."""
    places = [(UP, 0, 0), (UP, 1, -1), (UP, 1, 0), (UP, 1, 1), (DOWN, 0, 0), (DOWN, 1, -1), (DOWN, 1, 0), (DOWN, 1, 1)]
    await asyncio.gather(*(a_cut_during_the_resume(*place) for place in places))


async def a_cut_during_the_resume(direction: Direction, message: int, shift: int) -> None:
    async with scene(alone=False) as there:
        there.proxy.cut_next(
            Cut(DOWN, Connection.reset, byte=48_000), Cut(direction, Connection.reset, message=message, shift=shift)
        )
        heard = await there.speak()
        assert there.proxy.accepted == 3
        assert heard.line.resumes <= 2


async def a_slow_reader() -> None:
    """The program takes its time; the server waits."""
    async with scene(alone=False, detach_after_s=0.5) as there:
        undisturbed = await there.undisturbed()
        async with client.connect(there.proxy.url) as session:
            utterance = await session.start()
            await utterance.write(SHORT)
            await utterance.end()
            heard = Heard()
            parts = []
            async for item in utterance:
                if isinstance(item, client.Audio):
                    parts.append(item.pcm)
                    await asyncio.sleep(0.02)
            heard.pcm = b"".join(parts)
            assert heard.pcm == undisturbed.pcm
            assert session.line.resumes == 0


async def a_narrow_line() -> None:
    """Twice as fast as the audio."""
    async with scene(alone=False, buffer_bytes=8_192) as there:
        there.proxy.change(UP, DOWN, delay_s=0.02)
        there.proxy.change(DOWN, rate=100_000)
        heard = await there.speak()
        assert heard.line.resumes == 0


async def test_one_end_that_reads_nothing_hears_everything_in_the_end() -> None:
    await asyncio.gather(a_client_behind_a_zero_window(), a_server_behind_a_zero_window())


async def a_client_behind_a_zero_window() -> None:
    """Its audio comes in the end."""
    async with scene(alone=False, detach_after_s=0.6, resume_ttl_s=3.0, buffer_bytes=8_192) as there:
        text = LONG[:400]
        undisturbed = await there.undisturbed(text)
        speaking = asyncio.ensure_future(speak(there.proxy.url, text))
        connection = await there.proxy.connection(1)
        while connection.pipes[DOWN].delivered < 20_000:
            await asyncio.sleep(0)
        connection.stall(DOWN)
        heard = await speaking
        prove(heard, undisturbed)
        assert heard.line.resumes == 1


async def a_server_behind_a_zero_window() -> None:
    """Its text comes in the end."""
    async with scene(alone=False, buffer_bytes=8_192, resume_ttl_s=3.0) as there:
        undisturbed = await there.undisturbed()
        async with client.connect(there.proxy.url) as session:
            (await there.proxy.connection(1)).stall(UP)
            utterance = await session.start()
            await utterance.write(SHORT)
            await utterance.end()
            heard = Heard()
            async with asyncio.timeout(5):
                await hear(utterance, heard)
            prove(heard, undisturbed)
            assert session.line.resumes == 1


async def test_cancel_and_end_are_not_lost_with_the_line() -> None:
    async with scene(engine_options={"step_delay_ms": 10}) as there, client.connect(there.proxy.url) as session:
        first = await session.start()
        await first.write(LONG)
        async for item in first.audio():
            if item.end_sample > 24_000:
                break
        connection = await there.proxy.connection(1)
        connection.hole(UP)
        await first.cancel(12_000)
        second = await session.start()
        await second.write("好。")
        await second.end()
        await asyncio.sleep(0.1)
        connection.reset()
        async with asyncio.timeout(5):
            rest = [item async for item in first.audio()]
            assert sum([audio.count async for audio in second.audio()]) > 0
        assert rest == []
        assert first.result is not None
        assert first.result.type == "cancelled"


async def test_without_resume_the_same_cut_is_an_error() -> None:
    async with scene(resume_ttl_s=0.3) as there:
        there.proxy.cut_next(Cut(DOWN, Connection.reset, byte=48_000))
        with pytest.raises(client.ServerLost):
            await speak(there.proxy.url, SHORT, resume=False)


async def a_client_that_comes_too_late() -> None:
    """It is told, and speaks the rest."""
    async with scene(alone=False, resume_ttl_s=0.3) as there:

        def vanish(connection: Connection) -> None:
            there.proxy.refusing = True
            connection.reset()

        there.proxy.cut_next(Cut(DOWN, vanish, byte=48_000))
        speaking = asyncio.ensure_future(_restarted(there))
        await asyncio.sleep(1.0)
        there.proxy.refusing = False
        notices, restarts = await speaking
        assert restarts == 1
        assert any("character" in notice for notice in notices)


async def _restarted(there: Scene) -> tuple[list[str], int]:
    """Speaks; the notices and how often the rest was spoken by a new session."""
    notices: list[str] = []
    async with client.connect(there.proxy.url, on_notice=notices.append) as session:
        utterance = await session.start()
        await utterance.write(SHORT)
        await utterance.end()
        async with asyncio.timeout(10):
            async for _ in utterance:
                pass
        return notices, session.line.restarts
