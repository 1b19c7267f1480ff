"""The load generator: sessions in a process of their own, which gets a `Job` on its input and writes a `Load`.

    load = generate(Job(port, scripts, seconds=20, sessions=8))

It measures itself, too: where its own event loop was late, the server is not to blame.
"""

import asyncio
import gc
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench._common import percentile, run
from bench._load_plain_talker import PlainTalker
from bench._load_talker import Refused, Script, Spoken, Talker

ROOT: Final = Path(__file__).resolve().parents[1]
LAG_EVERY_S: Final = 0.02
START_S: Final = 20.0  # for the process to start and end


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked of a generator.

    Closed loop: `sessions` speak one script after the other, with a pause of `pause_s` on average in between; they
    begin spread over `spread_s`. Open loop: sessions that say one script come at random (Poisson), `rate` a second.
    `plays`: they listen in real time; else they collect audio as fast as it comes. `interrupt_s`: listeners interrupt
    so long after the first audio. `plain`: the server is `bench.plain_server`.
    """

    port: int
    scripts: Sequence[Script]
    seconds: float
    sessions: int = 0
    rate: float = 0.0
    seed: int = 1
    pause_s: float = 1.0
    spread_s: float = 0.0
    plays: bool = True
    interrupt_s: float | None = None
    plain: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Load:
    """What came of it. `samples`: of all audio that came; `busy_ms`: from connecting, or from the
    `start` that it answered, until `busy` was heard.
    """

    spoken: list[Spoken] = field(default_factory=list)
    busy_ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    arrivals: int = 0  # open loop: sessions that came
    speaking: int = 0  # most sessions at once that were admitted
    samples: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0  # of the generator
    lag_ms: float = 0.0  # p99 of how late the generator's event loop was


def generate(*jobs: Job) -> list[Load]:
    """Run generators side by side, each in a process of its own. Raises RuntimeError where one fails."""
    processes = []
    for job in jobs:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench._load_client"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(job))
        process.stdin.close()
        process.stdin = None
        processes.append(process)
    loads = []
    for job, process in zip(jobs, processes, strict=True):
        try:
            answer, _ = process.communicate(timeout=job.seconds + START_S)
        finally:
            process.kill()
        if process.returncode:
            raise RuntimeError(f"a load generator ended with status {process.returncode}")
        load: Load = pickle.loads(answer)  # noqa: S301  # from our own child
        loads.append(load)
    return loads


class Generator:
    """Runs one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.load = Load()
        self._chance = random.Random(job.seed)
        self._begun = time.perf_counter()
        self._talkers: set[Talker | PlainTalker] = set()
        self._lags: list[float] = []
        self._over = False  # what comes after it is not counted

    async def run(self) -> Load:
        """Until the time is over; what is still being said then is counted as far as it was heard."""
        job = self.job
        cpu = time.process_time()
        watching = asyncio.ensure_future(self._watch())
        working = asyncio.ensure_future(self._crowd() if job.sessions else self._arrivals())
        await asyncio.wait((working,), timeout=job.seconds)
        self.load.seconds = time.perf_counter() - self._begun
        self.load.cpu_s = time.process_time() - cpu
        self.load.samples += sum(talker.samples for talker in self._talkers)
        self._over = True
        watching.cancel()
        working.cancel()
        await asyncio.gather(watching, working, return_exceptions=True)
        if working.done() and not working.cancelled() and (error := working.exception()):
            raise error
        self.load.lag_ms = percentile(self._lags, 0.99)
        return self.load

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lags.append(1000 * max(0.0, time.perf_counter() - due))

    async def _crowd(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.job.sessions):
                group.create_task(self._again_and_again(number))

    async def _arrivals(self) -> None:
        async with asyncio.TaskGroup() as group:
            number = 0
            while True:
                await asyncio.sleep(self._chance.expovariate(self.job.rate))
                self.load.arrivals += 1
                group.create_task(self._visit([number]))
                number += 1

    async def _again_and_again(self, number: int) -> None:
        """One client of the closed loop: it stays, and comes back where it was refused."""
        job = self.job
        await asyncio.sleep(job.spread_s * number / job.sessions)
        own = random.Random(f"{job.seed} {number}")
        first = number  # so that neighbours say different things
        while True:
            wait = await self._visit((first + step for step in range(1 << 30)), own)
            await asyncio.sleep(wait)
            first += 1

    async def _visit(self, numbers: Any, own: random.Random | None = None) -> float:
        """A connection and what is said over it; for how long to stay away then."""
        job, load = self.job, self.load
        kind = PlainTalker if job.plain else Talker
        talker = kind(self._begun, plays=job.plays, options=job.options)
        came = time.perf_counter()
        try:
            await talker.open(job.port)
            self._talkers.add(talker)
            load.speaking = max(load.speaking, len(self._talkers))
            for number in numbers:
                script = number % len(job.scripts)
                asked = time.perf_counter()
                spoken = talker.begin(job.scripts[script], script)
                load.spoken.append(spoken)
                try:
                    await talker.speak(job.interrupt_s)
                except Refused:
                    load.spoken.remove(spoken)
                    came = asked
                    raise
                if own is not None:
                    await asyncio.sleep(own.expovariate(1 / job.pause_s) if job.pause_s else 0.0)
        except Refused as refused:
            load.busy_ms.append(1000 * (refused.moment - came))
            return refused.retry_after_s
        except (OSError, TimeoutError) as error:
            load.errors.append(f"{type(error).__name__}: {error}")
            return 1.0
        finally:
            if talker in self._talkers:
                self._talkers.remove(talker)
                load.samples += 0 if self._over else talker.samples
            talker.close()
        return 0.0


def main() -> None:
    """The process."""
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301  # from our own parent
    gc.collect()
    gc.freeze()  # what was imported is not looked through again and again

    async def work() -> Load:
        return await Generator(job).run()

    sys.stdout.buffer.write(pickle.dumps(run(work())))


if __name__ == "__main__":
    from bench import _load_client  # under this name, so that the parent knows the classes of the answer

    _load_client.main()
