"""Clients who come and go at random for a few seconds: everything they hear is exact, and nothing of them stays.
`make soak` goes on for ten minutes, looks at the memory too, and kills workers (bench/churn.py).
"""

import asyncio
import os
from random import Random

import pytest
from structlog.testing import capture_logs

from bench._churn import Client, Tally, Wrong, expected_digests
from deploy.faulty_proxy import FaultyProxy
from tests.support.faults import PATIENCE_S, scene

SEED = int(os.environ.get("COSYSTREAM_CHURN_SEED", "1"))
CLIENTS = 20
SECONDS = 5.0
ROUNDS = 6  # at most, where a busy machine lets too little happen in one


async def test_clients_come_and_go() -> None:
    loop = asyncio.get_running_loop()
    before = len(asyncio.all_tasks())
    tally = Tally()
    with capture_logs() as lines:
        # Clients are back within a second, unless this process gets none of the processor's time.
        async with scene(resume_ttl_s=3.0, max_sessions=200) as there:
            assert there.server.listener is not None
            port = there.server.listener.port
            expected = await expected_digests(port)
            tasks = len(asyncio.all_tasks())

            async def one(number: int, until: float) -> None:
                async with FaultyProxy(port) as proxy:
                    await Client(port, proxy, Random(f"{SEED}:{number}"), expected, tally).live(until)

            for round_ in range(ROUNDS):
                until = loop.time() + SECONDS
                await asyncio.gather(*(one(number + CLIENTS * round_, until) for number in range(CLIENTS)))
                if tally.faulty or (len(tally.done) == 8 and tally.complete > CLIENTS and tally.resumes > 0):
                    break
            await there.no_session_is_left(3.0 + PATIENCE_S)
            await no_more_tasks_than(tasks)
    assert not tally.faulty, "\n".join(tally.faults)
    assert len(tally.done) == 8
    assert tally.complete > CLIENTS
    assert tally.resumes > 0
    assert not [line for line in lines if line["log_level"] in ("warning", "error", "critical")]
    await no_more_tasks_than(before)


async def no_more_tasks_than(count: int) -> None:
    """A task that is ending may take another turn of the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while len(asyncio.all_tasks()) > count:
            await asyncio.sleep(0.01)


async def test_what_sounds_wrong_is_seen() -> None:
    """The test itself must be able to fail."""
    async with scene(alone=False) as there:
        assert there.server.listener is not None
        port = there.server.listener.port
        expected = dict.fromkeys(await expected_digests(port), "something else")
        async with FaultyProxy(port) as proxy:
            with pytest.raises(Wrong, match="does not sound"):
                await Client(port, proxy, Random(1), expected, Tally()).speak()
