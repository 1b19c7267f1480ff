"""What the benchmarks compute: a wrong formula would report wrong figures for good."""

import json
import math
from pathlib import Path

import pytest

from bench._common import Report, percentile
from bench._session import Heard, deciding_position, deciding_positions
from bench.live_text import RATE, gaps
from protocol.frames import AudioFrame, Codec
from protocol.server_messages import SegmentBegin


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    assert percentile([7.0], 0.95) == 7
    assert percentile([1.0, 3.0, 2.0], 1) == 3
    assert math.isnan(percentile([], 0.5))
    assert math.isnan(percentile([5.0, math.nan], 1)), "nobody knows"


def test_a_missed_figure_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench._common.RESULTS", tmp_path / "results")
    report = Report("example")
    report.add("time", 5.0, "ms", 6)
    assert report.finish(tmp_path / "copy.json") == 0
    report.add("nothing measured", float("nan"), "ms", 6)
    assert report.finish(None) == 1
    figures = json.loads((tmp_path / "results" / "example.json").read_text(encoding="utf-8"))["figures"]
    assert [figure["ok"] for figure in figures] == [True, False]
    assert (tmp_path / "copy.json").exists()


@pytest.mark.parametrize(
    ("text", "position"),
    [("你好，", 3), ("Good morning,", 13), ("At 9 o'clock,", 13), ("好的没问题", None), ("One moment", None)],
)
def test_the_character_that_decides(text: str, position: int | None) -> None:
    assert deciding_position(text) == position


def heard_at(*arrivals: float) -> Heard:
    """One second of audio in each frame; the second segment begins with the second frame."""
    heard = Heard()
    for number, arrived in enumerate(arrivals):
        frame = AudioFrame(Codec.PCM, 1, number * RATE, RATE, bytes(2 * RATE))
        heard.frames.append((arrived, frame))
    heard.events = [SegmentBegin(1, 1, 0, 0, 3, 0), SegmentBegin(2, 1, 1, 3, 6, RATE)]
    return heard


def test_gaps_and_their_causes() -> None:
    text = "你好，再见。"
    assert [end for end, _ in deciding_positions(text)] == [3, 6]
    early = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert gaps(text, heard_at(1.0, 1.9, 2.9), early) == []
    late = gaps(text, heard_at(1.0, 2.5, 3.6), early)
    assert [(round(gap.at_s, 3), round(gap.length_s, 3), gap.is_late) for gap in late] == [
        (1.0, 0.5, True),
        (2.5, 0.1, True),
    ]
    slow_writer = [0.0, 0.1, 0.2, 2.0, 2.2, 2.4]
    (gap,) = gaps(text, heard_at(1.0, 2.45), slow_writer)
    assert not gap.is_late
    assert gap.unspoken == 1
