"""Segments and pieces of the embedded engine joined as a listener hears them: no click, no pause that nobody wrote."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest

from server.audio.chain import SegmentChain
from server.engines.base import Chunk, RenderPlan, Segment, SegmentEnd, WordTiming
from server.engines.embedded import create, pieces
from server.engines.embedded.catalog import CHINESE
from server.engines.embedded.engine import EmbeddedEngine
from server.text.characters import is_hanzi
from server.text.tokens import Boundary, Token
from tests.quality.acoustics import Floats, above, curvature, levels, longest_pause_s

ENGINE_RATE = 24_000
ENDS = {"/": Boundary.WORD, "，": Boundary.CLAUSE, ",": Boundary.CLAUSE, "；": Boundary.CLAUSE, "。": Boundary.SENTENCE,
        ".": Boundary.SENTENCE, "？": Boundary.SENTENCE, "\n": Boundary.PARAGRAPH}  # fmt: skip

# A slash cuts a clause between words.
TEXTS = {
    "zh": "昨天傍晚我和两个同事/沿着江边的小路散步，看见几只白鹭/停在浅滩上；谁也不肯先飞走。为什么呢？\n"
    "新修的自行车道/绕过了老槐树林。",
    "en": "Yesterday my neighbour carried two ladders /across the frozen yard, and the apples are shared "
    "/without a single argument. Nobody asked him /why he needed both.\nThe old clock /has been wrong for years.",
    "mixed": "我用Python写了一个script，然后把它/部署到cloud上面。It works /on my machine, 但是别人都说/不行。",
}


@dataclass(frozen=True, slots=True)
class Join:
    """Two segments meet at sample `at`; the middles of the words beside it are at `before` and `after`."""

    at: int
    before: int
    after: int
    boundary: Boundary


@dataclass(frozen=True, slots=True)
class Heard:
    """What a listener gets, its joins, and the places between words inside segments."""

    samples: Floats
    rate: int
    joins: tuple[Join, ...]
    inside: tuple[int, ...]

    def pause_ms(self, join: Join) -> float:
        """The longest silence between the two words."""
        return 1000 * longest_pause_s(self.samples[join.before : join.after], self.rate)


def tokens_of(text: str, first: int = 0) -> tuple[Token, ...]:
    found = re.finditer(r"[\u4e00-\u9fff]|[A-Za-z][A-Za-z'’-]*|[^\s/]", text)
    return tuple(
        Token(
            m.group(),
            m.start() + first,
            m.end() + first,
            "zh" if is_hanzi(m.group()[0]) else "en",
            "word" if m.group()[0].isalnum() else "mark",
        )
        for m in found
    )


def segments_of(text: str, speed: float = 1.0) -> list[Segment]:
    """Cut at every slash and mark; a sentence's words so far are the context of what follows."""
    segments: list[Segment] = []
    said: list[Token] = []
    for match in re.finditer(r"[^/，,；。.？\n]+([/，,；。.？\n]\n?)", text):
        tokens = tokens_of(match.group(), match.start())
        boundary = Boundary.PARAGRAPH if match.group(1).endswith("\n") else ENDS[match.group(1)]
        segments.append(
            Segment(len(segments), tokens, boundary, CHINESE.id, speed, before=tuple(said[-pieces.CONTEXT_WORDS :]))
        )
        said = [*said, *tokens] if boundary in (Boundary.WORD, Boundary.CLAUSE) else []
    return segments


@pytest.fixture(scope="module")
def engine() -> EmbeddedEngine:
    engine = create({})
    engine.warm_up()
    return engine


@lru_cache(maxsize=512)
def render(
    engine: EmbeddedEngine, segment: Segment, mode: RenderPlan, start: int = 0
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float32]], list[WordTiming]]:
    job = engine.prepare(segment, mode, seed=5, start_sample=start)
    parts = [np.zeros(0, np.float32)]
    words: list[WordTiming] = []
    while not isinstance(event := engine.step([job])[0], SegmentEnd):
        assert isinstance(event, Chunk), event
        parts.append(event.samples)
        words += event.words
    return np.concatenate(parts), words


