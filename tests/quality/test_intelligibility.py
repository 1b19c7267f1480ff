"""A recogniser listens to what a client receives: is it what was written?"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.quality import report
from tests.quality.acoustics import levels
from tests.quality.listening import Speech, speak
from tests.quality.recogniser import Recogniser
from tests.quality.scoring import Kind, Score, score, total
from tests.quality.sentences import ALL, CHINESE, ENGLISH, MIXED, Sentence

LIMITS: dict[Kind, float] = {"zh": 0.12, "en": 0.08, "mixed": 0.25}  # syllable, word, and token error
SAMPLE = (Path(__file__).resolve().parents[2] / "docs" / "sample.txt").read_text(encoding="utf-8")
WRITING_SPEED = 30  # characters a second, as a language model writes

Hear = Callable[[str, str], str]


def listen(title: str, sentences: Sequence[Sentence], hear: Callable[[Sentence], str]) -> dict[Kind, Score]:
    """Hear sentences, report them, and give the score of each kind."""
    found: dict[Kind, list[Score]] = {}
    rows = []
    for sentence in sentences:
        heard = hear(sentence)
        result = score(sentence.kind, sentence.said, heard)
        found.setdefault(sentence.kind, []).append(result)
        rows.append((f"{result.errors}/{result.length}", sentence.text))
        if result.errors:
            rows.append(("", f"-> {heard}"))
    report.table(title, ("errors", "written, and where it differs, -> heard"), rows)
    totals = {kind: total(scores) for kind, scores in found.items()}
    for kind, result in totals.items():
        report.say(f"  {kind}: {result.errors} of {result.length} = {result.rate:.1%} (at most {LIMITS[kind]:.0%})")
    return totals


def check(totals: dict[Kind, Score]) -> None:
    """Every kind within its limit."""
    for kind, result in totals.items():
        assert result.rate <= LIMITS[kind], f"{kind}: {result.rate:.1%} of what was said was not understood"


def test_eight_sentences_are_understood(hear: Hear) -> None:
    check(listen("Eight sentences", [s for s in ALL if s.ci], lambda s: hear(s.text, s.kind)))


@pytest.mark.quality
@pytest.mark.parametrize("sentences", [CHINESE, ENGLISH, MIXED], ids=["zh", "en", "mixed"])
def test_every_sentence_is_understood(sentences: Sequence[Sentence], hear: Hear) -> None:
    check(listen(f"All sentences, {sentences[0].kind}", sentences, lambda s: hear(s.text, s.kind)))


@pytest.mark.quality
@pytest.mark.parametrize(
    "options",
    [{"format": "opus", "bitrate": 32_000}, {"format": "opus", "bitrate": 16_000}, {"sample_rate": 8_000}],
    ids=["opus-32k", "opus-16k", "pcm-8kHz"],
)
def test_other_formats_are_understood(options: dict[str, Any], server_url: str, recogniser: Recogniser) -> None:
    def hear(sentence: Sentence) -> str:
        speech = speak(server_url, sentence.text, **options)
        return recogniser.text(speech.pcm, speech.rate, "en" if sentence.kind == "en" else "zh")

    sentences = [s for s in ALL if s.ci]
    check(listen(f"Eight sentences, {options}", sentences, hear))


def test_opus_is_the_same_speech(server_url: str, say: Callable[[str], Speech]) -> None:
    """Same length to the sample, same loudness in every 20 ms that is not quiet."""
    text = ENGLISH[0].text
    plain, coded = say(text), speak(server_url, text, format="opus", bitrate=64_000)
    assert len(coded.pcm) == len(plain.pcm)
    assert coded.words == plain.words
    before, after = (levels(speech.floats, speech.rate, window_ms=20) for speech in (plain, coded))
    loud = before > -30
    assert loud.sum() > 20
    assert abs(before - after)[loud].max() < 3


def test_streamed_text_gives_the_same_audio(server_url: str, say: Callable[[str], Speech]) -> None:
    streamed = speak(server_url, SAMPLE[:90], per_second=WRITING_SPEED)
    assert streamed.digest == say(SAMPLE[:90]).digest
    assert streamed.words == say(SAMPLE[:90]).words


DEMO: tuple[tuple[Kind, str], ...] = (
    ("zh", "你好欢迎使用语音合成服务今天是二零二六年三月十五日气温二十三度一共花了一百二十八点五元"),
    (
        "en",
        "hello this speech was made while the text was still being written it cost four dollars and ninety nine cents "
        "and took less than a tenth of a second",
    ),
    ("mixed", "我们用 iphone 十五测试了 streaming 效果很好"),
)


@pytest.mark.quality
def test_the_demo_is_understood_in_both_languages(server_url: str, recogniser: Recogniser) -> None:
    """Streamed as `make demo` does; each line is heard on its own, cut out at the segments' bounds."""
    speech = speak(server_url, SAMPLE, per_second=WRITING_SPEED)
    lines = list(re.finditer(r"[^\n]+", SAMPLE))
    begins = [next(s.first_sample for s in speech.segments if s.end > line.start() + 1) for line in lines]
    sentences, heard = [], {}
    for (kind, said), line, first, end in zip(DEMO, lines, begins, [*begins[1:], len(speech.pcm)], strict=True):
        sentence = Sentence(kind, line.group(), (said,))
        sentences.append(sentence)
        heard[sentence] = recogniser.text(speech.pcm[first:end], speech.rate, "en" if kind == "en" else "zh")
    check(listen("The demo's text", sentences, heard.__getitem__))
