"""The engine of CosyVoice as the server sees it."""

import json
import random
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from server.engines.base import Chunk, Engine, EngineError, RenderPlan, Samples, SegmentFailed
from server.engines.context_cache import EngineContextCache
from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.engine import CosyVoiceEngine
from server.engines.cosyvoice.jobs import CosyVoiceJob
from server.engines.cosyvoice.llm.watching import SilentRuns, silent_codes
from server.engines.cosyvoice.shelf import KeptVoice, VoiceGone
from server.engines.cosyvoice.starting import create
from server.text.tokens import Boundary
from tests.support.cosyvoice import SPEAKER
from tests.support.cosyvoice_speech import listen, recording, say, segment, words

CODE = 960  # samples
TEXT = "你好。"  # three tokens: at most sixty codes
OTHERS = ("好。", "你。", "你你。")


@pytest.fixture
def learnt(engine: CosyVoiceEngine) -> Iterator[str]:
    """A voice of a recording."""
    kept = {"anna": engine.make_voice(recording(), "I said a few words, and then some more of them.")}
    engine.use_voices(kept.get)
    yield "anna"
    engine.forget_voice("anna")
    engine.use_voices(lambda _: None)


def spoken_codes(engine: CosyVoiceEngine, drawn: tuple[int, ...]) -> int:
    """Codes that sound, of what was drawn."""
    config = engine._flow.config
    codes = [code for code in drawn if code < config.codes]
    return len(SilentRuns(silent_codes(config.version)).heard(codes))


def test_of_a_long_silence_five_codes_are_heard() -> None:
    """As upstream has it: the model may pause for seconds."""
    runs = SilentRuns({1, 2})
    assert runs.heard([1, 2, 7, 1, 1, 2]) == [1, 2, 7, 1, 1, 2]
    assert runs.heard([1, 1, 1, 2]) == [1, 1]  # the run goes on from the codes before
    assert runs.heard([9, 1]) == [9, 1]


def test_it_is_an_engine(engine: Engine, version: ModelVersion) -> None:
    can = engine.capabilities
    assert can.name == "cosyvoice"
    assert can.fingerprint.startswith(f"cosyvoice{version}-")
    assert [voice.id for voice in can.voices] == [SPEAKER]
    assert not can.timings  # the model tells of no alignment: said, not guessed


@pytest.mark.parametrize("mode", ["stream", "block"])
def test_every_code_is_heard_for_forty_milliseconds(engine: CosyVoiceEngine, mode: str) -> None:
    (heard,) = say(engine, segment(TEXT, SPEAKER), mode=mode)  # type: ignore[arg-type]
    assert len(heard.samples) == CODE * spoken_codes(engine, heard.codes)
    assert heard.samples.std() > 0.001


def test_sound_comes_before_the_text_is_through(engine: CosyVoiceEngine) -> None:
    job = engine.prepare(segment("Go on, Tom, go on.", SPEAKER), RenderPlan())
    sound = 0
    while not sound:
        sound = sum(len(event.samples) for event in engine.step([job]) if hasattr(event, "samples"))
    assert job.work is not None
    assert not job.work.done
    assert len(job.work.codes) <= 15 + 3 + 1
    engine.cancel(job)


def test_what_is_in_the_same_steps_changes_no_sample(engine: CosyVoiceEngine) -> None:
    (alone,) = say(engine, segment(TEXT, SPEAKER))
    among = say(engine, *(segment(text, SPEAKER) for text in (*OTHERS, TEXT)))[-1]
    assert among.codes == alone.codes
    assert np.array_equal(among.samples, alone.samples)


def test_more_segments_than_slots_take_turns(engine: CosyVoiceEngine) -> None:
    texts = ["你好。", "好你。", "好好。", "你你。", "好。"]
    jobs = [engine.prepare(segment(text, SPEAKER), RenderPlan()) for text in 2 * texts]
    assert len(jobs) > engine._decoder.slots.slots
    together = listen(engine, jobs, batch=3)
    for text, heard in zip(2 * texts, together, strict=True):
        assert np.array_equal(heard.samples, say(engine, segment(text, SPEAKER))[0].samples)
    assert engine._decoder.slots.free_slots == engine._decoder.slots.slots


