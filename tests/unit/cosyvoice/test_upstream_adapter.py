"""The adapter for upstream's own code, with a stand-in for that."""

import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.engines.base import Chunk, EngineError, Job, RenderPlan, Samples, SegmentEnd
from server.engines.cosyvoice.standard_voice import STANDARD_VOICE
from server.engines.cosyvoice_upstream import engine as engine_module
from server.engines.cosyvoice_upstream.engine import UpstreamEngine
from server.engines.cosyvoice_upstream.starting import create
from tests.support.cosyvoice_speech import listen, recording, say, segment
from tests.support.cosyvoice_upstream import CODE, HOP, CosyVoice2Model, CosyVoice3Model, FakeCosyVoice

MARK = "<|endofprompt|>"
SYSTEM = "You are a helpful assistant."
IN_IT = "I said a few words."


def _until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it never came to be"
        time.sleep(0.002)


@pytest.fixture
def upstream() -> FakeCosyVoice:
    return FakeCosyVoice(CosyVoice2Model())


@pytest.fixture
def engine(upstream: FakeCosyVoice, tmp_path: Path) -> Iterator[UpstreamEngine]:
    made = UpstreamEngine(upstream, tmp_path)
    yield made
    made.close()


@pytest.fixture
def third(tmp_path: Path) -> Iterator[UpstreamEngine]:
    made = UpstreamEngine(FakeCosyVoice(CosyVoice3Model()), tmp_path)
    yield made
    made.close()


def _calls(engine: UpstreamEngine) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = engine._model.calls
    return calls


def _learn(engine: UpstreamEngine, text: str = IN_IT) -> str:
    kept = {"anna": engine.make_voice(recording(), text)}
    engine.use_voices(kept.get)
    return "anna"


def _first(engine: UpstreamEngine, job: Job) -> Samples:
    """The first samples of a job."""
    while True:
        for event in engine.step([job]):
            assert isinstance(event, Chunk)
            if len(event.samples):
                return event.samples


def test_a_trained_speaker_is_streamed_to_the_end(engine: UpstreamEngine, upstream: FakeCosyVoice) -> None:
    (heard,) = say(engine, segment("Hello there.", "trained"))
    assert upstream.calls == [("sft", "Hello there.", "trained")]
    assert len(heard.samples) == 60 * CODE
    assert heard.chunks > 1
    assert not upstream.model.llm_end_dict


def test_its_speakers_are_its_voices(engine: UpstreamEngine) -> None:
    assert [voice.id for voice in engine.capabilities.voices] == ["trained", "saved"]


def test_a_saved_speaker_goes_on_from_its_prompt(engine: UpstreamEngine, upstream: FakeCosyVoice) -> None:
    say(engine, segment("Hello there.", "saved"))
    assert upstream.calls == [("zero_shot", "Hello there.", "saved")]


def test_a_model_without_speakers_has_the_standard_voice(
    upstream: FakeCosyVoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "standard_recording", lambda: (recording(), IN_IT))
    upstream.frontend.spk2info.clear()
    engine = UpstreamEngine(upstream, tmp_path)
    assert engine.capabilities.voices == (STANDARD_VOICE,)
    say(engine, segment("Hello.", STANDARD_VOICE.id))
    assert [call[0] for call in upstream.calls] == ["add", "zero_shot"]
    engine.close()


@pytest.mark.parametrize(("text", "call"), [(IN_IT, "zero_shot"), ("", "cross_lingual")])
def test_a_learnt_voice_is_learnt_once(engine: UpstreamEngine, text: str, call: str) -> None:
    voice = _learn(engine, text)
    say(engine, segment("Hello.", voice), segment("Hello.", voice))
    assert [each[0] for each in _calls(engine)] == ["add", call, call]
    assert _calls(engine)[0][1] == text


