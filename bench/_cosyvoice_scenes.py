"""The scenes of bench.cosyvoice."""

import gc
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

import torch

from bench._common import Report, percentile
from bench._cosyvoice_model import HISTORY_FRAMES, PROMPT_CODES, TEXT, Speaker, make_speaker, sizes, tame
from bench._cosyvoice_speed import Spoken, rate, speak, speak_uncached
from bench._upstream import NotUsable, Upstream
from server.engines.base import SegmentEnd, SegmentFailed
from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.hops import LOOKAHEAD, hop
from server.engines.cosyvoice.jobs import CosyVoiceJob
from server.engines.cosyvoice.synthetic import mid, random_model, tiny

SESSIONS: Final = 4
FIRST_TIMES: Final = 0.6
CROWD_RATE_TIMES: Final = 2.0
CROWD_FIRST_TIMES: Final = 0.4
FLAT_TIMES: Final = 1.1
EARLY, LATE = 3, 20  # chunks, counted from 1
SAVED_PERCENT: Final = 60.0
CHURN: Final = 1_000
SETTLED_SHARE: Final = 0.2  # of the utterances, until the memory has its shape
GROWTH_TIMES: Final = 1.03
CHECKED_CODES: Final = 40
SAME: Final = 1e-3  # of two flow models with the same weights


def make(version: ModelVersion, checkout: Path | None, matcha: Path | None) -> tuple[Speaker, Upstream | None]:
    """A mid-size model, in our hands and in upstream's. Raises NotUsable."""
    model = tame(random_model(mid(version)))
    upstream = Upstream(checkout, matcha, model) if checkout is not None else None
    speaker = make_speaker(model, batch=SESSIONS)
    if upstream is not None:
        codes = torch.arange(CHECKED_CODES)
        with torch.inference_mode():
            ours = model.flow.whole(codes, speaker.flow_prompt, streaming=True, final=False).solve()
            apart = float((ours - upstream.mel(speaker, codes.tolist())).abs().max())
        if not apart <= SAME:
            raise NotUsable(
                f"--upstream: its flow model computes something else with these weights ({apart:.2g} apart)"
            )
    return speaker, upstream


def speed(report: Report, speaker: Speaker, upstream: Upstream | None, *, rounds: int, codes: int) -> None:
    """First chunks and audio a second, against the baseline, in turns. The goals are set against upstream: our own
    modules without caches have half of what is gained already, so nothing is asked against those.
    """
    asked = upstream is not None
    name = f"CosyVoice {speaker.config.version}"
    theirs = "upstream" if upstream is not None else "uncached, one by one"
    alone: tuple[list[Spoken], list[Spoken]] = [], []
    crowds: tuple[list[list[Spoken]], list[list[Spoken]]] = [], []
    for number in range(rounds + 1):
        seed = SESSIONS * number
        one = (speak(speaker, 1, codes, seed), _baseline(speaker, upstream, 1, codes, seed))
        four = (speak(speaker, SESSIONS, codes, seed), _baseline(speaker, upstream, SESSIONS, codes, seed))
        if number:  # the first round warms up
            for side in (0, 1):
                alone[side].extend(one[side])
                crowds[side].append(four[side])
    first = [median(each.first_s for each in side) for side in alone]
    report.add(f"{name}, 1 session: first chunk, p50", 1000 * first[0], "ms")
    report.add(f"  {theirs}", 1000 * first[1], "ms")
    report.add("  ours over theirs", first[0] / first[1], "times", FIRST_TIMES if asked else None)
    rates = [median(rate(crowd) for crowd in side) for side in crowds]
    report.add(f"{name}, {SESSIONS} sessions: audio", rates[0], "s a second")
    report.add(f"  {theirs}", rates[1], "s a second")
    report.add("  ours over theirs", rates[0] / rates[1], "times", least=CROWD_RATE_TIMES if asked else None)
    late = [percentile([each.first_s for crowd in side for each in crowd], 0.95) for side in crowds]
    report.add(f"{name}, {SESSIONS} sessions: first chunk, p95", 1000 * late[0], "ms")
    report.add(f"  {theirs}", 1000 * late[1], "ms")
    report.add("  ours over theirs", late[0] / late[1], "times", CROWD_FIRST_TIMES if asked else None)
    audio = alone[0][0].lengths[0] / speaker.config.sample_rate, alone[1][0].lengths[0] / speaker.config.sample_rate
    report.note(
        f"{sizes(speaker.loaded.model)}. Utterances of {codes} codes ({codes / 25:g} s), a voice of"
        f" {PROMPT_CODES / 25:g} s; first chunks of {audio[0]:.2f} s (ours) and {audio[1]:.2f} s; {rounds}"
        f" round{'s' * (rounds > 1)};"
        f" {torch.get_num_threads()} threads."
    )


