"""Many utterances through one language model: nobody's codes depend on anybody else's, and no slot is lost."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from server.engines.base import EngineError
from server.engines.cosyvoice.llm.accelerated import SlotDecoder
from server.engines.cosyvoice.llm.decoding import Decoder
from server.engines.cosyvoice.llm.ids import END_OF_PROMPT
from server.engines.cosyvoice.llm.jobs import CodeJob, CodeLimits, Manner
from server.engines.cosyvoice.llm.qwen2 import Part
from server.engines.cosyvoice.llm.slots import SlotCache
from server.engines.cosyvoice.llm.turns import voice_ids
from tests.support import cosyvoice_llm as support
from tests.support.cosyvoice_llm import PROMPT_CODES, PROMPT_TEXT, decoder, job, run

SAME = 0.0 if support.is_exact() else 1e-4  # log-probabilities, whatever else is in the batch
SHORT = CodeLimits(most=40)
ROUNDED = 1e-4  # where the same is computed in other pieces


def alone(seed: int, text: range = range(20, 26), **more: Any) -> CodeJob:
    """An utterance with a decoder of its own."""
    return _run(job(text, seed=seed, **more)) if more else job_alone(seed, text)


@lru_cache
def job_alone(seed: int, text: range) -> CodeJob:
    return _run(job(text, seed=seed))


def _run(made: CodeJob) -> CodeJob:
    run(decoder(), made)
    return made


def test_an_utterance_ends_by_itself_between_its_least_and_most() -> None:
    ended = [alone(seed, range(20, 24)) for seed in range(8)]
    assert all(8 <= len(job.codes) <= 80 and job.error is None for job in ended)
    by_mark = [job for job in ended if job.drawn != job.codes]
    assert by_mark, "no seed of eight ends by an end mark"
    assert all(job.drawn[:-1] == job.codes and job.drawn[-1] >= 256 for job in by_mark)


def test_many_at_once_draw_what_each_draws_alone() -> None:
    texts = [range(20, 23 + n) for n in range(6)]
    together = [job(text, seed=n) for n, text in enumerate(texts)]
    run(decoder(slots=6), *together)
    for n, text in enumerate(texts):
        single = alone(n, text)
        assert together[n].drawn == single.drawn
        assert support.difference(together[n], single) <= SAME


def test_joining_and_leaving_changes_nobodys_codes() -> None:
    shared, jobs = decoder(slots=3), [job(range(20, 23 + n % 3), seed=n) for n in range(8)]
    chance, started = random.Random(1), list[CodeJob]()
    waiting = list(jobs)
    while waiting or any(not job.done for job in started):
        if waiting and chance.random() < 0.2:
            started.append(waiting.pop())
        shared.advance([job for job in started if not job.done and chance.random() < 0.8])
    assert [job.drawn for job in jobs] == [alone(n, range(20, 23 + n % 3)).drawn for n in range(8)]
    assert shared.slots.free_slots == 3


def test_a_slot_that_is_given_away_changes_no_code() -> None:
    shared, jobs = decoder(slots=1), [job(seed=n) for n in range(3)]
    while any(not job.done for job in jobs):
        for each in jobs:
            shared.advance([each])
            assert sum(job.seat.slot is not None for job in jobs) <= 1
    assert any(job.seat.saved is None for job in jobs)
    for n, each in enumerate(jobs):
        assert each.drawn == alone(n).drawn
        assert support.difference(each, alone(n)) <= SAME


def test_with_fewer_slots_than_jobs_the_later_ones_wait_and_lose_nothing() -> None:
    shared, jobs = decoder(slots=2), [job(seed=n) for n in range(5)]
    run(shared, *jobs)
    assert [job.drawn for job in jobs] == [alone(n).drawn for n in range(5)]
    assert shared.slots.free_slots == 2


def test_the_slot_of_the_job_that_was_served_longest_ago_is_taken() -> None:
    shared = decoder(slots=2)
    old, young, new = job(seed=1), job(seed=2), job(seed=3)
    shared.advance([old])
    shared.advance([young])
    shared.advance([new])
    assert [each.seat.slot is not None for each in (old, young, new)] == [False, True, True]
    assert old.seat.saved is not None
    assert old.seat.saved.length == old.seat.fed


def test_small_pieces_of_input_give_the_same() -> None:
    small = job(seed=4)
    run(decoder(piece=7), small)
    assert small.drawn == alone(4).drawn
    assert 0.0 <= support.difference(small, alone(4)) <= ROUNDED


def test_one_tick_reads_no_more_than_a_piece() -> None:
    shared, jobs = decoder(piece=50), [job(seed=n) for n in range(3)]  # 48 ids each
    shared.advance(jobs)
    assert [job.seat.fed for job in jobs] == [48, 0, 0]
    shared.advance(jobs)
    assert [job.seat.fed for job in jobs] == [49, 48, 0]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_known_codes_are_kept_and_the_rest_is_drawn_as_before(share: float) -> None:
    whole = alone(7)
    known = whole.drawn[: round(len(whole.drawn) * share)]
    again = alone(7, known=known)
    assert again.drawn == whole.drawn
    assert again.codes == whole.codes
    assert len(again.scores) == len(whole.drawn) - len(known)


def test_known_codes_may_be_others_than_would_be_drawn() -> None:
    other = alone(7, known=[5, 6, 7])
    assert other.drawn[:3] == [5, 6, 7]
    assert other.drawn != alone(7).drawn


def test_seeds_differ_and_a_seed_repeats() -> None:
    assert alone(1, known=()).drawn == alone(1).drawn
    assert alone(1).drawn != alone(2).drawn
    assert alone(-1).error is None


def test_a_voices_prefix_saves_its_reading_and_changes_no_code() -> None:
    shared = decoder()
    prefix = shared.prefix(voice_ids(support.config(), PROMPT_TEXT, PROMPT_CODES, streaming=False))
    assert prefix.saved.length == 1 + len(PROMPT_TEXT)
    assert prefix.bytes >= 2 * 2 * 2 * 16 * 4 * prefix.saved.length  # layers, keys and values, heads, channels, fp32
    greedy = Manner(greedy=True, watch=False, keep_scores=True)  # chances may fall between two roundings
    with_it, without = (job(prefix=each, manner=greedy, limits=CodeLimits(most=40)) for each in (prefix, None))
    shared.advance([with_it])
    assert with_it.seat.fed == 48
    run(shared, with_it, without)
    assert with_it.drawn == without.drawn
    assert support.difference(with_it, without) <= ROUNDED


def test_the_prefix_of_another_voice_is_not_used() -> None:
    shared = decoder()
    other = shared.prefix(voice_ids(support.config(), PROMPT_TEXT[::-1], PROMPT_CODES, streaming=False))
    mine = job(seed=3, prefix=other)
    run(shared, mine)
    assert mine.drawn == alone(3).drawn


def test_numbers_that_are_none_fail_the_job_alone() -> None:
    lm = support.fresh()
    lm.body.embed_tokens.weight[299] = torch.nan
    shared = decoder(lm=lm)
    good, bad = job(seed=1), job([299, 20, 21], seed=1)
    run(shared, bad, good)
    assert bad.error is not None
    assert bad.error.kind == "not_finite"
    assert bad.codes == []
    assert good.drawn == alone(1).drawn
    assert shared.slots.free_slots == 4


@pytest.mark.parametrize("period", [1, 3, 8])
def test_the_same_over_and_over_fails(period: int) -> None:
    cycle = [40 + n for n in range(period)]
    limit = 25 if period == 1 else 75
    for count in (limit - 1, limit):
        stuck = job(range(20, 60), watch=True, manner=Manner(), known=(cycle * limit)[:count])
        assert (stuck.error is not None and stuck.error.kind == "repeated") == (count == limit)
        assert stuck.done == (count == limit)


def test_long_silence_and_long_cycles_are_no_failure() -> None:
    silent = [28, 29] * 60
    assert job(range(20, 60), version=3, manner=Manner(), known=silent).error is None
    assert job(range(20, 60), version=2, manner=Manner(), known=silent).error is not None
    assert job(range(20, 60), manner=Manner(), known=[40 + n for n in range(9)] * 20).error is None


def test_the_most_codes_end_an_utterance_without_an_error() -> None:
    assert len(alone(0, limits=CodeLimits(most=17), manner=Manner(greedy=True, watch=False)).codes) == 17
    capped = alone(0, range(20, 23), manner=Manner(greedy=True, watch=False))
    assert len(capped.codes) == 60
    assert capped.error is None
    tuned = alone(0, range(20, 23), limits=CodeLimits(most_per_token=4.5), manner=Manner(greedy=True, watch=False))
    assert len(tuned.codes) == 13


def test_a_full_slot_ends_an_utterance_and_a_text_that_does_not_fit_fails() -> None:
    shared = decoder(length=70)
    full, too_long, good = (
        job(manner=Manner(greedy=True, watch=False)),
        job(range(20, 60), seed=1),
        job(range(20, 22), limits=CodeLimits(most=3)),
    )
    run(shared, full, too_long, good)
    assert full.error is None
    assert len(full.codes) == 70 - 48 + 1  # the last one is drawn and needs no place
    assert isinstance(too_long.error, EngineError)
    assert "82 positions of the language model, at most 70" in str(too_long.error)
    assert len(good.codes) == 3
    assert shared.slots.free_slots == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": []}, "text: must have at least one token"),
        ({"text": [300]}, "text: 300 is not from 0 to 299"),
        ({"prompt_text": [-1]}, "prompt_text: -1 is not from 0 to 299"),
        ({"prompt_codes": [256]}, "prompt_codes: 256 is not from 0 to 255"),
        ({"known": [259]}, "known: 259 is not from 0 to 258"),
    ],
)
def test_ids_that_are_none_are_refused(change: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("streaming", [False, True])
def test_version_3_wants_its_end_of_prompt(streaming: bool) -> None:
    config = replace(support.config(3), vocab=151_936)
    with pytest.raises(ValueError, match=r"must contain <\|endofprompt\|>"):
        CodeJob(config, [1, 2], prompt_text=[3], streaming=streaming)
    assert CodeJob(config, [1, 2], prompt_text=[3, END_OF_PROMPT], streaming=streaming).error is None


def test_a_thousand_utterances_with_cancels_leak_no_slot() -> None:
    shared, chance = decoder(slots=6, length=16), random.Random(5)
    running, started, cancelled = list[CodeJob](), 0, 0
    while started < 1000 or running:
        while started < 1000 and len(running) < 16:
            made = CodeJob(support.config(), [20 + started % 200], seed=started, limits=CodeLimits(most=4))
            running.append(made)
            started += 1
        shared.advance([job for job in running if chance.random() < 0.8])
        for each in list(running):
            if each.done or chance.random() < 0.2:
                cancelled += not each.done
                shared.release(each)
                running.remove(each)
    assert cancelled > 100
    assert shared.slots.free_slots == 6
    assert shared.slots.lengths == [0] * 6
    assert not shared._holders


@pytest.mark.parametrize("tick", [0, 1, 7])
def test_after_a_call_that_raised_the_jobs_go_on_as_if_nothing_had_been(
    tick: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, jobs = decoder(lm=support.fresh()), [job(seed=1), job(seed=2)]
    for _ in range(tick):
        shared.advance(jobs)
    with monkeypatch.context() as broken:
        broken.setattr(shared.lm, "logits", lambda rows: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            shared.advance(jobs)
    run(shared, *jobs)
    assert [job.drawn for job in jobs] == [alone(1).drawn, alone(2).drawn]


def test_a_released_job_goes_no_further() -> None:
    shared, dropped = decoder(), job()
    shared.advance([dropped])
    shared.release(dropped)
    shared.release(dropped)
    count = len(dropped.codes)
    shared.advance([dropped])
    assert dropped.done
    assert len(dropped.codes) == count


def test_fixed_shapes_give_the_same_but_for_rounding() -> None:
    fixed, plain = decoder(slots=3, length=300, fixed=True), decoder(slots=3, length=300)
    greedy = Manner(greedy=True, watch=False, keep_scores=True)
    both = [
        [job(range(20, 24 + n), seed=n, manner=greedy, limits=CodeLimits(most=20 + 9 * n)) for n in range(5)]
        for _ in range(2)
    ]
    for shared, jobs in zip((fixed, plain), both, strict=True):
        run(shared, *jobs[:2])
        run(shared, *jobs[2:])
    for one, other in zip(*both, strict=True):
        assert one.drawn == other.drawn
        assert len(one.drawn) >= 20
        assert support.difference(one, other) <= ROUNDED


def test_fixed_shapes_reach_to_the_end_of_a_slot() -> None:
    shared = decoder(slots=2, length=263, fixed=True)
    greedy = Manner(greedy=True, watch=False, keep_scores=True)
    long, plain = (job(range(20, 40), manner=greedy) for _ in range(2))
    run(shared, long)
    run(decoder(slots=2, length=263), plain)
    assert len(long.codes) == 263 - 62 + 1
    assert long.drawn == plain.drawn
    assert support.difference(long, plain) <= ROUNDED


@pytest.mark.parametrize("fixed", [False, True])
def test_numbers_that_are_none_do_not_stay_in_a_slot(fixed: bool) -> None:
    lm = support.fresh()
    lm.body.embed_tokens.weight[299] = torch.nan
    shared = decoder(slots=1, lm=lm, fixed=fixed)
    bad, good = job([20, 21, 22, 299], seed=1), job([20], seed=1, prompt_text=[], prompt_codes=[])
    run(shared, bad)
    run(shared, good)
    assert bad.error is not None
    assert good.error is None
    assert len(good.codes) >= 2


@pytest.mark.parametrize("taken_away", [False, True])
def test_nor_do_they_where_nothing_was_drawn_yet(taken_away: bool) -> None:
    lm = support.fresh()
    lm.body.embed_tokens.weight[299] = torch.nan
    shared = decoder(slots=1, lm=lm, fixed=True, piece=12)
    bad, good = job([299, 21, 22], seed=1), job([20], seed=1, prompt_text=[], prompt_codes=[])
    shared.advance([bad])
    assert bad.seat.fed == 12
    assert not bad.done
    if not taken_away:
        shared.release(bad)
    run(shared, good)
    assert good.error is None
    assert len(good.codes) >= 2


def test_common_shapes_are_captured_before_anybody_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here: what is captured is counted, not run as a graph."""
    captured = 0

    def capture(_: SlotDecoder, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        nonlocal captured
        captured += 1
        return compute

    monkeypatch.setattr(SlotDecoder, "_captured", capture)
    shared = decoder(slots=6, fixed=True)
    assert shared._by_slot is not None
    shared._by_slot._graphs = True
    shared.warm_up()
    assert captured == 4 * 2  # 1, 2, 4, 6 rows; 256 and 512 positions
    jobs = [job(range(20, 22 + n), seed=n, limits=CodeLimits(most=9)) for n in range(6)]
    run(shared, *jobs)
    run(shared, job(range(20, 60), manner=Manner(greedy=True, watch=False)))
    assert captured == 8


@pytest.mark.parametrize("room", [0, 200_000])
def test_what_is_kept_aside_is_bounded_and_computed_again(room: int) -> None:
    shared, jobs = decoder(slots=1, aside_bytes=room), [job(seed=n, limits=SHORT) for n in range(4)]
    most = 0
    while any(not job.done for job in jobs):
        for each in jobs:
            shared.advance([each])
            most = max(most, shared.aside_bytes)
            assert shared.aside_bytes == sum(job.seat.saved.bytes for job in jobs if job.seat.saved is not None)
    assert most <= room
    assert (most > 0) == (room > 0)
    for n, each in enumerate(jobs):
        single = alone(n, limits=SHORT)
        assert each.drawn == single.drawn
        assert support.difference(each, single) <= ROUNDED


def test_jobs_that_lose_what_was_read_at_every_turn_still_get_on() -> None:
    """What was lost is read in one tick: in pieces it would be lost again before anything came of it."""
    shared = decoder(slots=1, aside_bytes=0, piece=8)
    jobs = [job(range(20, 60), seed=n, limits=CodeLimits(most=12)) for n in range(2)]
    for _ in range(60):
        for each in jobs:
            shared.advance([each])
    assert all(each.done and each.error is None for each in jobs)
    assert [each.drawn for each in jobs] == [alone(n, range(20, 60), limits=CodeLimits(most=12)).drawn for n in (0, 1)]


class TestSlots:
    def test_saving_and_loading_keeps_what_was_there(self) -> None:
        cache = SlotCache(support.config(), 2, 10, "cpu", torch.float32)
        slot = cache.alloc()
        assert slot == 0
        support.model().run(support.model().embed([1, 2, -3]), cache, [Part(0, 0, 3)])
        saved = cache.save(0)
        cache.data.zero_()
        cache.load(1, saved)
        assert saved.length == cache.lengths[1] == 3
        assert torch.equal(cache.data[:, 1, :3], saved.data)
        assert bool(saved.data.abs().amax(dim=(0, 2, 3, 4)).gt(0).all())

    def test_a_slot_cannot_be_freed_twice_nor_overfilled(self) -> None:
        cache = SlotCache(support.config(), 1, 2, "cpu", torch.float32)
        assert cache.alloc() == 0
        assert cache.alloc() is None
        cache.free(0)
        with pytest.raises(ValueError, match="slot 0 is not in use"):
            cache.free(0)
        long = SlotCache(support.config(), 1, 3, "cpu", torch.float32)
        long.lengths[0] = 3
        with pytest.raises(ValueError, match="3 positions do not fit into a slot of 2"):
            cache.load(0, long.save(0))
        with pytest.raises(ValueError, match="at least 1 slot"):
            SlotCache(support.config(), 0, 3, "cpu", torch.float32)


def test_a_decoder_prepares_its_model_once() -> None:
    lm = support.fresh()
    first, second = decoder(lm=lm), decoder(lm=lm)
    assert isinstance(second, Decoder)
    one, other = job(seed=2), job(seed=2)
    run(first, one)
    run(second, other)
    assert one.drawn == other.drawn == alone(2).drawn


def test_an_utterance_that_filled_its_slot_can_be_told_again() -> None:
    many = CodeLimits(least_per_token=20)
    first = job(range(20, 60), seed=3, limits=many)
    run(decoder(length=200), first)
    again = job(range(20, 60), seed=3, limits=many, known=first.drawn)
    run(decoder(length=200), again)
    assert first.error is None
    assert again.error is None
    assert again.codes == first.codes
