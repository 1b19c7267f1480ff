"""The server's word times against two other opinions: a recogniser's, and the rise of the sound itself."""

import re
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pytest

from tests.quality import report
from tests.quality.acoustics import above, levels
from tests.quality.listening import Speech
from tests.quality.recogniser import Recogniser
from tests.quality.scoring import syllables
from tests.quality.sentences import (
    HISSING_CHINESE,
    HISSING_ENGLISH,
    ISOLATED_CHINESE,
    ISOLATED_ENGLISH,
    RUNNING_CHINESE,
    RUNNING_ENGLISH,
)

MEDIAN_MS = 80
LEAST_MATCHED = 0.7  # of the server's words
RISE_DB = 30  # a word begins where it comes within this of its loudest
SIBILANT_RISE_DB = 15  # the same for s and sh, which are steady
NEAR_S = 0.15  # how far from the word's start its sibilant is looked for

Say = Callable[[str], Speech]
Timed = Sequence[tuple[str, float]]


def paired(ours: Timed, theirs: Timed) -> list[tuple[float, float]]:
    """Times of the words that both have, in the order that pairs the most (longest common subsequence)."""
    counts = np.zeros((len(ours) + 1, len(theirs) + 1), int)
    for i in range(len(ours) - 1, -1, -1):
        for j in range(len(theirs) - 1, -1, -1):
            same = ours[i][0] == theirs[j][0]
            counts[i, j] = counts[i + 1, j + 1] + 1 if same else max(counts[i + 1, j], counts[i, j + 1])
    pairs, i, j = [], 0, 0
    while i < len(ours) and j < len(theirs):
        if ours[i][0] == theirs[j][0]:
            pairs.append((ours[i][1], theirs[j][1]))
            i, j = i + 1, j + 1
        elif counts[i + 1, j] >= counts[i, j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def test_pairing_skips_what_only_one_has() -> None:
    ours = [("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0)]
    assert paired(ours, [("a", 1.1), ("x", 1.5), ("c", 3.1), ("d", 4.1)]) == [(1.0, 1.1), (3.0, 3.1), (4.0, 4.1)]
    assert paired(ours, []) == []


def check(title: str, differences_ms: Sequence[float]) -> None:
    """Report signed differences; their median size must be within the limit."""
    size = float(np.median(np.abs(differences_ms)))
    report.say(f"{title} (ms): {report.distribution(differences_ms)}; median size {size:.0f} (at most {MEDIAN_MS})")
    assert size <= MEDIAN_MS


@pytest.mark.quality
@pytest.mark.parametrize(("language", "text"), [("zh", RUNNING_CHINESE), ("en", RUNNING_ENGLISH)], ids=["zh", "en"])
def test_running_text_against_the_recogniser(
    language: Literal["zh", "en"], text: str, say: Say, recogniser: Recogniser
) -> None:
    """Whisper itself is 40 to 75 ms early, judged by the sound of s, sh and the like."""
    speech = say(text)
    ours = [(_key(word.text), word.first_sample / speech.rate) for word in speech.words]
    theirs = []
    for word in recogniser.words(speech.pcm, speech.rate, language):
        plain = re.sub(r"\W", "", word.text)
        if plain:  # a Chinese word may hold several characters; only the first has a time
            theirs.append((_key(plain[0] if language == "zh" else plain), word.start_s))
    pairs = paired(ours, theirs)
    assert len(pairs) >= LEAST_MATCHED * min(len(ours), len(theirs)), "too few words were understood to compare"
    check(f"Word starts, server minus recogniser, {language}", [1000 * (a - b) for a, b in pairs])


def _key(text: str) -> str:
    """How a word is compared: Hanzi by syllable, Latin in lower case without marks."""
    plain = re.sub(r"\W", "", text.lower())
    return " ".join(syllables(plain)) if re.search(r"[㐀-鿿]", plain) else plain


@pytest.mark.parametrize(
    ("text", "sibilant"),
    [(HISSING_CHINESE, r"[szxqj]|ch?(?=[aeiou])"), (HISSING_ENGLISH, r"s(?!m|n)|ch")],
    ids=["zh", "en"],
)
def test_running_text_against_the_sound(text: str, sibilant: str, say: Say) -> None:
    """Words that begin with s, sh, x ... begin where the sound above 4 kHz rises, in the middle of a phrase too."""
    speech = say(text)
    high = above(speech.floats, speech.rate, 4_000)
    differences = []
    for word in speech.words:
        if re.match(sibilant, _key(word.text)):
            at = word.first_sample / speech.rate
            low = max(0, round((at - NEAR_S) * speech.rate))
            found = levels(high[low : round((at + NEAR_S) * speech.rate)], speech.rate)
            peak = int(found.argmax())
            quiet = np.flatnonzero(found[:peak] < found[peak] - SIBILANT_RISE_DB)
            rise = low / speech.rate + 0.005 * (int(quiet[-1]) + 1 if len(quiet) else 0)
            differences.append(1000 * (at - rise))
    assert len(differences) >= 15
    check(f"Word starts, server minus sibilant, {text[:10]} ...", differences)


@pytest.mark.parametrize("words", [ISOLATED_CHINESE, ISOLATED_ENGLISH], ids=["zh", "en"])
def test_isolated_words_against_the_sound(words: Sequence[str], say: Say) -> None:
    """Each word stands alone in its line; its sound rises where the server says it begins."""
    speech = say("\n".join(words))
    assert len(speech.segments) == len(words)
    bounds = [segment.first_sample for segment in speech.segments] + [len(speech.pcm)]
    differences = []
    for number, segment in enumerate(speech.segments):
        first = next(w for w in speech.words if segment.start <= w.start < segment.end)
        found = levels(speech.floats[bounds[number] : bounds[number + 1]], speech.rate)
        rise = int(np.flatnonzero(found > found.max() - RISE_DB)[0]) * 5.0
        differences.append(1000 * (first.first_sample - bounds[number]) / speech.rate - rise)
    check(f"Word starts, server minus sound, {words[0]} ...", differences)
