"""A busy task lets the others run."""

import asyncio

import pytest

from server.gateway.turns import BYTES, STEPS, Turns


@pytest.mark.parametrize(("steps", "size"), [(STEPS, 0), (1, BYTES)])
async def test_after_enough_work_it_is_the_others_turn(steps: int, size: int) -> None:
    turns = Turns()
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "other")
    for _ in range(steps - 1):
        await turns.step()
    assert "other" not in ran
    await turns.step(size)
    assert "other" in ran
