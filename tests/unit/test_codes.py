"""Speech codes: written down as they are told, and handed to whoever renders the segment again."""

import random
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import client_messages as c
from protocol import server_messages as s
from server.cache.audio import AudioCache, Recording, spot_of
from server.engines import Chunk, RenderPlan, Segment, Token, tone
from server.engines.codes import MAX_CODE, from_bytes, from_text, to_bytes, to_text
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.session import ResumeRefused
from server.session import journal as records
from server.session.journal import read
from server.session.restore import CannotRestore, RestoredSession, restore
from server.text.tokens import Boundary, Cut, CutCause
from tests.support.session_driver import SAMPLES_PER_CHARACTER, TEXT, capabilities, render
from tests.unit.test_session_restore import POLICY, Journaled, say_all

# ---- as bytes and as a text ----


@given(st.lists(st.integers(0, MAX_CODE)))
def test_codes_come_out_as_they_went_in(codes: list[int]) -> None:
    assert from_bytes(to_bytes(codes)) == tuple(codes)
    assert from_text(to_text(codes)) == tuple(codes)


def test_a_second_of_them_takes_little() -> None:
    assert len(to_text([6_560] * 25)) == 68


@pytest.mark.parametrize("codes", [[-1], [65_536], [1.5], ["1"]])
def test_what_is_no_code_is_refused(codes: Any) -> None:
    with pytest.raises(ValueError, match="a whole number from 0 to 65535"):
        to_bytes(codes)


@pytest.mark.parametrize("text", ["A", "AAA", "AAAA", "??", "AA==", "äöüß"])
def test_a_text_that_is_none_of_codes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"base64|padding|code|ASCII"):
        from_text(text)


# ---- a session goes on in another process ----


class Sampling:
    """An engine whose every character sounds by a code that it draws, or was given."""

    def __init__(self) -> None:
        self.chance = random.Random()
        self.given: list[SegmentRequest] = []

    def __call__(self, request: SegmentRequest) -> RenderedChunk:
        self.given.append(request)
        text = request.cut.text
        drawn = [self.chance.randrange(MAX_CODE + 1) for _ in text]
        codes = (*request.codes, *drawn[len(request.codes) :])
        pcm = b"".join(code.to_bytes(2, "little") * SAMPLES_PER_CHARACTER for code in codes[: len(text)])
        return RenderedChunk(pcm, render(request).words, codes=codes)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_heard_is_rendered_again_of_the_same_codes(seed: int) -> None:
    """Nobody could draw them again by chance: 16 bits each."""
    chance = random.Random(seed)
    journaled = Journaled(max_lead_ms=None)
    sampling = journaled.driver.render = Sampling()
    say_all(journaled.driver)
    journaled.write()
    journaled.finish(chance, 0.05)
    receiver = journaled.receiver
    assert {event.utterance for event in receiver.events if isinstance(event, s.Done)} == {1, 2}
    ends = {(event.utterance, event.segment): event for event in receiver.events if isinstance(event, s.SegmentEnd)}
    for key, begin in receiver.segments.items():
        heard = receiver.pcm[begin.utterance][2 * begin.first_sample :][: 2 * ends[key].samples]
        assert sha256(heard).hexdigest() == ends[key].digest
    assert not journaled.epoch or any(request.codes for request in sampling.given)


def heard_half(**open_: Any) -> Journaled:
    """A client that was told half of a segment when the server died."""
    journaled = Journaled(max_lead_ms=None, **open_)
    journaled.driver.render = Sampling()
    journaled.driver.say(1, TEXT)
    chance = random.Random(1)
    while len(journaled.receiver.pcm.get(1, b"")) < 2 * 3 * SAMPLES_PER_CHARACTER:
        journaled.step(chance, write=1)
    return journaled


def test_codes_are_on_disk_before_their_audio_is_sent() -> None:
    journaled = heard_half()
    told = [read(line)[1] for line in journaled.lines if read(line)[0] == records.CODES]
    assert all(values[0] == 1 for values in told)
    first = [code for values in told if values[1] == 0 for code in from_text(values[2])]
    heard = bytes(journaled.receiver.pcm[1])
    levels = [int.from_bytes(heard[at : at + 2], "little") for at in range(0, len(heard), 2 * SAMPLES_PER_CHARACTER)]
    assert first[: len(levels)] == levels[: len(first)]
    journaled.kill()
    journaled.finish(random.Random(2))


def test_without_the_codes_the_audio_would_be_another_one() -> None:
    journaled = heard_half()
    journaled.lines = [line for line in journaled.lines if read(line)[0] != records.CODES]
    journaled.kill()
    with pytest.raises(ResumeRefused):
        journaled.finish(random.Random(2))


def codes_of(session: RestoredSession) -> list[list[int]]:
    """What would be handed to whoever renders the first utterance again."""
    return [segment.codes for segment in session.restored.utterances[1].segments]


