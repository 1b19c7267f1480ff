"""What the long-text benchmark computes: a wrong formula would report wrong figures for good."""

import math
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from xml.etree import ElementTree

import numpy as np
import pytest

from bench._common import Figure
from bench._longtext_failing import Book, Failed, Said, book_of, compare
from bench._longtext_joins import RATE, Wave, joins, longest_inside_ms, measure
from bench._longtext_memory import change_percent, table
from bench._longtext_picture import picture, round_thousands
from bench._longtext_run import Sample, thinned
from bench._longtext_texts import (
    both,
    chinese,
    english,
    longest_sentences,
    sentences,
    text_of,
)
from bench._session import Heard
from protocol import server_messages as s
from protocol.frames import AudioFrame, Codec, FrameFlag

DIGEST = "0" * 64


# Texts


@pytest.mark.parametrize("make", [english, chinese, both])
def test_no_sentence_comes_twice(make: object) -> None:
    assert callable(make)
    found = list(islice(sentences(make, 1), 5_000))
    assert len(set(found)) == len(found)
    assert list(islice(sentences(make, 1), 50)) == found[:50], "the same seed, the same text"
    assert list(islice(sentences(make, 2), 50)) != found[:50]


def test_the_share_of_sentences_that_come_again() -> None:
    counts = Counter(islice(sentences(english, 3, repeated=0.3), 4_000))
    again = sum(count - 1 for count in counts.values())
    assert again / 4_000 == pytest.approx(0.3, abs=0.03)


def test_texts_end_with_the_sentence_that_fills_them() -> None:
    text = text_of(2_000)
    assert 2_000 <= len(text) < 2_300
    assert text.rstrip()[-1] in ".?!"
    hanzi = sum("\u4e00" <= char <= "\u9fff" for char in text_of(20_000, both))
    assert 0.35 < hanzi / 20_000 < 0.6


def test_the_longest_sentences_come_first() -> None:
    """A text has none that is much longer, so that its memory is known from the start."""
    warm_up = max(map(len, longest_sentences(english).split(". ")))
    assert max(len(sentence) for sentence in islice(sentences(english, 9), 5_000)) < 1.1 * warm_up


# Figures, tables, curves


def test_what_is_asked() -> None:
    assert Figure("f", 1.3, "times", least=1.3).ok
    assert not Figure("f", 1.29, "times", least=1.3).ok
    assert not Figure("f", float("nan"), "times", least=1.3).ok
    assert Figure("f", 1.0, "times", least=1.3).asked == ">= 1.3 times"
    assert Figure("f", 1.0, "", limit=2).asked == "<= 2"
    assert Figure("f", 1.0, "").asked == ""


def test_a_thinned_curve_keeps_its_peaks() -> None:
    samples = [Sample(float(at), 50.0, 20.0) for at in range(1_000)]
    samples[777] = Sample(777.0, 99.0, 20.0)
    samples[778] = Sample(778.0, 50.0, 44.0)
    short = thinned(samples, 100)
    assert len(short) == 100
    assert max(each.server_mb for each in short) == 99
    assert max(each.client_mb for each in short) == 44
    assert thinned(samples[:7], 100) == tuple(samples[:7])


def test_the_change_against_what_was_measured_on_either_side() -> None:
    assert change_percent(11.0, [9.0, 10.0, 10.0, 30.0]) == pytest.approx(10)
    assert change_percent(9.0, [9.0, 9.0, 11.0, 11.0]) == pytest.approx(10)
    assert math.isnan(change_percent(1.0, [0.0, 0.0]))


def test_the_table_is_aligned() -> None:
    assert table([("", "a"), ("one", "1,000")]) == "         a\none  1,000"


def test_the_picture_is_one() -> None:
    curves = {
        "tone & PCM": {
            size: [Sample(0.0, 60.0, 30.0), Sample(1.0, 61.0, 31.0)] for size in (10_090, 100_032, 1_000_006)
        },
        "embedded": {size: [Sample(0.0, 300.0, 30.0)] for size in (1_003, 5_001, 20_010)},
    }
    root = ElementTree.fromstring(picture(curves))
    texts = [element.text for element in root.iter() if element.text]
    assert {"10,000", "100,000", "1,000,000", "20,000", "server", "client"} <= set(texts)
    assert round_thousands(57) == "57"


# Joins


def speech(seconds: float) -> Wave:
    """Something as loud as speech, without high frequencies."""
    at = np.arange(round(seconds * RATE)) / RATE
    return 0.3 * np.sin(2 * np.pi * 180 * at)


def test_a_join_that_cannot_be_heard() -> None:
    found = measure(speech(2.0), RATE, after_mark=False)
    assert found.step <= 1.01
    assert found.high_db < 3
    assert found.pause_ms == 0


def test_a_click_at_a_join() -> None:
    wave = speech(2.0)
    wave[RATE:] += 0.2
    found = measure(wave, RATE, after_mark=False)
    assert found.step > 2
    assert found.high_db > 10


