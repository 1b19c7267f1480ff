"""The playout buffer: nothing lost, pre-roll, underruns that neither click nor count twice."""

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.playout import FADE_MS, ArrivalClock, Playout

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
    playout.push(tone(159))
    assert values(playout.pull(40)) == [0] * 40  # the pre-roll counts again
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
