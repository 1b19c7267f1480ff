"""Some cells of `bench.link` over real sockets: the real server and client, and a proxy that does what the link does.

What the models leave out is here: event loops, kernels, websockets, threads. What is left out here are lost packets:
the proxy holds what meets a hole and passes it on as late as TCP's retransmissions would.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from bench._simulated_link import kbit
from bench._simulated_player import Player
from bench._simulation import SAMPLE_RATE, Arm, Outcome, text_of
from client import Audio, ClientError, connect
from client.playout import Playout
from client.shell import Session
from deploy.faulty_proxy import DOWN, UP, Connection, FaultyProxy
from protocol.client_messages import AudioFormat
from protocol.server_messages import Done, ModeChange

SPEECH_S: Final = 16.0  # of the modelled engine; about 11 s of the tone engine that speaks here
TROUBLE_S: Final = (2.5, 3.5)  # after the first sound
LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """What the proxy does."""

    profile: str  # the one of `bench.link` that it stands for
    format: AudioFormat
    delay_s: float
    kbit: float | None = None
    hole_s: float = 0.0
    reset: bool = False


LINES: Final = (
    Line("calm, 300 ms", "pcm", 0.15),
    Line("slow 4G", "pcm", 0.075, 1_600),
    Line("hole 1.5 s", "pcm", 0.02, hole_s=1.5),
    Line("hole 5 s", "opus", 0.02, hole_s=5.0),
    Line("reset", "pcm", 0.02, reset=True),
    Line("48 kbit/s", "opus", 0.1, 48),
)


class _Listener(Player):
    """Tells when it has heard everything."""

    def __init__(self, playout: Playout, report: Callable[[int, int, int], None]) -> None:
        super().__init__(_RealTime(), playout, self._told)
        self.over = asyncio.Event()
        self._to_session = report

    def _told(self, sample: int, buffered_ms: int, stalls: int) -> None:
        self._to_session(sample, buffered_ms, stalls)
        if self.playout.drained:
            self.over.set()


class _RealTime:
    """The player's clock."""

    @property
    def now(self) -> float:
        return monotonic()

    def after(self, seconds: float, action: Callable[[], object]) -> object:
        return asyncio.get_running_loop().call_later(seconds, action)


async def measure_on_sockets(line: Line, arm: Arm, seeds: int, port: int) -> list[Outcome]:
    """One run for each seed, side by side."""
    return list(await asyncio.gather(*(_run(line, arm, seed, port) for seed in range(1, seeds + 1))))


async def _run(line: Line, arm: Arm, seed: int, port: int) -> Outcome:
    out = Outcome()
    async with FaultyProxy(port, tcp_backoff=True, seed=seed) as proxy:
        rate = None if line.kbit is None else kbit(line.kbit)
        proxy.change(UP, DOWN, delay_s=line.delay_s, rate=rate)
        listening = _listen(proxy, line, arm, random.Random(seed), out)
        try:
            await asyncio.wait_for(listening, LIMIT_S)
        except (ClientError, TimeoutError) as error:
            out.failure = f"{type(error).__name__}: {error}"
    return out


async def _listen(proxy: FaultyProxy, line: Line, arm: Arm, rng: random.Random, out: Outcome) -> None:
    lead_ms = arm.asked_ms(proxy.round_trip_s)
    async with connect(proxy.url, format=line.format, mode=arm.mode, max_lead_ms=lead_ms, language="zh") as session:
        utterance = await session.start()
        player = _Listener(Playout(SAMPLE_RATE), utterance.played)
        written = monotonic()
        await utterance.write(text_of(SPEECH_S))
        await utterance.end()
        ups: list[float] = []  # when the line was good again
        trouble: asyncio.Task[None] | None = None
        received = 0
        async for item in utterance:
            if isinstance(item, Audio):
                if not received:
                    out.first_frame_s = monotonic() - written
                    player.begin()
                    if line.hole_s or line.reset:
                        trouble = asyncio.create_task(_trouble(proxy, line, rng, ups))
                out.wrong_samples += abs(item.first_sample - received)
                received = item.end_sample
                player.hear(item.pcm)
                continue
            player.told(item)
            if isinstance(item, ModeChange):
                out.switches.append((item.at_sample / SAMPLE_RATE, item.mode, item.reason))
            if isinstance(item, Done):
                out.finished = True
                out.wrong_samples += abs(item.samples - received)
        player.complete()
        await player.over.wait()
        if trouble is not None:
            await trouble
        _judge(player, session, written, ups, out)


async def _trouble(proxy: FaultyProxy, line: Line, rng: random.Random, ups: list[float]) -> None:
    await asyncio.sleep(rng.uniform(*TROUBLE_S))
    if line.reset:
        proxy.each(Connection.reset)
    else:
        proxy.hole(UP, DOWN)
        await asyncio.sleep(line.hole_s)
        proxy.heal()
    ups.append(monotonic())


def _judge(player: Player, session: Session, written: float, ups: list[float], out: Outcome) -> None:
    hearing = player.hearing
    if hearing.first_sound is not None:
        out.first_sound_s = hearing.first_sound - written
    out.stalls, out.silent_s = len(hearing.silences), hearing.silent_s
    out.audio_s = player.playout.played_samples / SAMPLE_RATE
    for up in ups:
        again = hearing.sound_again_after(up)
        if again is None:
            out.unheard_troubles += 1
        else:
            out.recovery_s.append(again)
    line = session.line
    out.resumes, out.resent_bytes = line.resumes, line.resent_bytes