def test_a_pause_at_a_join_and_one_beside_it() -> None:
    wave = speech(3.0)
    wave[RATE - 1_200 : RATE + 3_600] = 0
    assert measure(wave, RATE, after_mark=True).pause_ms == pytest.approx(200, abs=8)
    assert measure(wave, RATE + 8_000, after_mark=True).pause_ms == 0
    pcm = (wave * 32_767).astype("<i2").tobytes()
    assert longest_inside_ms(Book((said(0, 9, pcm),), 0, 0, 0)) == pytest.approx(200, abs=8)


def test_joins_are_those_inside_sentences() -> None:
    pcm = (speech(1.0) * 32_767).astype("<i2").tobytes()
    text = "one, two three. four"
    book = Book(tuple(said(a, b, pcm) for a, b in ((0, 5), (5, 9), (9, 16), (16, 20))), 0, 0, 0)
    assert [each.after_mark for each in joins(text, book)] == [True, False]


# A text with failures


def said(start: int, end: int, pcm: bytes, *, degraded: bool = False) -> Said:
    return Said(start, end, pcm, sha256(pcm).hexdigest(), degraded)


CALM = Book((said(0, 10, b"aabbcc"), said(10, 20, b"ddeeff"), said(20, 30, b"gghhii")), 0, 0, 0)
LETTER = Failed(10, 20, recovered=False, first_sample=1)


def with_second(segment: Said) -> Book:
    return replace(CALM, segments=(CALM.segments[0], segment, CALM.segments[2]))


def test_a_failure_that_disturbs_nothing() -> None:
    book = with_second(said(10, 20, b"ddxxyyzz", degraded=True))
    found = compare(CALM, book, [LETTER])
    assert found.failures == 1
    assert (found.otherwise_cut, found.intact_changed, found.sent_changed, found.wrong_digests) == (0, 0, 0, 0)
    assert (found.unwritten, found.untold, found.written_twice) == (0, 0, 0)


def test_what_succeeds_the_second_time_is_written_down_and_not_degraded() -> None:
    recovered = replace(LETTER, recovered=True)
    found = compare(CALM, CALM, [recovered])
    assert (found.failures, found.recovered, found.untold, found.intact_changed) == (1, 1, 0, 0)
    assert compare(CALM, with_second(said(10, 20, b"ddeeff", degraded=True)), [recovered]).untold == 1


@pytest.mark.parametrize(
    ("book", "letters", "what"),
    [
        (with_second(said(10, 20, b"ddeeXX")), [], "intact_changed"),
        (with_second(said(10, 20, b"XXeeff", degraded=True)), [LETTER], "sent_changed"),
        (with_second(replace(said(10, 20, b"ddeeff"), digest=DIGEST)), [], "wrong_digests"),
        (with_second(said(10, 20, b"ddxx", degraded=True)), [], "unwritten"),
        (CALM, [LETTER], "untold"),
        (with_second(said(10, 20, b"ddxx", degraded=True)), [LETTER, LETTER], "written_twice"),
        (with_second(said(10, 19, b"ddeeff")), [], "otherwise_cut"),
        (replace(CALM, segments=CALM.segments[:2]), [], "otherwise_cut"),
    ],
)
def test_every_fault_is_found(book: Book, letters: list[Failed], what: str) -> None:
    assert getattr(compare(CALM, book, letters), what) > 0


def heard(*frames: tuple[int, bytes | int], samples: int) -> Heard:
    """Frames of (first sample, samples or a count of silence); two segments of 3 and 2 samples."""
    found = Heard()
    for first, payload in frames:
        silent = isinstance(payload, int)
        count = payload if isinstance(payload, int) else len(payload) // 2
        flags = FrameFlag.SILENCE_RUN if silent else FrameFlag.NONE
        data = b"" if isinstance(payload, int) else payload
        found.frames.append((0.0, AudioFrame(Codec.PCM, 1, first, count, data, flags)))
    found.events += [
        s.SegmentBegin(1, 1, 0, 0, 4, 0),
        s.SegmentEnd(2, 1, 0, 3, DIGEST),
        s.SegmentBegin(3, 1, 1, 4, 8, 3),
        s.SegmentEnd(4, 1, 1, 2, DIGEST, degraded=True),
        s.Done(5, 1, samples, DIGEST, DIGEST, {}),
    ]
    return found


def test_a_book_is_put_together() -> None:
    book = book_of(heard((0, b"aabb"), (2, 1), (3, b"ddee"), samples=5))
    assert [each.pcm for each in book.segments] == [b"aabb\0\0", b"ddee"]
    assert [each.degraded for each in book.segments] == [False, True]
    assert (book.twice, book.missing, book.out_of_order) == (0, 0, 0)


def test_samples_that_come_twice_or_not_at_all() -> None:
    assert book_of(heard((0, b"aabb"), (1, b"bbcc"), (3, b"ddee"), samples=5)).twice == 1
    assert book_of(heard((0, b"aabb"), (3, b"ddee"), samples=5)).missing == 1
    assert book_of(heard((0, b"aabbcc"), (3, b"ddee"), samples=6)).missing == 1, "`done` says otherwise"


def test_segments_out_of_order() -> None:
    told = heard((0, b"aabbccddee"), samples=5)
    told.events[2] = replace(told.events[2], start=5)
    assert book_of(told).out_of_order == 1
