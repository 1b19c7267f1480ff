"""The load test in small: many sessions at once on a real server, written and heard in real time by another process."""

import math
from pathlib import Path

import pytest

from bench._common import percentile, server_process
from bench._load_client import Job, Load, generate
from bench._load_measure import CAPACITY, LAG, heard, measure, scrape, total, underruns
from bench._load_texts import SHORT, conversation, written

FIRST_MS = 2_000.0  # wide: other tests may be running beside
PLACES = 6
FREE_CORES = 0.5  # more than that was used by others: no wonder if somebody runs dry ...
STARVED = 0.2  # ... for less than this share of what was heard
STOLEN = 0.01  # what a virtual machine's host takes is not seen


def fine(load: Load) -> None:
    assert load.errors == []
    assert load.spoken


def silence_share(load: Load) -> float:
    """Of what was heard: silence because sound was late."""
    return sum(underruns([load])) / sum(spoken.audio_s for spoken in load.spoken)


@pytest.mark.slow
def test_eight_sessions_speak_at_once(voices: Path) -> None:
    with server_process("--engine", "embedded") as server:
        measured = measure(server, Job(server.port, conversation(), seconds=9.0, sessions=8, spread_s=3.0))
        known = scrape(server)
    fine(measured.load)
    assert len(heard(measured.loads)) >= 8, "somebody was never heard"
    assert percentile(heard(measured.loads), 0.95) < FIRST_MS
    assert silence_share(measured.load) <= (STOLEN if measured.others < FREE_CORES else STARVED), "listeners ran dry"
    assert measured.load.samples > 0
    assert measured.memory_mb[0] > 0
    assert measured.engine > 0
    assert not math.isnan(measured.lag_p99_ms), f"no metric {LAG}"
    assert not math.isnan(total(known, CAPACITY)), f"no metric {CAPACITY}"


def test_twice_as_many_as_there_are_places() -> None:
    short = [written(text, seed) for seed, text in enumerate(SHORT)]
    with server_process("--engine", "tone", "--max-streams", str(PLACES)) as server:
        (load,) = generate(Job(server.port, short, seconds=6.0, sessions=2 * PLACES, pause_s=0.2))
        (free,) = generate(Job(server.port, short, seconds=2.0, sessions=2, pause_s=0.2))
    fine(load)
    assert load.busy_ms, "nobody was turned away"
    assert percentile(load.busy_ms, 0.5) < FIRST_MS
    assert percentile(heard([load]), 0.95) < FIRST_MS
    assert silence_share(load) <= STARVED, "those who were let in ran dry"
    fine(free)
    assert free.busy_ms == [], "places were not given back"
