"""`make demo-drop` on a small scale: it shows what happened and proves what it says."""

from pathlib import Path

import pytest

from deploy import demo_drop
from deploy.demo_drop import FAULTS, DemoError, Fault, show_it
from deploy.demo_picture import buffer_picture
from deploy.faulty_proxy import DOWN, UP, Connection
from protocol import server_messages as s
from tests.support.server import running

TEXT = "第一句话，第二句话，第三句话。 And a sentence in English, and one more."


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faults = (
        Fault(0.3, "RESET", lambda proxy: proxy.each(Connection.reset)),
        Fault(0.7, "TUNNEL", lambda proxy: proxy.hole(UP, DOWN), 0.4),
    )
    monkeypatch.setattr(demo_drop, "FAULTS", faults)
    monkeypatch.setattr(demo_drop, "TEXT", TEXT)
    monkeypatch.setattr(demo_drop, "LEAD_MS", 1_000)
    monkeypatch.setattr(demo_drop, "AUDIO", tmp_path / "out.wav")


async def test_it_proves_that_nothing_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    async with running() as server:
        assert server.listener is not None
        port = server.listener.port
        await show_it(port, f"ws://127.0.0.1:{port}/v1/stream")
    shown = capsys.readouterr().out
    assert "CUT 1  RESET" in shown
    assert "CUT 2  TUNNEL" in shown
    assert "Bit for bit the same" in shown
    assert demo_drop.AUDIO.stat().st_size > 60_000
    lines = [line for line in shown.splitlines() if " [info " not in line]  # the server's log, of the same process here
    assert max(map(len, lines)) <= 80
    rows = {line[:40].strip(): line[40:].split() for line in lines}
    assert len(set(rows["SHA-256, as the server counted"] + rows["SHA-256, of what the client has"])) == 1
    (new,), (old,) = rows["cuts, then a new connection went on"], rows["cuts, then the old one worked again"]
    assert int(new) >= 1  # after the reset
    assert int(new) + int(old) == 2


def test_what_it_says_of_a_cut_fits_in_a_terminal() -> None:
    assert max(len(fault.what) for fault in FAULTS) <= 40


def test_it_fails_where_a_sample_is_wrong() -> None:
    calm, spoken = demo_drop.Spoken(), demo_drop.Spoken()
    for each in (calm, spoken):
        each.pcm += bytes(2_000)
        each.segments.append(s.SegmentEnd(1, 1, 0, 1_000, ""))
        each.done = s.Done(2, 1, 1_000, each.digest(bytes(2_000)), "", {})
    demo_drop.write(spoken)
    assert "samples" in demo_drop.report(calm, spoken, 4)[1]
    spoken.pcm[1_000] = 1
    demo_drop.write(spoken)
    with pytest.raises(DemoError, match=r"the file has the server's checksum.*every sample is that of the undisturbed"):
        demo_drop.report(calm, spoken, 4)
    spoken.lost = 1
    with pytest.raises(DemoError, match="no sample was lost"):
        demo_drop.report(calm, spoken, 4)


async def test_a_speech_that_ends_before_the_last_cut_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_drop, "TEXT", "好。")
    async with running() as server:
        assert server.listener is not None
        with pytest.raises(DemoError, match="before the last cut"):
            await show_it(server.listener.port, f"ws://127.0.0.1:{server.listener.port}/v1/stream")


def test_the_picture() -> None:
    lines = buffer_picture([0.0, 1.0, 2.0, 4.0, 2.0], [(0.5, 0.5)], 0.5).splitlines()
    assert lines[1].endswith("│   █")
    assert lines[6].endswith("│ ████")
    assert lines[7].endswith("└─1───")
    assert lines[8].strip() == "0 s"
    assert "the line is dead" in lines[9]


def test_a_dead_line_is_drawn_as_long_as_it_was_dead() -> None:
    line = buffer_picture([1.0] * 30, [(1.0, 1.0), (3.3, 5.3), (13.0, 18.0)], 0.5).splitlines()[7]
    assert line == "  line └──1───2╳╳╳────────────────3╳╳╳"


@pytest.mark.parametrize("seconds", [20, 36, 37, 100, 400])
def test_the_picture_fits_in_a_terminal(seconds: int) -> None:
    levels = [4.0] * (2 * seconds)
    levels[9] = 0.0
    lines = buffer_picture(levels, [(seconds / 2, seconds)], 0.5).splitlines()
    assert max(map(len, lines)) <= 80
    assert " " in lines[6].split("│")[1]  # silence is not lost where levels are put together
    dead = lines[7].count("╳") + 1
    assert dead / len(lines[7].split("└")[1]) == pytest.approx(0.5, abs=0.05)