def listen(engine: EmbeddedEngine, segments: Sequence[Segment], rate: int = ENGINE_RATE) -> Heard:
    """Render, bring to the listener's rate, and put end to end."""
    pcm = b""
    joins: list[Join] = []
    inside: list[int] = []
    last_middle = 0
    boundary: Boundary | None = None
    for segment in segments:
        samples, words = render(engine, segment, RenderPlan("stream"))
        chain = SegmentChain(ENGINE_RATE, rate)
        at = len(pcm) // 2
        middles = [at + chain.scale((w.first_sample + w.end_sample) // 2) for w in words]
        if boundary is not None:
            joins.append(Join(at, last_middle, middles[0], boundary))
        inside += [at + chain.scale(w.first_sample) for w in words[1:]]
        pcm += chain.process(samples, last=True)
        last_middle, boundary = middles[-1], segment.boundary
    return Heard(np.frombuffer(pcm, "<i2") / 32768, rate, tuple(joins), tuple(inside))


# --- clicks


def click(samples: Floats, rate: int, at: int) -> float:
    """How much the sample's neighbourhood of 1 ms stands out of the 12 ms before and after it: by the sharpest bend
    of the wave, and by what lies above 5 kHz. 1 is like the neighbours; 0.001 of full scale is below hearing.
    """
    near, far = rate // 1000, 12 * rate // 1000
    part = samples[max(0, at - 2 * far) : at + 2 * far]
    centre = min(at, 2 * far)
    ratios = []
    for sound in (curvature(part), np.abs(above(part, rate, 5000))):
        ring = np.concatenate([sound[centre - far : centre - near], sound[centre + near : centre + far]])
        ratios.append(float(sound[centre - near : centre + near].max() / (0.001 + ring.max())))
    return max(ratios)


@pytest.mark.parametrize("rate", [16_000, 24_000, 48_000])
@pytest.mark.parametrize("speed", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_join_clicks(engine: EmbeddedEngine, text: str, speed: float, rate: int) -> None:
    heard = listen(engine, segments_of(text, speed), rate)
    assert len(heard.joins) >= 5
    inside = [click(heard.samples, rate, at) for at in heard.inside]
    joins = [click(heard.samples, rate, join.at) for join in heard.joins]
    assert max(joins) <= max(1.5, np.quantile(inside, 0.95))


def test_a_broken_join_would_be_found(engine: EmbeddedEngine) -> None:
    """Vowels that are cut off where they are loud: each of these joins clicks by the same measure."""
    found = []
    for segment in segments_of(TEXTS["zh"]) + segments_of(TEXTS["en"]):
        samples, words = render(engine, segment, RenderPlan("stream"))
        loud = levels(samples.astype(np.float64), ENGINE_RATE)
        cut = int(loud[: words[-1].end_sample // 120].argmax()) * 120
        cut += int(np.abs(samples[cut : cut + 120]).argmax())
        broken = np.concatenate([samples[:cut], np.zeros(2400, np.float32)]).astype(np.float64)
        found.append(click(broken, ENGINE_RATE, cut))
    assert np.median(found) > 3
    assert min(found) > 1.5


# --- pauses


def one_call(engine: EmbeddedEngine, text: str) -> dict[int, float]:
    """The silence before each word when a sentence is spoken in one call, by the word's place in the text."""
    pauses: dict[int, float] = {}
    with patch.object(pieces, "MAX_WORDS", {"zh": 64, "en": 64}):
        samples, words = render(
            engine, Segment(0, tokens_of(text), Boundary.SENTENCE, CHINESE.id), RenderPlan("stream")
        )
    for first, second in pairwise(words):
        low, high = (first.first_sample + first.end_sample) // 2, (second.first_sample + second.end_sample) // 2
        pauses[second.start] = 1000 * longest_pause_s(samples[low:high].astype(np.float64), ENGINE_RATE)
    return pauses


SENTENCES = [
    "昨天傍晚我和两个同事/沿着江边的小路散步。",
    "新修的自行车道/绕过了那片老槐树林。",
    "会议室的投影仪/已经坏了三天。",
    "一个连续的晴天/可以让稻田/提前成熟。",
    "The bakers gave the first loaf /to whoever had been waiting.",
    "The old clock in the hall /has been wrong for years.",
    "The apples were shared /without an argument.",
    "Many children /were building small dams /from stones.",
]


def test_a_cut_between_words_adds_no_pause(engine: EmbeddedEngine) -> None:
    added = []
    for text in SENTENCES:
        expected = one_call(engine, text)
        heard = listen(engine, segments_of(text))
        places = [m.end() for m in re.finditer("/", text)]
        for join, place in zip(heard.joins, places, strict=True):
            assert join.boundary is Boundary.WORD
            added.append(heard.pause_ms(join) - expected[place])
    assert np.median(added) <= 10
    assert max(added) <= 60


@pytest.mark.parametrize("speed", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_pauses_are_those_of_the_marks(engine: EmbeddedEngine, text: str, speed: float) -> None:
    wanted = {
        Boundary.CLAUSE: (pieces.PAUSE_MS[pieces.Mark.COMMA], pieces.PAUSE_MS[pieces.Mark.COLON]),
        Boundary.SENTENCE: (pieces.PAUSE_MS[pieces.Mark.STOP],) * 2,
        Boundary.PARAGRAPH: (650, 650),
    }
    for rate in (16_000, 48_000):
        heard = listen(engine, segments_of(text, speed), rate)
        for join in heard.joins:
            pause = heard.pause_ms(join)
            if join.boundary is Boundary.WORD:
                assert pause <= 110 / speed
            else:
                least, most = wanted[join.boundary]
                assert least / speed - 60 <= pause <= most / speed + 100  # a last consonant may be quieter than speech


# --- the same samples, however they are asked for


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_segments_with_context_do_not_depend_on_how_they_are_rendered(engine: EmbeddedEngine, text: str) -> None:
    for segment in segments_of(text):
        streamed, words = render(engine, segment, RenderPlan("stream"))
        whole, whole_words = render(engine, segment, RenderPlan("block"))
        assert len(streamed) == len(whole)
        assert np.abs(np.rint(streamed * 32767) - np.rint(whole * 32767)).max() <= 1
        assert words == whole_words
        assert [w.text for w in words] == [t.text for t in segment.tokens if t.kind == "word"]
        for start in (1, 2400, len(streamed) // 2, len(streamed) - 1):
            rest, _ = render(engine, segment, RenderPlan("stream"), start)
            assert np.array_equal(rest, streamed[start:])


def test_what_was_said_before_changes_how_a_segment_begins(engine: EmbeddedEngine) -> None:
    first, second = segments_of("昨天傍晚我和两个同事/沿着江边的小路散步。")
    assert engine.capabilities.context_tokens == pieces.CONTEXT_WORDS > 0
    alone = Segment(1, second.tokens, second.boundary, second.voice)
    with_context, _ = render(engine, second, RenderPlan("stream"))
    without, _ = render(engine, alone, RenderPlan("stream"))
    assert len(with_context) != len(without)
    after_a_sentence = Segment(1, second.tokens, second.boundary, second.voice, before=tokens_of("他走了。"))
    assert np.array_equal(render(engine, after_a_sentence, RenderPlan("stream"))[0], without)
    assert first.before == ()
