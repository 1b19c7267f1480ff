"""Text at a language model's speed leaves no gap, by the text alone."""

import pytest

from server.text.pacing import MARGIN_S, WRITING_RATE, Pacing, least_duration
from server.text.segmenter import Segmenter
from server.text.tokens import Boundary

A_LONG_WORD_S = 0.1  # a word is known when it has ended; forecasts are shorter than speech by more than this
TEXTS = [
    "Sure! The city lies where two great rivers meet, and its history goes back more than two thousand years.",
    "Yes. I think that is a good idea, because it gives everyone enough time to prepare for the meeting.",
    "Once upon a time, there was a temple on a mountain. An old monk and a young monk lived there together.",
    "To make this soup, you need 2 onions, 3 carrots, and about 500 grams of potatoes. Chop everything first.",
    "Every morning the young monk walked down to the river to fetch some water and then climbed the long path again",
    "好的。这个问题其实可以分成三个部分来看。第一，我们需要知道数据从哪里来；第二，要确认它们是否完整。",
    "OK，我们来看一下。Python 3.12 was released in October, and it brings many improvements for everybody.",
]


def decisions(text: str) -> list[tuple[str, Boundary, int]]:
    """Each cut's text and boundary, and how many characters were written when it was certain."""
    segmenter = Segmenter()
    found = []
    for written, char in enumerate(text, 1):
        segmenter.feed(char)
        while (cut := segmenter.next()) is not None:
            found.append((cut.text, cut.boundary, written))
    segmenter.end()
    while (cut := segmenter.next()) is not None:
        found.append((cut.text, cut.boundary, len(text)))
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_every_segment_is_cut_before_the_sound_of_the_last_one_ends(text: str) -> None:
    sounds_until = None
    for segment, boundary, written in decisions(text):
        now = written / WRITING_RATE
        if sounds_until is not None:
            assert now <= sounds_until + A_LONG_WORD_S, segment
        sounds_until = max(now, sounds_until or 0.0) + least_duration(segment, boundary)


@pytest.mark.parametrize("text", TEXTS)
def test_later_segments_are_phrases_not_single_words(text: str) -> None:
    for segment, boundary, _ in decisions(text)[1:]:
        if boundary is Boundary.WORD:
            assert len(segment.split()) >= 2 or not segment.isascii(), segment


def test_nothing_said_means_no_hurry() -> None:
    pacing = Pacing()
    assert pacing.deadline == float("inf")
    pacing.cut("……", Boundary.CLAUSE, 2)
    assert pacing.deadline == float("inf")
    pacing.cut("你好。", Boundary.SENTENCE, 5)
    spoken = least_duration("你好。", Boundary.SENTENCE)
    assert pacing.deadline == pytest.approx(5 + WRITING_RATE * (spoken - MARGIN_S))
    pacing.flushed(30)
    assert pacing.deadline == float("inf")


@pytest.mark.parametrize(
    ("text", "boundary", "seconds"),  # as the embedded voices speak them
    [
        ("Sure!", Boundary.SENTENCE, 0.82),
        ("The city lies ", Boundary.WORD, 0.85),
        ("There are three parts to this question.", Boundary.SENTENCE, 2.01),
        ("In 2023,", Boundary.CLAUSE, 1.32),
        ("很高兴为你介绍这座城市。", Boundary.SENTENCE, 2.33),
        ("比上一年增长了12.4%。", Boundary.SENTENCE, 2.86),
    ],
)
def test_forecasts_are_near_and_rarely_too_long(text: str, boundary: Boundary, seconds: float) -> None:
    assert 0.6 * seconds <= least_duration(text, boundary) <= 1.1 * seconds
