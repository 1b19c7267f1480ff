"""What Python's garbage collector looks through while a server serves."""

import asyncio
import gc

from server.app import Server
from server.running import serve
from server.settings import Settings


async def test_what_is_loaded_at_the_start_is_never_looked_through_again() -> None:
    stop = asyncio.Event()
    left: list[int] = []

    def started(_: Server) -> None:
        left.append(len(gc.get_objects()))  # without those that are spared
        stop.set()

    gc.unfreeze()  # what the suite spares itself
    before = len(gc.get_objects())
    try:
        await serve(Settings(engine="tone", port=0), started, stop=stop)
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
    assert left[0] < before / 10
