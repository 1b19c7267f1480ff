"""What a real-time stream costs besides the engine: CPU of server and client, each in a process of its own.

Streams of the `tone` engine play in real time: sending follows a simulated player that reports what it played. The CPU
time of sessions that are open and idle is subtracted, for Opus also the encoder's, measured alone. Percent of one core.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Any

import client
from bench._common import Report, ServerProcess, arguments, run, server_process
from client.items import Audio
from protocol.media.opus import OpusEncoder

RATE = 24_000
BITRATE = 32_000
MAX_LEAD_MS = 1_000
WARM_UP_S = 1.5
IDLE_S = 2.0
REPORT_EVERY_S = 0.25  # how often the player says where it is
TEXT = "在这条安静的街道上，每天早晨都能听见鸟叫。" * 400
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("PCM, 40 ms (default)", {}),
    ("PCM, 20 ms", {"frame_ms": 20.0}),
    ("PCM, 100 ms", {"frame_ms": 100.0}),
    ("Opus, 20 ms (default)", {"format": "opus", "bitrate": BITRATE}),
    ("Opus, 60 ms", {"format": "opus", "bitrate": BITRATE, "frame_ms": 60.0}),
)
LIMIT_PERCENT = 2.0


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds."""

    server: float
    client: float

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.server - other.server, self.client - other.client)


async def play(session: client.Session, heard: list[float]) -> None:
    """Speaks without end; a clock plays what came and says so."""
    timer: asyncio.TimerHandle | None = None
    utterance = await session.start()
    received = 0
    begun: float | None = None
    loop = asyncio.get_running_loop()

    def report() -> None:
        nonlocal timer
        assert begun is not None
        played = min(received, int((loop.time() - begun) * RATE))
        utterance.played(played, (received - played) * 1000 // RATE)
        timer = loop.call_later(REPORT_EVERY_S, report)

    index = len(heard)
    heard.append(0.0)
    writing = asyncio.ensure_future(utterance.write(TEXT))  # waits for room until the end
    try:
        async for item in utterance:
            if isinstance(item, Audio):
                received = item.end_sample
                heard[index] = received / RATE
                if begun is None:
                    begun = loop.time()
                    report()
    finally:
        writing.cancel()
        if timer is not None:
            timer.cancel()


async def measure(server: ServerProcess, options: dict[str, Any], streams: int, seconds: float) -> tuple[Cost, float]:
    """CPU of all streams over a while of playing, less that of idling; and the audio that came meanwhile, seconds."""

    def now() -> Cost:
        return Cost(server.cpu_s(), time.process_time())

    sessions = [
        await client.connect(server.url, max_lead_ms=MAX_LEAD_MS, decode=False, timings=False, **options)
        for _ in range(streams)
    ]
    before = now()
    await asyncio.sleep(IDLE_S)
    idle = now() - before
    heard: list[float] = []
    tasks = []
    for session in sessions:  # spread over a frame, as independent streams are
        tasks.append(asyncio.ensure_future(play(session, heard)))
        await asyncio.sleep(0.1 / streams)
    await asyncio.sleep(WARM_UP_S)
    before, audio = now(), sum(heard)
    await asyncio.sleep(seconds)
    used, audio = now() - before, sum(heard) - audio
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for session in sessions:
        await session.close()
    scale = seconds / IDLE_S
    return Cost(used.server - idle.server * scale, used.client - idle.client * scale), audio


def encoder_percent(frame_ms: float) -> float:
    """CPU of encoding one real-time stream, percent of a core. The signal is tones, as the engine's."""
    import numpy as np

    encoder = OpusEncoder(RATE, frame_ms, BITRATE)
    seconds = 5
    time_axis = np.arange(RATE * seconds) / RATE
    tones = sum(np.sin(2 * np.pi * f * time_axis * (1 + 0.01 * np.sin(3 * time_axis))) for f in (220, 440, 880))
    pcm = (3_000 * np.asarray(tones)).astype("<i2").tobytes()
    begun = time.process_time()
    encoder.push(pcm)
    encoder.finish()
    return 100 * (time.process_time() - begun) / seconds


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    chosen = arguments(__doc__, streams=(20, "streams at once"), seconds=(10, "of playing, for each case"))
    report = Report("overhead")
    with server_process("--engine", "tone") as server:
        for name, options in CASES:
            engine_before = server.metric("cosystream_step_seconds_sum")
            cost, audio = run(measure(server, options, chosen.streams, chosen.seconds))
            real_time = audio / (chosen.streams * chosen.seconds)
            if not 0.9 < real_time < 1.1:
                raise RuntimeError(f"{name}: {real_time:.0%} of real time was played: these are no real-time streams")
            shares = [100 * each / (chosen.streams * chosen.seconds) for each in (cost.server, cost.client)]
            encoder = encoder_percent(options.get("frame_ms", 20.0)) if options.get("format") == "opus" else 0.0
            engine = (
                100
                * (server.metric("cosystream_step_seconds_sum") - engine_before)
                / (chosen.streams * (chosen.seconds + WARM_UP_S + MAX_LEAD_MS / 1000))
            )
            report.add(f"{name}: server and client, besides encoder", sum(shares) - encoder, "%", LIMIT_PERCENT)
            report.add("  server", shares[0] - encoder, "%")
            report.add("  of it the tone engine's steps (wall time)", engine, "%")
            report.add("  client", shares[1], "%")
            if encoder:
                report.add("  encoder alone, not counted", encoder, "%")
    report.note(f"{chosen.streams} streams, {chosen.seconds} s each; percent of one core for each real-time stream")
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(main())
