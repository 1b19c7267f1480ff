"""The playout buffer: nothing lost, pre-roll, underruns that neither click nor count twice."""

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.playout import FADE_MS, MAX_PREROLL_MS, STILL_S, Playout
from client.statistics import ArrivalClock

RATE = 8_000
FADE = RATE * FADE_MS // 1_000


def tone(count: int, value: int = 10_000) -> bytes:
    return array("h", [value] * count).tobytes()


def values(pcm: bytes) -> list[int]:
    return list(array("h", pcm))


@given(pushes=st.lists(st.integers(0, 500), max_size=20), pulls=st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_everything_is_played_in_order(pushes: list[int], pulls: list[int]) -> None:
    playout = Playout(RATE, preroll_ms=0)
    pcm = b"".join(array("h", [n % 30_000 + 1]).tobytes() for n in range(sum(pushes)))
    at = 0
    for size in pushes:
        playout.push(pcm[2 * at : 2 * (at + size)])
        at += size
    playout.complete()
    out = b""
    while not playout.drained:
        for size in pulls:
            got = playout.pull(size)
            assert len(got) == 2 * size
            out += got
    assert out[: len(pcm)] == pcm
    assert not any(out[len(pcm) :])
    assert playout.played_samples == len(pcm) // 2
    assert playout.stalls == 0


def test_playing_waits_for_the_preroll() -> None:
    playout = Playout(RATE, preroll_ms=100)
    playout.push(tone(799))
    assert values(playout.pull(80)) == [0] * 80
    playout.push(tone(1))
    assert values(playout.pull(80)) == [10_000] * 80
    assert playout.buffered_ms == 90
    assert playout.stalls == 0


def test_a_short_utterance_does_not_wait_for_the_preroll() -> None:
    playout = Playout(RATE, preroll_ms=100)
    playout.push(tone(10))
    playout.complete()
    assert values(playout.pull(20)) == [10_000] * 10 + [0] * 10
    assert playout.drained


def test_an_underrun_is_one_stall_and_fades() -> None:
    playout = Playout(RATE, preroll_ms=20)
    playout.push(tone(200))
    out = values(playout.pull(240))
    assert out[: 200 - FADE] == [10_000] * (200 - FADE)
    edge = out[200 - FADE : 201]
    assert edge == sorted(edge, reverse=True)
    assert max(a - b for a, b in pairwise(edge)) <= 10_000 // FADE + 1
    assert out[200:] == [0] * 40
    assert playout.stalls == 1
    playout.pull(100)
    assert playout.stalls == 1
    assert playout.gap_samples == 140
    playout.push(tone(319))
    assert values(playout.pull(40)) == [0] * 40  # the pre-roll counts again, and is longer
    playout.push(tone(100))
    out = values(playout.pull(100))
    assert out[:FADE] == sorted(out[:FADE])
    assert out[0] == 0
    assert out[FADE:] == [10_000] * (100 - FADE)


def test_the_fade_in_spans_small_pulls() -> None:
    whole, parts = Playout(RATE, 0), Playout(RATE, 0)
    for playout in (whole, parts):
        playout.push(tone(10))
        playout.pull(11)
        playout.push(tone(200))
    assert b"".join(parts.pull(7) for _ in range(20)) == whole.pull(140)


def test_clear_drops_what_was_not_played() -> None:
    playout = Playout(RATE, preroll_ms=0)
    playout.push(tone(100))
    playout.pull(30)
    assert playout.clear() == 70
    assert playout.buffered_samples == 0
    assert playout.played_samples == 30
    assert values(playout.pull(10)) == [0] * 10
    playout.push(tone(5, 7))
    playout.complete()
    assert playout.buffered_samples == 5


def stall(playout: Playout) -> None:
    """Plays to the end of what is there, and on."""
    playout.push(tone(RATE * MAX_PREROLL_MS // 1_000))
    playout.pull(RATE * MAX_PREROLL_MS // 1_000 + 1)


def test_the_preroll_grows_with_stalls_and_shrinks_slowly() -> None:
    playout = Playout(RATE)
    prerolls = [playout.preroll_ms]
    for _ in range(9):
        stall(playout)
        prerolls.append(playout.preroll_ms)
    assert prerolls == [120, 240, 360, 600, 1_080, 2_040, 3_960, 6_000, 6_000, 6_000]
    playout.push(tone(40 * RATE))
    playout.pull(9 * RATE)
    assert playout.preroll_ms == 6_000
    for _ in range(3):
        playout.pull(10 * RATE)
    assert playout.preroll_ms == 120 + 6_000 // 8


@pytest.mark.parametrize(("every", "late_ms", "preroll_ms"), [(100, 0, 120), (10, 200, 520), (50, 200, 120)])
def test_the_preroll_follows_how_unevenly_audio_arrives(every: int, late_ms: int, preroll_ms: int) -> None:
    playout = Playout(RATE)
    now = 0.0
    for n in range(400):
        now += 0.02 + (late_ms / 1_000 if n % every == 0 else 0.0)
        playout.push(tone(RATE // 50), now)
    assert playout.preroll_ms == pytest.approx(preroll_ms, abs=1)
    for n in range(200):  # a faster line: what comes early is not late
        playout.push(tone(RATE // 50), now + n / 1_000)
    assert playout.preroll_ms == 120


def test_what_is_here_is_played_in_time_though_it_is_little() -> None:
    playout = Playout(RATE, preroll_ms=100)
    playout.push(tone(100))
    waited = 0
    while values(playout.pull(80)) == [0] * 80:
        waited += 80
    assert waited == 2 * RATE // 10


def test_what_stops_coming_is_played() -> None:
    playout = Playout(RATE, preroll_ms=2_000)
    for _ in range(5):  # the server sends no more than its lead, before the listener has heard it
        playout.push(tone(RATE // 10))
        playout.pull(RATE // 10)
    assert playout.played_samples == 0
    waited = 0
    while values(playout.pull(80)) == [0] * 80:
        waited += 80
    assert waited == RATE * STILL_S - RATE // 10


def test_the_preroll_can_be_bounded() -> None:
    playout = Playout(RATE, max_preroll_ms=150)
    for _ in range(5):
        stall(playout)
    assert playout.preroll_ms == 150
    assert Playout(RATE, 500, 150).preroll_ms == 500


def test_a_writer_who_pauses_is_no_stall() -> None:
    playout = Playout(RATE, preroll_ms=0)
    playout.push(tone(100), 1.0)
    playout.between(True)
    out = values(playout.pull(200))
    assert out[100 - FADE : 100] == sorted(out[100 - FADE : 100], reverse=True)  # it may end anywhere
    playout.pull(1_000)
    assert (playout.stalls, playout.gap_samples) == (0, 0)
    playout.between(False)
    playout.push(tone(100), 9.0)
    playout.push(tone(100), 9.1)
    playout.pull(300)
    assert (playout.stalls, playout.gap_samples) == (1, 100)
    for n in range(100):
        playout.push(tone(80), 9.2 + n / 100)
        playout.between(n % 2 == 1)
    assert playout.preroll_ms == 0  # nothing that came after a pause was late


def test_the_arrival_clock_counts_what_a_listener_would_hear() -> None:
    clock = ArrivalClock(RATE)
    clock.arrived(0, 5.0)
    clock.arrived(800, 5.05)  # needed at 5.1
    clock.arrived(1_600, 5.2)  # just in time
    assert clock.stalls == 0
    clock.arrived(2_400, 5.5)  # needed at 5.3
    assert clock.stalls == 1
    assert clock.stall_s == pytest.approx(0.2)
    clock.arrived(3_200, 5.6)  # needed at 5.4 + 0.2
    assert clock.stalls == 1
