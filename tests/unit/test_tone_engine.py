"""The test engine's options are checked in one line each."""

from typing import Any

import numpy as np
import pytest

from server.engines import Boundary, Chunk, EngineError, RenderPlan, Segment, SegmentEnd, SegmentFailed, Token
from server.engines.tone import count_tokens, create


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"foo": "1"},
            "engine option foo is not one of batch_max, cloning, codes, context_tokens, lanes, max_tokens, script, ",
        ),
        ({"codes": 1}, "engine option codes must be true or false, not 1"),
        ({"lanes": -1}, "lanes must be a number from 0 to 64, not -1"),
        ({"script": "fail"}, "engine option script must be a list of tables"),
        ({"script": 7}, "engine option script must be a list of tables"),
        ({"script": ["fail"]}, "engine option script must be a list of tables"),
        ({"script": [{"action": "explode"}]}, "action must be one of delay, stall, fail"),
        ({"script": [{"action": ["fail"]}]}, "action must be one of"),
        ({"script": [{"action": "fail", "match": 7}]}, "match must be a text, not 7"),
        ({"script": [{"action": "fail", "at": "soon"}]}, "script: at must be a number from 0"),
        ({"script": [{"action": "fail", "at": 1.5}]}, "script: at must be a whole number"),
        ({"script": [{"action": "delay", "ms": None}]}, "script: ms must be a number"),
        ({"script": [{"action": "fail", "rate": 1.5}]}, "script: rate must be a number from 0 to 1"),
        ({"script": [{"action": "fail", "times": -1}]}, "script: times must be a number from 0"),
        ({"script": [{"action": "fail", "seed": "x"}]}, "script: seed must be a number"),
        ({"script": [{"action": "fail", "transient": 1}]}, "script: transient must be true or false"),
        ({"script": [{"action": "delay", "mss": 5}]}, "script: mss is not one of action, at, match, ms"),
        ({"step_delay_ms": "slow"}, "step_delay_ms must be a number"),
        ({"step_delay_ms": -1}, "step_delay_ms must be a number from 0 to 60000, not -1"),
        ({"step_delay_ms": float("nan")}, "step_delay_ms must be a number"),
        ({"batch_max": 0}, "batch_max must be a number from 1"),
        ({"max_tokens": 15}, "max_tokens must be a number from 16 to 4096, not 15"),
        ({"max_tokens": 4097}, "max_tokens must be a number from 16 to 4096, not 4097"),
        ({"context_tokens": 65}, "context_tokens must be a number from 0 to 64, not 65"),
        ({"batch_max": []}, "batch_max must be a number"),
        ({"batch_max": True}, "batch_max must be a number"),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="engine option") as raised:
        create(options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_options_may_be_texts_as_on_a_command_line() -> None:
    assert create({"batch_max": "3", "step_delay_ms": "1.5"}).capabilities.batch_max == 3
    capabilities = create({"max_tokens": "256", "context_tokens": "16"}).capabilities
    assert (capabilities.max_tokens, capabilities.context_tokens) == (256, 16)
    capabilities = create({"codes": "true", "lanes": "2"}).capabilities
    assert (capabilities.equality, capabilities.lanes) == ("none", 2)
    assert (create({}).capabilities.max_tokens, create({}).capabilities.context_tokens) == (40, 0)


def test_tokens_are_hanzi_and_words() -> None:
    assert count_tokens("你好，𠀀 hello world") == 5


def test_tone_is_deterministic_however_it_is_cut_into_chunks() -> None:
    engine = create({"batch_max": 2})
    tokens = tuple(Token(ch, i, i + 1, "zh") for i, ch in enumerate("你好"))
    segment = Segment(0, tokens, Boundary.SENTENCE, "tone-low")
    jobs = [engine.prepare(segment, RenderPlan()), engine.prepare(segment, RenderPlan(chunk_ms=(10,)))]
    audio: list[list[Any]] = [[], []]
    ended: set[int] = set()
    while len(ended) < 2:
        for event in engine.step([job for n, job in enumerate(jobs) if n not in ended]):
            number = jobs.index(event.job)  # type: ignore[arg-type]  # jobs of this engine
            if isinstance(event, Chunk):
                audio[number].extend(event.samples.tolist())
            elif isinstance(event, SegmentEnd):
                ended.add(number)
    assert audio[0] == audio[1]
    assert len(audio[0]) == 2 * 2_880 + 5_760


@pytest.mark.parametrize("plan", [RenderPlan(), RenderPlan("block"), RenderPlan("stream", (40, 120, 60))])
def test_a_late_start_gives_the_rest_in_the_same_chunks(plan: RenderPlan) -> None:
    engine = create({})
    tokens = tuple(Token(ch, i, i + 1, "zh") for i, ch in enumerate("你好世界你好"))
    segment = Segment(0, tokens, Boundary.CLAUSE, "tone-low", speed=0.9)

    def render(start: int) -> tuple[list[float], list[Any], list[int]]:
        job = engine.prepare(segment, plan, 3, start)
        samples: list[float] = []
        words: list[Any] = []
        ends: list[int] = []
        while True:
            for event in engine.step([job]):
                if isinstance(event, SegmentEnd):
                    return samples, words, ends
                assert isinstance(event, Chunk)
                samples += event.samples.tolist()
                words += event.words
                ends.append(start + len(samples))

    whole, whole_words, whole_ends = render(0)
    for start in (1, 2_399, 2_400, 3_200, 10_000, len(whole) - 1, len(whole), len(whole) + 9):
        samples, words, ends = render(start)
        assert samples == whole[start:]
        assert words == [word for word in whole_words if word.end_sample > start and samples]
        assert ends == [end for end in whole_ends if end > start]


def test_chunks_have_their_numbers_wherever_it_starts() -> None:
    """What a script does to a segment it does again at another worker, which goes on in the middle."""
    engine = create({"script": [{"at": 2, "action": "fail"}]})
    tokens = tuple(Token(ch, i, i + 1, "zh") for i, ch in enumerate("你好世界你好"))
    segment = Segment(0, tokens, Boundary.CLAUSE, "tone-low")
    for start, steps_before in ((0, 2), (2_400, 1), (7_199, 1), (7_200, 0), (9_000, 0)):
        job = engine.prepare(segment, RenderPlan(), start_sample=start)
        for _ in range(steps_before):
            assert isinstance(engine.step([job])[0], Chunk)
        assert isinstance(engine.step([job])[0], SegmentFailed)


def job_events(rules: list[dict[str, Any]], text: str = "你好世界你好", *, most: int = 20, start: int = 0) -> list[Any]:
    return events_of(create({"script": rules}), text, most=most, start=start)


def events_of(engine: Any, text: str, *, most: int = 20, start: int = 0) -> list[Any]:
    """What comes of a segment, up to so many events."""
    tokens = tuple(Token(ch, i, i + 1, "zh") for i, ch in enumerate(text))
    job = engine.prepare(Segment(0, tokens, Boundary.CLAUSE, "tone-low"), RenderPlan(), start_sample=start)
    events: list[Any] = []
    while len(events) < most and not (events and isinstance(events[-1], SegmentEnd | SegmentFailed)):
        events += engine.step([job])
    return events


def test_want_of_memory_is_transient() -> None:
    failed = job_events([{"at": 1, "action": "oom"}])[-1]
    assert isinstance(failed, SegmentFailed)
    assert isinstance(failed.error, EngineError)
    assert (failed.error.kind, failed.error.transient) == ("out_of_memory", True)


def test_numbers_that_are_no_sound_and_silence() -> None:
    chunks = [each for each in job_events([{"at": 1, "action": "nan"}]) if isinstance(each, Chunk)]
    assert [bool(np.isnan(chunk.samples).all()) for chunk in chunks] == [False, True, False, False]
    chunks = [each for each in job_events([{"at": 1, "action": "silent"}]) if isinstance(each, Chunk)]
    assert [bool(chunk.samples.any()) for chunk in chunks] == [True, False, False, False]


def test_a_chunk_over_and_over_wherever_it_begins() -> None:
    def samples(start: int) -> Any:
        events = job_events([{"at": 1, "action": "repeat"}], most=12, start=start)
        assert not isinstance(events[-1], SegmentEnd)
        return np.concatenate([each.samples for each in events])

    whole = samples(0)
    assert np.array_equal(whole[2_400:7_200], whole[7_200:12_000])
    for start in (1, 2_500, 7_200, 9_999, 30_000):
        rest = whole[start:]
        assert np.array_equal(samples(start)[: len(rest)], rest)


def test_a_rule_may_act_only_so_often_on_a_text() -> None:
    engine = create({"script": [{"action": "fail", "times": 2, "transient": True}]})
    for text in ("你好", "世界"):
        ends = [events_of(engine, text)[-1] for _ in range(4)]
        assert [isinstance(end, SegmentFailed) for end in ends] == [True, True, False, False]
        assert ends[0].error.transient


def test_a_share_of_all_segments_is_the_same_in_every_run() -> None:
    texts = [f"{first}{second}" for first in "你好世界今天气很" for second in "山高水远天蓝云白地风火"]

    def failing(**rule: Any) -> list[str]:
        rules = [{"action": "fail", **rule}]
        return [text for text in texts if isinstance(job_events(rules, text)[-1], SegmentFailed)]

    some = failing(rate=0.2)
    assert 0.08 * len(texts) < len(some) < 0.35 * len(texts)
    assert failing(rate=0.2) == some
    assert failing(rate=0.2, seed=1) != some
    assert set(failing(rate=0.05)) <= set(some)
    assert failing(rate=0) == []
    assert failing(rate=1) == texts
