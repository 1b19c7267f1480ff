"""`bench.link`: its runs are repeatable, and it sees what it is there to see."""

import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest

from bench import _link_picture as drawing
from bench import link
from bench._common import Report
from bench._link_picture import picture, write_png
from bench._link_profiles import PROFILES
from bench._link_tables import Cell, overview, summary, table
from bench._simulated_client import Heard
from bench._simulated_player import Hearing
from bench._simulated_speaker import Made
from bench._simulation import ARMS, Outcome, simulate, text_of, wrong_samples
from bench.link import cells

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
    heading, units, row = table(found, "pcm", True).splitlines()
    assert heading.split()[:3] == ["first", "silent", "sound"]
    assert units.split()[:2] == ["sound", "stalls"]
    assert "0.20/0.29" in row
    assert "0.25/0.25" in row
    assert row.split()[-1] == "1"  # did not end


def test_every_table_fits_on_a_terminal() -> None:
    worst = Outcome(
        first_sound_s=1.11, stalls=100, silent_s=138.0, audio_s=60.0, recovery_s=[11.11], resumes=99,
        resent_bytes=999_000, wasted_s=9.9, switches=[(0.0, "block", "x")] * 99, peak_ring_bytes=900_000,
        wrong_samples=99_999,
    )  # fmt: skip
    found = {cell: summary([worst] * 5) for cell in cells(PROFILES)}
    shown = [table(found, format_, on) for format_ in ("pcm", "opus") for on in (True, False)] + [overview(found)]
    assert max(len(line) for each in shown for line in each.splitlines()) <= 120


def test_the_overview_says_what_the_watchdog_is_worth_where_it_is_worth_something() -> None:
    found = {cell: summary([Outcome(silent_s=1.0 if cell.watchdog else 2.5)]) for cell in cells([PROFILE["hole 5 s"]])}
    quiet = {cell: summary([Outcome(silent_s=1.0)]) for cell in cells([PROFILE["hole 5 s"]])}
    assert "1.0 (2.5)" in overview(found)
    assert "(" not in overview(quiet)


def test_one_bad_run_of_five_is_seen_in_the_mean_and_not_in_the_median() -> None:
    outcomes = [Outcome(stalls=n, silent_s=float(n), resumes=n, resent_bytes=1_000 * n) for n in (0, 0, 1, 2, 97)]
    mean, middle = summary(outcomes), summary(outcomes, median)
    assert (mean.stalls, mean.silent_s, mean.resumes, mean.resent_kb) == (20, 20, 20, 20)
    assert (middle.stalls, middle.silent_s, middle.resumes, middle.resent_kb) == (1, 1, 1, 1)


async def test_on_sockets_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(*_: object) -> list[Outcome]:
        return [Outcome(finished=True, silent_s=silent_s) for silent_s in (0.1, 0.2, 9.0)]

    monkeypatch.setattr(link, "measure_on_sockets", measured)
    found = await link.over_sockets(Report("link"), 3, 0)
    assert len(found) == 12
    assert {each.silent_s for each in found.values()} == {0.2}


def drawn() -> str:
    nothing = float("nan")
    return picture(
        [
            drawing.Cell("hole 5 s", "pcm", "adaptive", True, 1.5, 0.4),
            drawing.Cell("hole 5 s", "opus", "adaptive", True, 1.6, 0.3),
            drawing.Cell("hole 5 s", "pcm", "adaptive", False, 4.0, 2.9),
            drawing.Cell("32 kbit/s", "opus", "block", True, 63.5, nothing),
            drawing.Cell("calm", "pcm", "adaptive", True, 0.0, nothing),
        ]
    )


def test_the_picture() -> None:
    texts = [element.text for element in ElementTree.fromstring(drawn()).iter() if element.text]
    assert {"hole 5 s", "32 kbit/s", "adaptive", "1.6", "63.5", "0.4", "2.9"} <= set(texts)
    assert not {"1.5", "0.3", "4.0"} & set(texts)
    assert "None, whoever sends: calm." in " ".join(texts)


@pytest.mark.parametrize("tool", ["rsvg-convert", "chromium"])
def test_the_picture_as_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    source = tmp_path / "link.svg"
    source.write_text(drawn(), encoding="utf-8")
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, len(commands) - 1)

    monkeypatch.setattr(shutil, "which", lambda name: name if name == tool else None)
    monkeypatch.setattr(subprocess, "run", run)
    assert write_png(source) == tmp_path / "link.png"
    assert write_png(source) is None  # it failed
    assert commands[0][0] == tool
    assert any(str(tmp_path / "link.png") in word for word in commands[0])
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert write_png(source) is None
