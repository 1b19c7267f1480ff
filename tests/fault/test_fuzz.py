"""Malformed HTTP, handshakes, frames and messages by the thousand beside live sessions: nobody else notices, nothing
stays. `make soak` sends a hundred thousand (bench/fuzz.py); a failure names the attack that can be repeated alone.
"""

import asyncio
import logging
import os
from collections.abc import Iterator

import pytest
import uvloop
from structlog.testing import capture_logs

from bench import _fuzz_frames
from bench._fuzz import attack, perform_all
from bench._fuzz_attack import Attack, perform
from server.app import Server
from tests.support.faults import SHORT, Scene, prove, scene, speak
from tests.support.loops import each_loop
from tests.support.server import url_of

SEED = int(os.environ.get("COSYSTREAM_FUZZ_SEED", "1"))
COUNT = 750  # on each loop, and on each of them others
AT_ONCE = 32
LOUD = ("warning", "error", "critical")


def port_of(server: Server) -> int:
    assert server.listener is not None
    return server.listener.port


async def talk_on(there: Scene, over: asyncio.Event) -> int:
    """Texts one after the other, each of them whole; how many."""
    undisturbed = await there.undisturbed(SHORT)
    spoken = 0
    while not over.is_set():
        prove(await speak(url_of(there.server), SHORT), undisturbed)
        spoken += 1
        await asyncio.sleep(0.1)
    return spoken


@pytest.fixture(autouse=True)
def _clean_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A client's fault is no event for the operator, nor for the libraries that we use."""
    caplog.set_level(logging.WARNING)
    yield
    assert not caplog.records


@each_loop
async def test_attacks_beside_live_sessions() -> None:
    first = COUNT * isinstance(asyncio.get_running_loop(), uvloop.Loop)
    with capture_logs() as lines:
        async with scene(head_timeout_s=0.5, resume_ttl_s=0.5) as there:
            over = asyncio.Event()
            talking = asyncio.create_task(talk_on(there, over))
            tally = await perform_all(port_of(there.server), SEED, range(first, first + COUNT), at_once=AT_ONCE)
            over.set()
            assert await talking > 3
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.count == COUNT
    assert len(tally.names) > 25
    assert not [line for line in lines if line["log_level"] in LOUD]
    assert len(lines) < 1.5 * COUNT


def test_an_attack_can_be_repeated() -> None:
    assert all(attack(3, number) == attack(3, number) for number in range(300))
    assert len({attack(3, number) for number in range(300)}) > 200
    assert attack(4, 0) != attack(3, 0)


async def test_a_fault_of_the_server_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test itself must be able to fail."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("server.session.machine.Session._open", broken)
    opening = _fuzz_frames.OPEN
    async with scene(alone=False) as there:
        outcome = await perform(port_of(there.server), Attack("open", (opening,), upgraded=True))
    assert "internal" in outcome.fault
