"""What segments hold is bounded, and what was let go of is made again without a trace."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from server.engines.base import Chunk, RenderPlan, Samples, SegmentEnd
from server.engines.cosyvoice import engine as stepping
from server.engines.cosyvoice import loading, streams
from server.engines.cosyvoice.engine import CosyVoiceEngine
from server.engines.cosyvoice.flow.matching import FlowPass, step_passes
from server.engines.cosyvoice.jobs import CosyVoiceJob
from server.engines.cosyvoice.llm.jobs import CodeJob, CodeLimits
from server.engines.cosyvoice.options import OptionError, Options, parse_options
from server.engines.cosyvoice.starting import create
from tests.support.cosyvoice import SPEAKER
from tests.support.cosyvoice_speech import listen, say, segment

LONG = "你好，你好你你。"
MIB = 1024 * 1024
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def cramped(engine: CosyVoiceEngine, monkeypatch: pytest.MonkeyPatch) -> CosyVoiceEngine:
    """Room for one state."""
    monkeypatch.setattr(engine._streams, "max_bytes", 1)
    return engine


@pytest.fixture
def in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has a single round."""
    monkeypatch.setattr(stepping, "STEP_S", 0.0)


def long_one(engine: CosyVoiceEngine, **more: Any) -> CosyVoiceJob:
    """Of a hundred codes: models by chance do not know when to end."""

    def lengthen(work: CodeJob) -> CodeJob:
        work.limits = CodeLimits(least_per_token=100, most_per_token=100, most=100)
        return work

    job = engine.prepare(segment("你好。", SPEAKER, **more), RenderPlan())
    if job.lead is not None:
        then = job.lead.then
        job.lead.then = lambda codes: lengthen(then(codes))
    else:
        assert job.work is not None
        lengthen(job.work)
    return job


def has_state(job: CosyVoiceJob) -> bool:
    return job.flow is not None


def sound_of(engine: CosyVoiceEngine, job: CosyVoiceJob, steps: int) -> list[Samples]:
    """What comes of so many steps."""
    return [event.samples for _ in range(steps) for event in engine.step([job]) if isinstance(event, Chunk)]


def until_sound(engine: CosyVoiceEngine, job: CosyVoiceJob) -> list[Samples]:
    heard = [np.zeros(0, np.float32)]
    while not len(heard[-1]):
        assert not job.over
        heard += sound_of(engine, job, 1)
    return heard


