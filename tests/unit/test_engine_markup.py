"""An engine that reads marks in a text gets them as they were written; any other one does not see them."""

from dataclasses import replace

import pytest

from server.cluster.segment import SegmentWork
from server.engines.rendering import SegmentRequest
from server.engines.tone import ToneEngine
from server.text.tokens import Boundary, Cut, CutCause


def reading() -> ToneEngine:
    """The test engine, as if it could laugh."""
    engine = ToneEngine()
    engine.capabilities = replace(engine.capabilities, markup=frozenset({"[laughter]", "[h]", "[ǎo]"}))
    return engine


@pytest.mark.parametrize(
    ("engine", "words", "before"),
    [
        (reading(), ["他", "[laughter]", "[h][ǎo]"], ["[h][ǎo]"]),
        (ToneEngine(), ["他", "laughter", "h"], ["h"]),
    ],
)
def test_marks_reach_the_engine_that_reads_them(engine: ToneEngine, words: list[str], before: list[str]) -> None:
    text = "他[laughter]好"
    cut = Cut(10, 10 + len(text), text, Boundary.SENTENCE, CutCause.END, "zh")
    request = SegmentRequest(
        1, cut, engine.capabilities.voices[0].id, 24_000, lexicon={"好": "[h][ǎo]"}, before="[h][ǎo]"
    )
    segment = SegmentWork(request, 0, 24_000).begin(engine).segment
    assert [token.text for token in segment.tokens] == words
    assert [token.text for token in segment.before] == before
