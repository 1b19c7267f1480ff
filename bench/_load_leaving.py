"""What a client costs that has left: engine time that is still spent on it."""

import asyncio
import time
from typing import Final

from bench._common import percentile, run
from bench._load_measure import STEPS, scrape, total
from bench._load_scenes import Stage
from bench._load_talker import Talker
from bench._load_texts import at_once, long_text

LEFT_S: Final = 0.1  # of engine time at most
TIMES: Final = 8
AFTER_S: Final = 0.05  # after the first sound: the engine is at work on what comes next
SETTLE_S: Final = 1.0
WAYS: Final = ("says so", "its line is cut")


async def _spent_s(stage: Stage, *, abort: bool, plays: bool) -> float:
    talker = Talker(time.perf_counter(), plays=plays, options={})
    await talker.open(stage.server.port)
    talker.begin(at_once(long_text(2_000)), 0)
    speaking = asyncio.ensure_future(talker.speak())
    await talker.heard()
    await asyncio.sleep(AFTER_S)
    before = total(await asyncio.to_thread(scrape, stage.server), STEPS)
    talker.close(abort=abort)
    await asyncio.sleep(SETTLE_S)
    after = total(await asyncio.to_thread(scrape, stage.server), STEPS)
    speaking.cancel()
    await asyncio.gather(speaking, return_exceptions=True)
    return after - before


def leaving(stage: Stage) -> None:
    """Clients leave while the engine works for them, listeners and collectors, in both ways. What the engine does while
    the metrics are read just before counts, too.
    """
    for abort, way in enumerate(WAYS):
        for plays in (True, False):
            who = "listener" if plays else "collector"
            times = [run(_spent_s(stage, abort=bool(abort), plays=plays)) for _ in range(TIMES)]
            name = f"a {who} leaves in mid-speech and {way}: engine time after it"
            stage.report.add(f"{name}, p50", percentile(times, 0.5), "s")
            stage.report.add("  most", max(times), "s", stage.limit(LEFT_S))
