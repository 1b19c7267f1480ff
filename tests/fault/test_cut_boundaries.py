"""The line is cut at the end of every message of a session, a byte before and a byte after it, in both directions."""

import asyncio
from collections.abc import Callable

import client
from deploy.faulty_proxy import DOWN, UP, Connection, Cut, Direction
from tests.support.faults import Scene, prove, scene, speak

TEXT = "你好。Bye."  # two segments, 0.9 s of audio
OPTIONS = {"frame_ms": 100.0}
MAX_MESSAGES = 60


async def cut_at(there: Scene, cut: Cut) -> bool:
    """Speak with the first connection cut there. Whether it was: the session may be over before."""
    undisturbed = await there.undisturbed(TEXT, **OPTIONS)
    number = there.proxy.accepted + 1
    there.proxy.cut_next(cut)
    try:
        heard = await speak(there.proxy.url, TEXT, **OPTIONS)
    except client.ConnectFailed:
        # Nothing was promised yet: `opened` did not arrive.
        assert cut.message is not None
        assert cut.message <= 1
        return True
    prove(heard, undisturbed)
    if there.proxy.accepted == number:
        assert heard.line.resumes == 0
        return False
    return True


async def test_every_boundary() -> None:
    await asyncio.gather(*(every_boundary(direction, shift) for direction in (UP, DOWN) for shift in (-1, 0, 1)))


async def every_boundary(direction: Direction, shift: int) -> None:
    """Of one direction, one after the other."""
    async with scene(alone=False, resume_ttl_s=0.5) as there:
        for message in range(MAX_MESSAGES):
            if not await cut_at(there, Cut(direction, Connection.reset, message=message, shift=shift)):
                break
        else:
            raise AssertionError("the session never ended")
        assert message > (4 if direction is UP else 12)


async def test_some_boundaries_in_other_ways() -> None:
    hows = (Connection.finish, Connection.half_open)
    await asyncio.gather(*(some_boundaries(direction, how) for direction in (UP, DOWN) for how in hows))


async def some_boundaries(direction: Direction, how: Callable[[Connection], None]) -> None:
    """Of one direction, one after the other."""
    async with scene(alone=False, resume_ttl_s=0.5) as there:
        for message in (0, 1, 2, 4, 5, 9):
            for shift in (-1, 0, 1):
                await cut_at(there, Cut(direction, how, message=message, shift=shift))