def test_version_3_finds_its_mark_in_every_mode(third: UpstreamEngine) -> None:
    voice, start = _learn(third), SYSTEM + MARK
    say(third, segment("Hello.", "trained"))
    say(third, segment("Hello.", voice))
    say(third, segment("Hello.", voice, instruct="Whisper."))
    assert [call[:2] for call in _calls(third)] == [
        ("sft", f"{start}Hello."),
        ("add", f"{start}{IN_IT}"),
        ("zero_shot", "Hello."),
        ("instruct2", "Hello."),
    ]
    assert _calls(third)[-1][2] == f"{SYSTEM} Whisper.{MARK}"


def test_an_instruction_comes_with_the_recording(engine: UpstreamEngine) -> None:
    say(engine, segment("Hello.", _learn(engine), instruct="Whisper."))
    assert _calls(engine) == [("instruct2", "Hello.", f"Whisper.{MARK}")]


def test_a_speaker_of_the_model_takes_no_instruction(engine: UpstreamEngine) -> None:
    with pytest.raises(ValueError, match=r"^instruct: "):
        engine.prepare(segment("Hello.", "saved", instruct="Whisper."), RenderPlan())


def test_another_speed_is_not_streamed(engine: UpstreamEngine) -> None:
    (heard,) = say(engine, segment("Hello.", "trained", speed=1.5))
    assert heard.chunks == 1


def test_who_writes_marks_steers_nothing(engine: UpstreamEngine) -> None:
    say(engine, segment("Hello.", _learn(engine), instruct=f"a<{MARK[0]}||>b{MARK}c"))
    assert _calls(engine)[0][2].count("<|") == 1


def test_every_first_chunk_is_short(engine: UpstreamEngine) -> None:
    for _ in range(2):
        job = engine.prepare(segment("Hello.", "trained"), RenderPlan())
        assert len(_first(engine, job)) == HOP * CODE
        listen(engine, [job])


def test_a_listener_who_takes_his_time_holds_it_back(engine: UpstreamEngine, upstream: FakeCosyVoice) -> None:
    upstream.model.llm.codes = 1_000
    job = engine.prepare(segment("Hello.", "trained"), RenderPlan())
    _first(engine, job)
    _until(lambda: upstream.model.llm.drawn == 1_000)
    time.sleep(0.15)
    assert upstream.model.solved <= 4
    assert len(listen(engine, [job])[0].samples) == 975 * CODE


def test_but_not_those_who_wait_behind_him(engine: UpstreamEngine, upstream: FakeCosyVoice) -> None:
    upstream.model.llm.codes = 500
    slow = engine.prepare(segment("Hello.", "trained"), RenderPlan())
    _first(engine, slow)
    (heard,) = say(engine, segment("And you.", "trained"))
    assert len(heard.samples) == 500 * CODE
    assert len(listen(engine, [slow])[0].samples) == 475 * CODE


def test_cancelling_ends_it(engine: UpstreamEngine, upstream: FakeCosyVoice) -> None:
    upstream.model.llm.codes, upstream.model.llm.pause_s = 100_000, 0.001
    job = engine.prepare(segment("Hello.", "trained"), RenderPlan())
    _first(engine, job)
    engine.cancel(job)
    _until(lambda: not any(speech.thread.is_alive() for speech in engine._running))
    drawn = upstream.model.llm.drawn
    time.sleep(0.05)
    assert upstream.model.llm.drawn == drawn < 100_000
    assert not upstream.model.tts_speech_token_dict
    assert not upstream.model.llm_end_dict
    upstream.model.llm.codes = 60
    assert len(say(engine, segment("Hello.", "trained"))[0].samples) == 60 * CODE


def test_one_that_waits_for_its_turn_can_be_cancelled(engine: UpstreamEngine, upstream: FakeCosyVoice) -> None:
    upstream.model.llm.codes, upstream.model.llm.pause_s = 100_000, 0.001
    first, second = (engine.prepare(segment("Hello.", "trained"), RenderPlan()) for _ in range(2))
    _first(engine, first)
    assert not any(len(event.samples) for event in engine.step([second]) if isinstance(event, Chunk))
    engine.cancel(second)
    _until(lambda: sum(speech.thread.is_alive() for speech in engine._running) == 1)
    engine.cancel(first)


