"""A session goes on in another process in the middle of what an engine failed at: with the same samples, though nothing
fails any more.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from tests.integration.test_sessions import eventually
from tests.support.returning import Returning, cut_all
from tests.support.server import bare_client, running, url_of

TEXT = "你好，世界。坏的天气，我们去公园散步。再见。"
STRIDE = 10_000
FAILS = {"script": [{"action": "fail", "match": "坏", "at": 1}]}


@pytest.fixture(autouse=True)
async def no_connection_left() -> AsyncIterator[None]:
    yield
    await cut_all()


@pytest.fixture(scope="module")
def whole() -> bytes:
    """What is heard where nothing is restarted."""
    return asyncio.run(as_it_was())


async def as_it_was() -> bytes:
    async with running(engine_options=FAILS) as server, bare_client(url_of(server), open=c.Open()) as client:
        await client.say(1, TEXT)
        await client.until(s.Done)
        return client.pcm(1)


@pytest.mark.parametrize("samples", [100, 20_050, 28_000, 34_000, 45_000])
async def test_what_was_recovered_is_recovered_in_the_same_way(tmp_path: Path, whole: bytes, samples: int) -> None:
    settings: dict[str, Any] = {"store": f"file:{tmp_path / 'sessions'}"}
    async with running(engine_options=FAILS, **settings) as server:
        client = Returning(url_of(server))
        await client.open(max_lead_ms=None)
        await client.say(1, TEXT)
        for _ in range(samples // STRIDE):
            await client.samples(STRIDE)
            await client.ack()
        await client.samples(samples % STRIDE)
        await eventually(lambda: b'degraded_segments_total{outcome="' in server.metrics.render())
        await asyncio.sleep(0.1)  # the rest is rendered and written down
        client.vanish()
    async with running(**settings) as server:
        client.url = url_of(server)
        assert isinstance(await client.resume(), s.Resumed)
        done = await client.until(s.Done)
        assert "failed_segments_total{" not in server.metrics.render().decode()
    assert bytes(client.pcm[1]) == whole
    ends = [m for m in client.messages if isinstance(m, s.SegmentEnd)]
    assert [end.degraded for end in ends] == [end.reason != "" for end in ends]
    assert sum(end.degraded for end in ends) == 1
    digest, at = hashlib.sha256(), 0
    for end in ends:
        part = whole[2 * at : 2 * (at + end.samples)]
        assert hashlib.sha256(part).hexdigest() == end.digest
        digest.update(hashlib.sha256(part).digest())
        at += end.samples
    assert digest.hexdigest() == done.digest


async def test_a_process_that_dies_in_the_middle_of_a_failure(tmp_path: Path) -> None:
    """What the next one makes of the rest may differ; nothing is said twice, and it comes to an end."""
    settings: dict[str, Any] = {"store": f"file:{tmp_path / 'sessions'}"}
    async with running(engine_options={**FAILS, "step_delay_ms": 40}, **settings) as server:
        client = Returning(url_of(server))
        await client.open(max_lead_ms=None)
        await client.say(1, TEXT)
        await client.samples(26_000)
        client.vanish()
    async with running(**settings) as server:
        client.url = url_of(server)
        assert isinstance(await client.resume(), s.Resumed)
        done = await client.until(s.Done)
    assert len(client.pcm[1]) == 2 * done.samples