@pytest.mark.parametrize(("rounds", "more"), [(0, {}), (4, {}), (30, {"speed": 1.3}), (4, {"before": "你"})], ids=str)
def test_a_state_that_was_dropped_is_made_again_and_no_sample_changes(
    cramped: CosyVoiceEngine, in_rounds: None, rounds: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was: between two pieces, or in the middle of one."""
    monkeypatch.setattr(streams, "REST_STEPS", 1)
    (expected,) = listen(cramped, [long_one(cramped, **more)])
    job, other = (long_one(cramped, **more) for _ in range(2))
    heard = [*until_sound(cramped, job), *until_sound(cramped, job), *sound_of(cramped, job, rounds)]
    dropped = cramped.memory.streams_dropped
    assert has_state(job)
    until_sound(cramped, other)
    assert not has_state(job)
    (rest,) = listen(cramped, [job])
    assert not has_state(other)
    assert cramped.memory.streams_dropped == dropped + 2
    assert np.array_equal(np.concatenate([*heard, rest.samples]), expected.samples)
    cramped.cancel(other)


def test_making_a_state_again_takes_many_short_steps(
    cramped: CosyVoiceEngine, in_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = long_one(cramped)
    until_sound(cramped, job)
    until_sound(cramped, job)
    job.drop_flow()
    cramped._streams.let_go(job)
    solved: list[int] = []

    def counted(passes: list[FlowPass]) -> None:
        solved.append(len(passes))
        step_passes(passes)

    monkeypatch.setattr(stepping, "step_passes", counted)
    steps = 1
    while not sum(len(samples) for samples in sound_of(cramped, job, 1)):
        steps += 1
        assert len(solved) <= steps
    assert len(solved) == 3 * cramped._flow.config.steps  # two pieces again, and the third
    cramped.cancel(job)


def test_segments_in_turns_do_not_take_it_from_each_other(
    cramped: CosyVoiceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has a state keeps it to the end while it is at work, and the others wait."""
    monkeypatch.setattr(stepping, "STEP_S", 60.0)  # a step ends with a sound, on any machine

    def three() -> list[CosyVoiceJob]:
        return [
            long_one(cramped),
            *(cramped.prepare(segment(text, SPEAKER), RenderPlan()) for text in ("好。", "你好。")),
        ]

    alone = [listen(cramped, [job])[0].samples for job in three()]
    jobs = three()
    dropped, most, heard = cramped.memory.streams_dropped, 0, {job: [np.zeros(0, np.float32)] for job in jobs}
    turn = list(jobs)
    while turn:
        for event in cramped.step([turn[0]]):
            if isinstance(event, Chunk):
                heard[jobs[jobs.index(turn[0])]].append(event.samples)
        most = max(most, sum(job.flow is not None for job in jobs))
        turn = [job for job in (*turn[1:], turn[0]) if not job.over]
    assert most == 1
    assert cramped.memory.streams_dropped == dropped
    for job, expected in zip(jobs, alone, strict=True):
        assert np.array_equal(np.concatenate(heard[job]), expected)


def test_a_segment_does_not_wait_for_ever(
    cramped: CosyVoiceEngine, in_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PATIENCE_STEPS", 20)
    monkeypatch.setattr(streams, "REST_STEPS", 10**6)
    (expected,) = say(cramped, segment("好。", SPEAKER))
    first, second = long_one(cramped), cramped.prepare(segment("好。", SPEAKER), RenderPlan())
    until_sound(cramped, first)
    (heard,) = listen(cramped, [second])
    assert first.flow is None
    assert np.array_equal(heard.samples, expected.samples)
    cramped.cancel(first)


def test_segments_of_one_step_have_their_states_side_by_side(cramped: CosyVoiceEngine, in_rounds: None) -> None:
    jobs = [cramped.prepare(segment(LONG, SPEAKER), RenderPlan()) for _ in range(3)]
    most, live = 0, jobs
    while live:
        assert any(cramped.step(live))
        most = max(most, sum(job.flow is not None for job in jobs))
        live = [job for job in live if not job.over]
    assert most == 3


def test_what_is_held_can_be_read(engine: CosyVoiceEngine) -> None:
    before = engine.memory
    assert before.streams == 0
    assert before.slots == engine._decoder.slots.bytes
    jobs = [long_one(engine) for _ in range(10)]
    until_sound(engine, jobs[0])
    one = engine.memory.streams
    assert jobs[0].flow is not None
    assert one == jobs[0].flow.bytes > 0
    for job in jobs[1:]:
        until_sound(engine, job)
    assert engine.memory.streams > one
    assert engine.memory.aside > 0  # two more than there are slots
    for job in jobs:
        engine.cancel(job)
    assert engine.memory.streams == engine.memory.aside == 0


def test_the_state_goes_when_the_last_piece_is_solved(engine: CosyVoiceEngine, in_rounds: None) -> None:
    job = engine.prepare(segment("好。", SPEAKER), RenderPlan("stream", (4000,)))
    held = False
    while not any(isinstance(event, SegmentEnd) for event in engine.step([job])):
        held = held or engine.memory.streams > 0
        assert not (job.mel_is_last and engine.memory.streams)
    assert held


@pytest.mark.parametrize("late", [False, True])
def test_a_voice_and_a_text_that_do_not_fit_name_the_option(
    engine: CosyVoiceEngine, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = segment("你好。", SPEAKER)
    prepare = engine.prepare_late if late else engine.prepare
    work = prepare(wanted, RenderPlan()).work
    assert work is not None
    need = 2 if late else 2 + len(engine._preparer._loaded.tokenizer.encode("你好。")) * 3
    fitting = need + len(engine._preparer.prepare(wanted, RenderPlan(), 0).prefix_ids) - 1
    monkeypatch.setattr(engine._decoder.slots, "length", fitting)
    assert prepare(wanted, RenderPlan()).work is not None
    monkeypatch.setattr(engine._decoder.slots, "length", fitting - 1)
    with pytest.raises(ValueError, match=rf"^engine option length: .* take {fitting} .* length is {fitting - 1}: "):
        prepare(wanted, RenderPlan())


def test_there_are_more_slots_than_segments_in_a_step(engine: CosyVoiceEngine) -> None:
    assert engine._decoder.slots.slots == 2 * engine.capabilities.batch_max
    assert loading.slots_of(16, GPU) == 64


@pytest.mark.parametrize(
    ("memory", "voices", "states"), [(64 << 30, 8 << 30, 16 << 30), (2 << 30, 1 << 30, 1 << 30), (0, 1 << 30, 1 << 30)]
)
def test_what_may_be_kept_follows_from_the_memory(
    memory: int, voices: int, states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_main_memory", lambda: memory)
    assert loading.voice_cache_bytes(Options(), CPU) == voices
    assert loading.stream_memory_bytes(Options(), CPU) == states


def test_on_a_gpu_streams_get_most_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20 << 30, 24 << 30))
    options = Options(voice_cache_mb=4096)
    assert loading.stream_memory_bytes(options, GPU) == 12 << 30


def test_the_memory_of_streams_is_an_option(tiny_model: Path) -> None:
    given: dict[str, Any] = {"model": str(tiny_model), "threads": 1, "device": "cpu", "stream_memory_mb": 7}
    made = create(given)
    assert made.memory.streams_most == 7 * MIB
    made.close()
    with pytest.raises(OptionError, match="engine option stream_memory_mb must be a whole number from 0"):
        parse_options({"stream_memory_mb": -1})
