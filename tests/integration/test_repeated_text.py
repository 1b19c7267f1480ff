"""Texts that come again, end to end: they sound the same, come at once, and take no work from the engine."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from server.app import Server
from tests.support.resumer import resumer
from tests.support.server import BareClient, bare_client, running, url_of

NOTICE = "各位乘客请注意，开往北京的列车即将进站，请站在黄线以内。"
EVERYTHING = c.Open(max_lead_ms=None, max_buffer_delay_ms=None)


@asynccontextmanager
async def station(**settings: Any) -> AsyncIterator[tuple[Server, BareClient]]:
    """A server with an audio cache, and an open session."""
    async with (
        running(**{"audio_cache_mb": 32, **settings}) as server,
        bare_client(url_of(server), open=EVERYTHING) as client,
    ):
        yield server, client


async def said(client: BareClient, utterance: int, text: str) -> tuple[bytes, list[s.Word], s.Done]:
    await client.say(utterance, text)
    done = await client.until(s.Done)
    timings = [m for m in client.messages if isinstance(m, s.Timing) and m.utterance == utterance]
    return client.pcm(utterance), [word for timing in timings for word in timing.words], done


def figure(server: Server, series: str) -> float:
    """Of the metrics."""
    lines = server.metrics.render().decode().splitlines()
    (value,) = [float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == series]
    return value


def steps(server: Server) -> float:
    return figure(server, 'cosystream_step_seconds_count{engine="tone"}')


async def test_an_announcement_that_repeats_is_the_same_and_takes_no_step() -> None:
    async with station() as (server, client):
        pcm, words, done = await said(client, 1, NOTICE)
        before = steps(server)
        again, words_again, done_again = await said(client, 2, NOTICE)
        assert (again, words_again) == (pcm, words)
        assert (done_again.samples, done_again.digest) == (done.samples, done.digest)
        async with bare_client(url_of(server), open=EVERYTHING) as other:
            assert (await said(other, 1, "\n" + NOTICE))[0] == pcm
        moved = [(word.text, word.start + 1, word.end + 1, word.first_sample) for word in words]
        timings = [m for m in other.messages if isinstance(m, s.Timing)]
        assert [(w.text, w.start, w.end, w.first_sample) for m in timings for w in m.words] == moved
        await asyncio.sleep(0.05)
        assert steps(server) == before > 0
        segments = sum(isinstance(m, s.SegmentEnd) for m in other.messages)
        assert figure(server, 'cosystream_cache_hits_total{cache="audio"}') == 2 * segments
        assert figure(server, 'cosystream_cache_misses_total{cache="audio"}') == segments
        assert figure(server, 'cosystream_cache_entries{cache="audio"}') == segments
        assert figure(server, 'cosystream_cache_bytes{cache="audio"}') > len(pcm)
        assert figure(server, 'cosystream_cache_evictions_total{cache="audio"}') == 0
        assert figure(server, 'cosystream_cache_misses_total{cache="context"}') == 0
    assert hashlib.sha256(b"".join(segment_digests(client, 1))).hexdigest() == done.digest


def segment_digests(client: BareClient, utterance: int) -> list[bytes]:
    ends = [m for m in client.messages if isinstance(m, s.SegmentEnd) and m.utterance == utterance]
    return [bytes.fromhex(end.digest) for end in ends]


async def test_an_announcement_that_repeats_comes_at_once() -> None:
    """The engine takes 0.2 s for a step: whoever asked it would wait as long."""
    async with station(engine_options={"step_delay_ms": 200}) as (_, client):
        waits = []
        for utterance in (1, 2):
            started = time.monotonic()
            await client.say(utterance, NOTICE)
            while not client.pcm(utterance):
                await client.receive()
            waits.append(time.monotonic() - started)
            await client.until(s.Done)
    assert waits[0] >= 0.2
    assert waits[1] < waits[0] / 2


async def test_a_text_of_which_a_third_repeats_costs_a_third_less() -> None:
    """30 % of the sentences were said before; of the engine's seconds at least 25 % are saved."""
    new = [f"这是第{number}个句子，它只说一次。" for number in range(14)]
    refrain = "这一句会再来一次，听起来完全一样。"
    sentences = [sentence for place, each in enumerate(new) for sentence in ([each, refrain] if place % 2 else [each])]
    assert sentences.count(refrain) == 7
    assert round(6 / len(sentences), 1) == 0.3
    seconds = []
    for cache in (0, 32):
        async with station(audio_cache_mb=cache) as (server, client):
            pcm, _, _ = await said(client, 1, "".join(sentences))
            await asyncio.sleep(0.05)
            rendered = figure(server, 'cosystream_engine_audio_seconds_total{engine="tone"}')
            seconds.append((rendered, len(pcm)))
    assert seconds[0][1] == seconds[1][1]
    assert seconds[1][0] <= 0.75 * seconds[0][0]


