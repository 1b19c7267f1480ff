"""`bench.link`: its runs are repeatable, and it sees what it is there to see."""

from dataclasses import asdict

import pytest

from bench._link_picture import picture
from bench._link_profiles import PROFILES
from bench._simulated_client import Heard
from bench._simulated_player import Hearing
from bench._simulated_speaker import Made
from bench._simulation import ARMS, Outcome, simulate, text_of, wrong_samples
from bench.link import Cell, cells, summary, table

PROFILE = {profile.name: profile for profile in PROFILES}
ARM = {arm.name: arm for arm in ARMS}


def test_a_run_is_repeatable() -> None:
    first, second = (simulate(PROFILE["hole 1.5 s"], "opus", ARM["adaptive"], 3) for _ in range(2))
    assert asdict(first) == asdict(second)
    assert first.finished
    assert not first.failure


def test_a_hole_is_heard_where_nothing_runs_ahead() -> None:
    paced, ahead = (simulate(PROFILE["hole 1.5 s"], "pcm", ARM[arm], 1) for arm in ("chunk, paced", "chunk, unpaced"))
    assert paced.silent_s > 0.8
    assert len(paced.recovery_s) == 1
    assert ahead.silent_s == 0
    assert (ahead.recovery_s, ahead.unheard_troubles) == ([], 1)
    assert paced.wrong_samples == ahead.wrong_samples == 0


def test_a_client_without_watchdog_waits_for_tcp() -> None:
    with_it, without = (simulate(PROFILE["hole 5 s"], "pcm", ARM["adaptive"], 1, watchdog=on) for on in (True, False))
    assert with_it.recovery_s[0] < 1.0 < without.recovery_s[0]


def test_a_barge_in_wastes_what_ran_ahead() -> None:
    paced, ahead = (simulate(PROFILE["barge-in"], "pcm", ARM[arm], 1) for arm in ("chunk, paced", "adaptive"))
    assert 0 < paced.wasted_s < 1 < ahead.wasted_s


@pytest.mark.parametrize(
    ("heard", "wrong"), [(b"abcdef", 0), (b"abcd", 1), (b"abXdef", 1), (b"abcdefgh", 1), (b"cdef", 3)]
)
def test_samples_that_are_not_right_are_counted(heard: bytes, wrong: int) -> None:
    assert wrong_samples(Heard(pcm=bytearray(heard)), Made(pcm=bytearray(b"abcdef")), 480, complete=True) == wrong


def test_packets_that_are_not_right_are_counted() -> None:
    made = Made(packets={0: b"a", 1: b"b", 2: b"c"}, opus_from=0)
    assert wrong_samples(Heard(packets={0: b"a", 1: b"X"}), made, 480, complete=True) == 960
    assert wrong_samples(Heard(packets={0: b"a"}), made, 480, complete=False) == 0


def test_silence_at_link_up() -> None:
    hearing = Hearing(1.0, [(5.0, 7.5), (9.0, 9.2)])
    assert hearing.silent_s == pytest.approx(2.7)
    assert hearing.sound_again_after(7.0) == pytest.approx(0.5)
    assert hearing.sound_again_after(8.0) is None


def test_a_text_takes_about_its_time() -> None:
    assert 180 <= len(text_of(40.0)) <= 200
    assert text_of(40.0).endswith("。")


def test_the_matrix_has_every_cell_that_makes_sense() -> None:
    wanted = cells(PROFILES)
    assert len(set(wanted)) == len(wanted)
    assert not any(cell.format == "pcm" for cell in wanted if cell.profile in ("48 kbit/s", "32 kbit/s"))
    assert {cell.arm for cell in wanted} == set(ARM)
    assert {cell.watchdog for cell in wanted if not PROFILE[cell.profile].is_calm} == {True, False}


def test_what_is_shown() -> None:
    cell = Cell("reset", "pcm", "adaptive", True)
    outcome = Outcome(finished=True, first_sound_s=0.1, audio_s=60.0, silent_s=1.5, recovery_s=[0.25])
    found = {cell: summary([outcome, Outcome(first_sound_s=0.3, audio_s=60.0)])}
    shown = table(found, "pcm", True).splitlines()[1]
    assert "0.20/0.29" in shown
    assert "0.25/0.25" in shown
    assert "1 did not end" in shown
    drawn = picture({(cell.profile, cell.format, cell.arm): found[cell].silent_s})
    assert drawn.startswith("<svg")
    assert "reset, pcm" in drawn