def _baseline(speaker: Speaker, upstream: Upstream | None, sessions: int, codes: int, seed: int) -> list[Spoken]:
    if upstream is None:
        begun = time.perf_counter()
        places = range(sessions)
        return [speak_uncached(speaker, codes, seed + place, time.perf_counter() - begun) for place in places]
    upstream.start_anew()
    found: list[Spoken] = []

    def one() -> None:
        found.append(upstream.speak(speaker, TEXT, codes))

    threads = [threading.Thread(target=one) for _ in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) < sessions:
        raise RuntimeError("upstream's driver failed; its trace stands above")
    return found


def chunks(report: Report, speaker: Speaker, *, rounds: int) -> None:
    """What a chunk costs by its place in the utterance, all of one second."""
    codes = 25 * LATE + LOOKAHEAD + 1
    costs = [speak(speaker, 1, codes, number, chunk_ms=(1000,))[0].costs for number in range(rounds)]
    by_place = [min(each[place] for each in costs) for place in range(LATE)]  # other programs only add
    name = f"CosyVoice {speaker.config.version}"
    report.add(f"{name}: chunk {EARLY} of one utterance", 1000 * by_place[EARLY - 1], "ms")
    report.add(f"  chunk {LATE}", 1000 * by_place[LATE - 1], "ms")
    report.add(f"  chunk {LATE} over chunk {EARLY}", by_place[LATE - 1] / by_place[EARLY - 1], "times", FLAT_TIMES)
    row = " ".join(f"{1000 * cost:.0f}" for cost in by_place)
    report.note(f"{name}: ms of each chunk of 25 codes (history {HISTORY_FRAMES / 50:g} s): {row}")


def prefix(report: Report, speaker: Speaker, *, rounds: int) -> None:
    """The flow model's part of a first chunk, with what is kept of the voice and without: on one thread, so that it is
    work, and not how well threads share it.
    """
    flow, prompt = speaker.loaded.model.flow, speaker.flow_prompt
    codes = torch.arange(hop(0) + LOOKAHEAD)
    kept = flow.prefix(prompt, HISTORY_FRAMES)

    def with_it() -> None:
        flow.start(kept).hop(codes[: hop(0)], codes[hop(0) :]).solve()

    def without() -> None:
        flow.whole(codes, prompt, streaming=True, final=False).solve()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        ours, theirs = _fastest(5 * rounds, with_it, without)
    torch.set_num_threads(threads)
    name = f"CosyVoice {speaker.config.version}"
    report.add(f"{name}: flow of the first chunk, voice kept", 1000 * ours, "ms")
    report.add("  voice computed again", 1000 * theirs, "ms")
    report.add("  time saved", 100 * (1 - ours / theirs), "%", least=SAVED_PERCENT)
    # The last three of the prompt wait for what follows them.
    solved = hop(0) + LOOKAHEAD, hop(0) + PROMPT_CODES
    report.note(f"{name}: the flow solves {solved[0]} codes for the first chunk instead of {solved[1]}")


def _fastest(rounds: int, *does: Callable[[], None]) -> list[float]:
    """Of each, in turns, seconds: whatever else the machine does only adds."""
    times: list[list[float]] = [[] for _ in does]
    for _ in range(rounds + 1):
        for do, found in zip(does, times, strict=True):
            begun = time.perf_counter()
            do()
            found.append(time.perf_counter() - begun)
    return [min(found) for found in times]


def churn(report: Report, version: ModelVersion, *, utterances: int) -> None:
    """Short utterances, four at a time, many of them cancelled at any moment; a tiny model."""
    speaker = make_speaker(random_model(tiny(version)), batch=SESSIONS)
    engine, slots, chances = speaker.engine, speaker.loaded.decoder.slots, random.Random(version)
    live: list[CosyVoiceJob] = []
    begun, ended, cancelled, settled = 0, 0, 0, 0.0
    while ended < utterances:
        while len(live) < SESSIONS and begun < utterances:
            live.append(speaker.job(chances.randint(1, 40), begun))
            begun += 1
        for event in engine.step(live):
            if isinstance(event, SegmentFailed):
                raise event.error
            if isinstance(event, SegmentEnd):
                live = [job for job in live if job is not event.job]
                ended += 1
        for job in list(live):
            if chances.random() < 0.05:
                engine.cancel(job)
                live.remove(job)
                ended, cancelled = ended + 1, cancelled + 1
        if not settled and ended >= SETTLED_SHARE * utterances:
            settled = _resident_mb()
    grown = _resident_mb()
    name = f"CosyVoice {version}"
    report.add(f"{name}: memory after {SETTLED_SHARE * utterances:.0f} short utterances", settled, "MiB")
    report.add(f"  after {utterances} over that", grown / settled, "times", GROWTH_TIMES)
    report.add("  slots of the language model that stay taken", slots.slots - slots.free_slots, "", 0)
    report.note(f"{name}: {cancelled} of {utterances} utterances were cancelled under way (tiny model)")
    engine.close()


def _resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