async def test_texts_whose_first_64_tokens_are_the_same_keep_their_own_audio() -> None:
    lead = "甲乙丙丁戊己庚辛壬癸。" * 12  # then the listener has enough for a whole sentence
    start = lead + "天地玄黄宇宙洪荒日月盈昃辰宿列张" * 5
    async with station(engine_options={"max_tokens": 256}) as (server, client):
        told = [(await said(client, utterance, f"{start}{end}。"))[0] for utterance, end in enumerate("来去来去", 1)]
        begun = [m for m in client.messages if isinstance(m, s.SegmentBegin)]
        assert max(m.end - m.start for m in begun) == 82  # one token each
        assert figure(server, 'cosystream_cache_misses_total{cache="audio"}') == 3  # the short sentence, both long ones
    assert told[0] == told[2] != told[1] == told[3]


async def test_cancel_in_the_middle_of_what_is_known() -> None:
    async with station() as (_, client):
        pcm, _, _ = await said(client, 1, NOTICE * 4)
    async with station() as (server, client):
        await said(client, 1, NOTICE * 4)
        before = steps(server)
        await client.say(2, NOTICE * 4)
        while len(client.pcm(2)) < 20_000:
            await client.receive()
        await client.numbered(c.Cancel, played_sample=5_000)
        cancelled = await client.until(s.Cancelled)
        assert 5_000 <= cancelled.sample < len(pcm) // 2
        assert (await said(client, 3, NOTICE * 4))[0] == pcm
        assert steps(server) == before


@pytest.mark.parametrize("knows", [False, True], ids=["forgets", "knows"])
async def test_the_next_server_goes_on_with_the_same_samples(tmp_path: Path, knows: bool) -> None:
    """What was begun from memory is rendered anew by a server that has none, and the other way round."""
    settings = {"audio_cache_mb": 32, "store": f"file:{tmp_path}", "resume_ttl_s": 20.0}
    async with running(**settings) as server:
        async with bare_client(url_of(server), open=EVERYTHING) as client:
            pcm, _, done = await said(client, 1, NOTICE)
        async with resumer(url_of(server)) as bare:
            await bare.say(1, NOTICE)
            await bare.until_bytes(48_000)
            bare.abort()
            await server.stop()
            async with running(**settings) as later:
                if knows:
                    async with bare_client(url_of(later), open=EVERYTHING) as client:
                        assert (await said(client, 1, NOTICE))[0] == pcm
                bare.url = url_of(later)
                resumed = await bare.resume()
                assert resumed.from_sample == bare.state.next_sample > 0
                assert (await bare.until(s.Done)).digest == done.digest
                hits = figure(later, 'cosystream_cache_hits_total{cache="audio"}')
    assert bytes(bare.pcm) == pcm
    assert bool(hits) is knows


async def test_a_client_that_comes_back_hears_the_same_from_memory() -> None:
    async with station() as (server, client):
        pcm, _, done = await said(client, 1, NOTICE)
        async with resumer(url_of(server)) as bare:
            await bare.say(1, NOTICE)
            for count in (30_000, 90_000):
                await bare.until_bytes(count)
                bare.abort()
                await bare.resume()
            assert (await bare.until(s.Done)).digest == done.digest
    assert bytes(bare.pcm) == pcm


async def test_without_a_cache_the_engine_is_asked_again() -> None:
    async with station(audio_cache_mb=0) as (server, client):
        counts = [steps(server)]
        for utterance in (1, 2):
            await said(client, utterance, NOTICE)
            await asyncio.sleep(0.05)
            counts.append(steps(server))
        assert counts[2] - counts[1] == counts[1] - counts[0] > 0
        assert figure(server, 'cosystream_cache_misses_total{cache="audio"}') == 0