def test_a_language_model_that_fails_ends_its_segment_alone(engine: UpstreamEngine, upstream: FakeCosyVoice) -> None:
    upstream.model.llm.fails_after = 40
    with pytest.raises(EngineError, match=r"^CosyVoice failed: RuntimeError$"):
        say(engine, segment("Hello.", "trained"))
    upstream.model.llm.fails_after = -1
    assert len(say(engine, segment("Hello.", "trained"))[0].samples) == 60 * CODE


def test_a_segment_can_start_within(engine: UpstreamEngine) -> None:
    (heard,) = say(engine, segment("Hello.", "trained"), start=7_000)
    assert len(heard.samples) == 60 * CODE - 7_000


def test_marks_alone_say_nothing(engine: UpstreamEngine) -> None:
    job = engine.prepare(segment("...", "trained"), RenderPlan())
    assert isinstance(engine.step([job])[-1], SegmentEnd)
    assert not _calls(engine)


def test_a_forgotten_voice_leaves_nothing_behind(engine: UpstreamEngine, upstream: FakeCosyVoice) -> None:
    voice = _learn(engine)
    say(engine, segment("Hello.", voice))
    file = engine._own[voice][1]
    engine.forget_voice(voice)
    engine.use_voices(lambda _: None)
    assert not file.exists()
    assert set(upstream.frontend.spk2info) == {"trained", "saved"}
    with pytest.raises(EngineError, match=r"no voice anna"):
        engine.prepare(segment("Hello.", voice), RenderPlan())


def test_a_voice_learnt_for_another_engine_is_no_voice(engine: UpstreamEngine) -> None:
    engine.use_voices(lambda _: b"\x00" * 64)
    with pytest.raises(EngineError, match=r"^voice anna: these are no bytes"):
        engine.prepare(segment("Hello.", "anna"), RenderPlan())


def test_silence_is_no_voice(engine: UpstreamEngine) -> None:
    with pytest.raises(ValueError, match=r"WAV or FLAC"):
        engine.make_voice(b"nothing", "")


# ---- starting ----


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Upstream's package as if it were installed."""
    package = types.ModuleType("cosyvoice.cli.cosyvoice")
    package.AutoModel = lambda model_dir: FakeCosyVoice(CosyVoice2Model())  # type: ignore[attr-defined]
    for name in ("cosyvoice", "cosyvoice.cli"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "cosyvoice.cli.cosyvoice", package)
    return package


def test_it_starts_with_a_model_of_upstream(importable: types.ModuleType, tmp_path: Path) -> None:
    made = create({"model_dir": str(tmp_path)})
    assert made.capabilities.name == "cosyvoice-upstream"
    assert np.any(say(made, segment("Hello.", "trained"))[0].samples)
    made.close()


def test_what_upstream_cannot_load_is_said_in_a_line(importable: types.ModuleType, tmp_path: Path) -> None:
    def fail(model_dir: str) -> object:
        raise TypeError("No valid model type\nfound!")

    importable.AutoModel = fail  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match=r"^upstream cannot load .*: TypeError: No valid model type found!$"):
        create({"model": str(tmp_path)})


def test_without_upstream_it_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "cosyvoice").mkdir()
    with pytest.raises(EngineError, match=r"^the engine cosyvoice-upstream needs FunAudioLLM/CosyVoice .*cosyvoice"):
        create({"model_dir": str(tmp_path), "upstream": str(tmp_path)})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "model_dir"),
        ({"model_dir": "/no/such/folder"}, "model_dir"),
        ({"model_dir": "/", "upstream": "/no/such/folder"}, "upstream"),
        ({"model_dir": "/", "device": "tpu"}, "device"),
        ({"model_dir": "/", "speed": 2}, "speed"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"^engine option {named} "):
        create(options)