@pytest.mark.parametrize("known", [1, 20, None])
def test_codes_that_were_told_are_spoken_again_without_drawing_them(
    engine: CosyVoiceEngine, known: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = say(engine, segment(TEXT, SPEAKER))
    if known is None:
        monkeypatch.setattr(engine._decoder, "_draw", lambda *_: pytest.fail("all codes were known"))
    (again,) = say(engine, segment(TEXT, SPEAKER, codes=first.codes[:known]))
    assert np.array_equal(again.samples, first.samples)
    assert again.codes == (first.codes[known:] if known else ())


@pytest.mark.parametrize("mode", ["stream", "block"])
@pytest.mark.parametrize("start", [1, 30_000])
def test_a_rendering_from_the_middle_on_is_the_rest_of_the_whole(
    engine: CosyVoiceEngine, start: int, mode: str
) -> None:
    (whole,) = say(engine, segment(TEXT, SPEAKER), mode=mode)  # type: ignore[arg-type]
    (rest,) = say(engine, segment(TEXT, SPEAKER), mode=mode, start=start)  # type: ignore[arg-type]
    assert np.array_equal(rest.samples, whole.samples[start:])


def test_a_seed_decides(engine: CosyVoiceEngine) -> None:
    one, two, again = (say(engine, segment(TEXT, SPEAKER), seed=seed)[0].codes for seed in (1, 2, 1))
    assert one == again
    assert one != two


@pytest.mark.parametrize("mode", ["stream", "block"])
@pytest.mark.parametrize("speed", [0.5, 1.3, 2.0])
def test_speed_holds_while_streaming(engine: CosyVoiceEngine, speed: float, mode: str) -> None:
    (plain,) = say(engine, segment(TEXT, SPEAKER), mode=mode)  # type: ignore[arg-type]
    (heard,) = say(engine, segment(TEXT, SPEAKER, speed=speed), mode=mode)  # type: ignore[arg-type]
    assert heard.codes == plain.codes
    frames = len(plain.samples) // 480
    assert len(heard.samples) == 480 * int(frames / speed)


def test_a_paragraph_ends_in_a_pause(engine: CosyVoiceEngine) -> None:
    (heard,) = say(engine, segment(TEXT, SPEAKER, boundary=Boundary.PARAGRAPH))
    assert not heard.samples[-7_200:].any()
    assert len(heard.samples) == CODE * spoken_codes(engine, heard.codes) + 7_200


def test_a_text_that_says_nothing_ends_at_once(engine: CosyVoiceEngine) -> None:
    (heard,) = say(engine, segment("。", SPEAKER))
    assert len(heard.samples) == 0


def test_what_was_said_before_is_context_and_never_heard(engine: CosyVoiceEngine) -> None:
    (plain,) = say(engine, segment("好。", SPEAKER))
    (led,) = say(engine, segment("好。", SPEAKER, before="你"))
    assert led.codes != plain.codes
    assert len(led.samples) == CODE * spoken_codes(engine, led.codes)


def test_a_context_cache_saves_drawing_and_changes_nothing(
    engine: CosyVoiceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [segment(TEXT, SPEAKER), segment("好。", SPEAKER, before="你")]
    without = say(engine, *wanted)
    engine.use_context_cache(EngineContextCache(blocks=20))
    try:
        filled = say(engine, *wanted)
        monkeypatch.setattr(engine._decoder, "_draw", lambda *_: pytest.fail("all codes were kept"))
        kept = say(engine, *wanted)
    finally:
        engine._cache = engine._preparer.cache = None
    for a, b, c in zip(without, filled, kept, strict=True):
        assert np.array_equal(a.samples, b.samples)
        assert np.array_equal(a.samples, c.samples)


def test_a_learnt_voice_speaks_and_is_forgotten(engine: CosyVoiceEngine, learnt: str) -> None:
    (own,) = say(engine, segment(TEXT, learnt))
    (other,) = say(engine, segment(TEXT, SPEAKER))
    assert own.codes != other.codes
    engine.use_voices(lambda _: None)
    say(engine, segment(TEXT, learnt))  # nobody told that it was deleted
    engine.forget_voice(learnt)
    with pytest.raises(VoiceGone, match="no voice anna"):
        engine.prepare(segment(TEXT, learnt), RenderPlan())


def test_what_is_kept_of_a_voice_is_made_in_steps_that_others_share(engine: CosyVoiceEngine, learnt: str) -> None:
    """A long recording must not hold everybody up: its flow takes as long as speech of its length."""
    engine.forget_voice(learnt)
    jobs = [engine.prepare(segment(TEXT, voice), RenderPlan()) for voice in (learnt, SPEAKER)]
    kept = jobs[0].voice
    assert isinstance(kept, KeptVoice)
    made = [kept.flow is not None]
    first, _ = listen(engine, jobs)
    made.append(kept.flow is not None)
    assert made == [False, True]
    (again,) = say(engine, segment(TEXT, learnt))
    assert np.array_equal(first.samples, again.samples)


def test_a_voice_of_another_model_is_refused_in_a_line(engine: CosyVoiceEngine) -> None:
    engine.use_voices({"x": b"nonsense"}.get)
    try:
        with pytest.raises(VoiceGone, match=r"voice x: this is no voice of CosyVoice"):
            engine.prepare(segment(TEXT, "x"), RenderPlan())
    finally:
        engine.use_voices(lambda _: None)


def test_an_instruction_changes_how_a_voice_speaks(engine: CosyVoiceEngine, learnt: str) -> None:
    (plain,) = say(engine, segment(TEXT, learnt))
    (whispered,) = say(engine, segment(TEXT, learnt, instruct="whisper"))
    assert whispered.codes != plain.codes


def test_a_trained_speaker_follows_no_instruction(engine: CosyVoiceEngine) -> None:
    with pytest.raises(ValueError, match="instruct: this voice is a trained speaker"):
        engine.prepare(segment(TEXT, SPEAKER, instruct="whisper"), RenderPlan())


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_text_that_comes_late_is_spoken_as_if_it_had_been_there(engine: CosyVoiceEngine, at_once: int) -> None:
    tokens = words("你好，你好你你好好，好。")
    empty = replace(segment("", SPEAKER), boundary=Boundary.SENTENCE)
    whole = engine.prepare_late(replace(empty, tokens=tokens), RenderPlan())
    engine.end_text(whole)
    (expected,) = listen(engine, [whole])
    late = engine.prepare_late(empty, RenderPlan())
    heard = []
    for begin in range(0, len(tokens), at_once):
        for _ in range(30):
            heard += [event.samples for event in engine.step([late]) if isinstance(event, Chunk)]
        engine.add_text(late, tokens[begin : begin + at_once])
    engine.end_text(late)
    (rest,) = listen(engine, [late])
    assert np.array_equal(np.concatenate([*heard, rest.samples]), expected.samples)
    with pytest.raises(ValueError, match="text: nothing can be added"):
        engine.add_text(late, tokens)


def test_a_job_that_waits_for_text_lets_others_have_its_slot(engine: CosyVoiceEngine) -> None:
    late = [engine.prepare_late(segment("你好你好你好", SPEAKER), RenderPlan()) for _ in range(10)]
    for _ in range(60):
        engine.step(late)
    assert all(job.idle for job in late)
    say(engine, *(segment(text, SPEAKER) for text in OTHERS))  # at once: nobody has to wait for a slot
    for job in late:
        engine.end_text(job)
    heard = listen(engine, late, batch=4)
    assert all(np.array_equal(each.samples, heard[0].samples) for each in heard)


@pytest.mark.parametrize("part", ["vocoder", "flow", "lm"])
def test_numbers_that_are_none_fail_their_own_segment_alone(
    engine: CosyVoiceEngine, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = (engine.prepare(segment(text, SPEAKER), RenderPlan()) for text in (TEXT, OTHERS[0]))
    (expected,) = say(engine, segment(TEXT, SPEAKER))
    if part == "lm":
        assert bad.work is not None
        ids = bad.work
        real = engine._decoder.lm.logits
        jobs: list[object] = []
        advance = engine._decoder.advance
        monkeypatch.setattr(
            engine._decoder, "advance", lambda now: (jobs.__setitem__(slice(None), now), advance(now))[1]
        )

        def logits(rows):  # type: ignore[no-untyped-def]
            scores = real(rows)
            if len(jobs) == 1 and jobs[0] is ids:
                scores[:] = float("nan")
            return scores

        monkeypatch.setattr(engine._decoder.lm, "logits", logits)
        failed = [event for event in (engine.step([bad]) or []) if isinstance(event, SegmentFailed)]
        while not failed:
            failed = [event for event in engine.step([bad]) if isinstance(event, SegmentFailed)]
        assert isinstance(failed[0].error, EngineError)
        assert failed[0].error.kind == "not_finite"
        (heard,) = listen(engine, [good])
    else:
        real_push = engine._vocoder.push_many

        def push(items):  # type: ignore[no-untyped-def]
            made = real_push(items)
            return [
                sound * float("nan") if state is bad.vocoder and part == "vocoder" else sound
                for sound, (state, _, _) in zip(made, items, strict=True)
            ]

        if part == "flow":
            begin = engine._begin_piece

            def broken(job):  # type: ignore[no-untyped-def]
                if job is bad:
                    raise RuntimeError("no flow")
                begin(job)

            monkeypatch.setattr(engine, "_begin_piece", broken)
        monkeypatch.setattr(engine._vocoder, "push_many", push)
        sound: list[Samples] = []
        failures: list[SegmentFailed] = []
        live: list[CosyVoiceJob] = [good, bad]
        while live:
            for event in engine.step(live):
                if isinstance(event, SegmentFailed):
                    failures.append(event)
                elif hasattr(event, "samples") and event.job is good:
                    sound.append(event.samples)
            live = [job for job in live if not job.over]
        assert [event.job for event in failures] == [bad]
        heard = replace(expected, samples=np.concatenate(sound))
    assert np.array_equal(heard.samples, expected.samples)
    assert engine._decoder.slots.free_slots == engine._decoder.slots.slots


def test_many_segments_cancelled_at_random_leave_no_slot_behind(engine: CosyVoiceEngine) -> None:
    rng = random.Random(6)
    live: list[CosyVoiceJob] = []
    for number in range(120):
        if len(live) < 6:
            live.append(engine.prepare(segment("你好"[number % 2 :], SPEAKER), RenderPlan(), seed=number))
        now = rng.sample(live, min(len(live), 4))
        engine.step(now)
        for job in now:
            if job.over or rng.random() < 0.2:
                engine.cancel(job)
                live.remove(job)
    for job in live:
        engine.cancel(job)
    assert engine._decoder.slots.free_slots == engine._decoder.slots.slots
    assert not engine._decoder._holders


def test_a_plan_may_ask_for_long_pieces(engine: CosyVoiceEngine) -> None:
    """Of more codes than are made ahead."""
    text = "Go on, Tom, go on, go on and on and on."
    (heard,) = listen(engine, [engine.prepare(segment(text, SPEAKER), RenderPlan("stream", (4000,)))])
    assert len(heard.samples) == CODE * spoken_codes(engine, heard.codes)


def test_a_voice_whose_making_failed_is_made_anew(
    engine: CosyVoiceEngine, learnt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (heard,) = say(engine, segment(TEXT, learnt))
    engine._shelf.take(learnt).flow = None
    attend, calls = torch.nn.functional.scaled_dot_product_attention, 0

    def out_of_memory(*args: Any, **more: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise RuntimeError("out of memory")
        return attend(*args, **more)

    def make() -> None:
        voice = engine._shelf.take(learnt)
        with torch.inference_mode():
            while engine._shelf.flow_prefix(voice) is None:
                pass

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", out_of_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            make()
    (again,) = say(engine, segment(TEXT, learnt))
    assert np.array_equal(again.samples, heard.samples)


def test_a_voice_deleted_while_it_is_read_is_not_kept(engine: CosyVoiceEngine, learnt: str) -> None:
    read = engine._shelf.read

    def deleted_meanwhile(voice: str) -> bytes | None:
        data = read(voice)
        engine.forget_voice(voice)
        return data

    engine.forget_voice(learnt)
    engine.use_voices(deleted_meanwhile)
    held = engine._shelf.bytes
    engine._shelf.take(learnt)
    assert engine._shelf.bytes == held


def test_codes_that_came_along_are_nobody_elses(engine: CosyVoiceEngine) -> None:
    """They may have been drawn on another machine."""
    cache = EngineContextCache()
    engine.use_context_cache(cache)
    known = tuple((7 * n) % 100 for n in range(30))
    (mine,) = say(engine, segment(TEXT, SPEAKER, codes=known))
    (other,) = say(engine, segment(TEXT, SPEAKER))
    engine.use_context_cache(EngineContextCache(megabytes=0))
    (fresh,) = say(engine, segment(TEXT, SPEAKER))
    assert other.codes == fresh.codes
    assert np.array_equal(other.samples, fresh.samples)
    assert not np.array_equal(mine.samples[: CODE * 15], fresh.samples[: CODE * 15])


def test_a_step_waits_for_one_that_was_given_up_and_a_cancel_does_not(engine: CosyVoiceEngine) -> None:
    job = engine.prepare(segment(TEXT, SPEAKER), RenderPlan())
    engine.step([job])
    other = engine.prepare(segment(TEXT, SPEAKER), RenderPlan())
    with engine._at_work:  # as a step on another thread
        engine.cancel(job)
        step = threading.Thread(target=engine.step, args=([other],))
        step.start()
        step.join(0.05)
        assert step.is_alive()
    step.join()
    engine.cancel(other)
    assert engine._decoder.slots.free_slots == engine._decoder.slots.slots


def test_a_tokenizer_of_another_model_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    vocabulary = next(folder.glob("*/vocab.json"))
    vocabulary.write_text(json.dumps({**json.loads(vocabulary.read_text("utf-8")), "§": 400_000}), encoding="utf-8")
    with pytest.raises(EngineError, match="files of two models mixed"):
        create({"model": str(folder), "threads": 1, "device": "cpu"})


def test_other_speakers_are_another_fingerprint(engine: CosyVoiceEngine, tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    speakers = torch.load(folder / "spk2info.pt", weights_only=True)
    for told in speakers.values():
        told["embedding"] = told["embedding"] + 1.0
    torch.save(speakers, folder / "spk2info.pt")
    other = create({"model": str(folder), "threads": 1, "device": "cpu"})
    assert other.capabilities.fingerprint != engine.capabilities.fingerprint