def test_another_model_is_not_given_codes_that_mean_other_sounds_to_it() -> None:
    """Which may be the case for an hour, until the old one is back."""
    journaled = heard_half()
    now = journaled.driver.now
    kinds = [read(line)[0] for line in journaled.lines]
    assert kinds.count(records.DRAWN) == 1
    other = replace(capabilities(), fingerprint="another checkpoint")
    same = codes_of(restore(journaled.lines, POLICY, capabilities(), epoch=2, now=now))
    assert any(same)
    restored = restore(journaled.lines, POLICY, other, epoch=2, now=now)
    assert not any(codes_of(restored))
    restored.journal.codes(1, 0, (7, 8), other.fingerprint)
    restored.journal.codes(1, 0, (9,), other.fingerprint)
    lines = [*journaled.lines, *restored.journal.take()[0]]
    assert [read(line)[0] for line in lines].count(records.DRAWN) == 2
    assert codes_of(restore(lines, POLICY, other, epoch=3, now=now))[0] == [7, 8, 9]
    assert codes_of(restore(lines, POLICY, capabilities(), epoch=3, now=now)) == same


def test_codes_of_nobody_knows_whom_are_passed_over() -> None:
    journaled = heard_half()
    lines = [line for line in journaled.lines if read(line)[0] != records.DRAWN]
    assert not any(codes_of(restore(lines, POLICY, capabilities(), epoch=2, now=journaled.driver.now)))


def test_codes_of_what_was_cancelled_are_passed_over() -> None:
    journaled = heard_half()
    driver = journaled.driver
    driver.numbered(c.Cancel, played_sample=0)
    journaled.write()
    restore(journaled.lines, POLICY, capabilities(), epoch=2, now=driver.now)


@pytest.mark.parametrize("values", [(1, 0, "A"), (1, 0, None), (1, 9, "AAA="), (1, "0", "AAA="), (1, 0), (1, 0, [1])])
def test_a_record_of_codes_that_is_none_is_refused(values: tuple[Any, ...]) -> None:
    journaled = heard_half()
    driver = journaled.driver
    driver.session.journal.add(records.CODES, *values)
    journaled.write()
    with pytest.raises(CannotRestore):
        restore(journaled.lines, POLICY, capabilities(), epoch=2, now=driver.now)


# ---- told again from memory ----


def test_what_is_told_from_memory_has_its_codes() -> None:
    cut = Cut(0, 3, "你好，", Boundary.CLAUSE, CutCause.PUNCTUATION, "zh")
    cache = AudioCache(10_000)
    spot = spot_of(SegmentRequest(0, cut, "v", 24_000), capabilities())
    recording = Recording(cache, spot)
    for chunk in (
        RenderedChunk(bytes(8), codes=(1, 2)),
        RenderedChunk(bytes(6), codes=(3,)),
        RenderedChunk(b"", codes=(4,)),
    ):
        recording.add(chunk)
    recording.keep()
    kept = cache.find(spot)
    assert kept is not None
    assert [chunk.codes for chunk in kept.again(0)] == [(1, 2), (3,), (4,)]
    assert [(chunk.samples, chunk.codes) for chunk in kept.again(0, 5)] == [(2, (1, 2, 3)), (0, (4,))]


# ---- the engine `tone` ----


def spoken(engine: tone.ToneEngine, codes: tuple[int, ...] = (), start_sample: int = 0) -> tuple[bytes, list[int]]:
    """The samples of a segment, and the codes that were told."""
    tokens = tuple(Token(ch, i, i + 1, "zh") for i, ch in enumerate("你好世界今天"))
    segment = Segment(0, tokens, Boundary.SENTENCE, "tone-low", codes=codes)
    job = engine.prepare(segment, RenderPlan(), 0, start_sample)
    chunks: list[Chunk] = []
    while not job.over:
        chunks += [event for event in engine.step([job]) if isinstance(event, Chunk)]
    return b"".join(chunk.samples.tobytes() for chunk in chunks), [code for chunk in chunks for code in chunk.codes]


def test_the_test_engine_speaks_the_codes_that_it_is_given_and_draws_others() -> None:
    engine = tone.create({"codes": True})
    whole, codes = spoken(engine)
    other, others = spoken(engine)
    assert whole != other
    assert codes != others
    assert spoken(engine, tuple(codes)) == (whole, [])
    known = tuple(codes[:2])
    again, rest = spoken(engine, known)
    first = 4 * 24_000 * (tone.CHUNK_MS[0] + tone.CHUNK_MS[1]) // 1000
    assert again[:first] == whole[:first]
    assert again != whole
    assert spoken(engine, (*known, *rest)) == (again, [])
    assert spoken(engine, tuple(codes), 10_000) == (whole[4 * 10_000 :], [])


def test_without_that_option_it_has_no_codes() -> None:
    assert spoken(tone.create({})) == spoken(tone.create({}), (1, 2, 3)) != spoken(tone.create({"codes": True}))
    assert spoken(tone.create({}))[1] == []
