"""Text that arrives while the language model speaks."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from server.engines.cosyvoice.config import LlmConfig
from server.engines.cosyvoice.llm.ids import END_OF_PROMPT, code_id, start_id, task_id
from server.engines.cosyvoice.llm.jobs import CodeJob, CodeLimits, Manner
from server.engines.cosyvoice.llm.turns import Turns, voice_ids
from tests.support import cosyvoice_llm as support
from tests.support.cosyvoice_llm import PROMPT_CODES, PROMPT_TEXT, decoder, job, run

TEXT = list(range(20, 43))
FILL = 258  # of the small model


def late(*pieces: list[int], ended: bool = True, **more: Any) -> CodeJob:
    """Each piece arrives when all that came before has been made use of."""
    shared, made = decoder(), job((), streaming=True, **({"limits": CodeLimits(most=70)} | more))
    for piece in pieces:
        made.add_text(piece)
        run(shared, made)
    if ended:
        made.end_text()
        run(shared, made)
    return made


def cut(size: int) -> list[list[int]]:
    return [TEXT[start : start + size] for start in range(0, len(TEXT), size)]


def all_ids(config: LlmConfig, text: list[int], prompt_text: list[int], prompt_codes: list[int]) -> list[list[int]]:
    """What is read, turn by turn, of a text that has ended."""
    turns = Turns(config, prompt_text, prompt_codes, as_upstream=False)
    turns.add(text)
    turns.end()
    read = [turns.first]
    while not turns.last:
        ids, ready = turns.read(())
        assert ready
        read.append(ids)
    return read


def test_five_of_the_text_and_fifteen_codes_take_turns_and_the_voices_come_first() -> None:
    config = support.config()
    codes = [code_id(code) for code in range(33)]
    first, *turns = all_ids(config, [50, 51, 52, 53, 54, 55, 56, 57], list(range(1, 11)), list(range(33)))
    assert first == [start_id(config)]
    assert turns == [
        [*range(1, 6), *codes[:15], *range(6, 11), *codes[15:30], *range(50, 55), *codes[30:]],
        [55, 56, 57, task_id(config)],
    ]


def test_codes_of_the_voice_that_find_no_text_are_read_behind_it() -> None:
    config = support.config()
    _, only = all_ids(config, [50], [1, 2, 3], list(range(33)))
    assert only == [1, 2, 3, 50, task_id(config), *(code_id(code) for code in range(33))]


@pytest.mark.parametrize("count", [0, 15, 30])
def test_no_codes_are_drawn_before_the_text_that_is_due(count: int) -> None:
    config = support.config()
    turns = all_ids(config, list(range(50, 62)), list(range(1, 6 * count // 15)), list(range(count)))
    assert all(token >= 0 for token in turns[1][-5:])


def test_what_is_drawn_does_not_depend_on_when_text_arrives() -> None:
    whole = late(TEXT, seed=3)
    assert whole.done
    assert whole.error is None
    assert [late(*cut(size), seed=3).drawn for size in (1, 4, 7)] == [whole.drawn] * 3


def test_a_fill_mark_stands_after_fifteen_codes_at_most_and_is_no_code() -> None:
    made = late(TEXT, seed=3)
    marks = [place for place, drawn in enumerate(made.drawn) if drawn >= 256]
    assert made.codes == [drawn for drawn in made.drawn if drawn < 256]
    assert [made.drawn[place] for place in marks[:-1]] == [FILL] * (len(marks) - 1)
    assert len(marks) >= 3
    assert marks[0] <= 15 - 33 % 15
    assert all(later - earlier <= 16 for earlier, later in pairwise(marks[:-1]))


def test_waiting_for_text_needs_no_slot() -> None:
    shared = decoder(slots=1)
    waiting, other = job((), streaming=True, seed=1, limits=CodeLimits(most=70)), job(seed=2)
    waiting.add_text(TEXT[:9])
    run(shared, waiting)
    assert waiting.waits_for_text
    made = len(waiting.codes)
    assert made >= 1
    run(shared, other, waiting)
    assert other.done
    assert waiting.seat.slot is None
    waiting.add_text(TEXT[9:])
    waiting.end_text()
    run(shared, waiting)
    assert waiting.done
    assert len(waiting.codes) > made
    assert waiting.drawn == late(TEXT, seed=1).drawn
    assert shared.slots.free_slots == 1


def test_a_text_that_waits_before_anything_was_read_holds_nothing() -> None:
    shared, waiting = decoder(), job([20], streaming=True, prompt_text=[], prompt_codes=[])
    shared.advance([waiting])
    assert waiting.waits_for_text
    assert shared.slots.free_slots == 4


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 1.0])
def test_known_ids_are_replayed_with_their_marks(share: float) -> None:
    whole = late(TEXT, seed=3)
    known = whole.drawn[: round(len(whole.drawn) * share)]
    assert late(TEXT, seed=3, known=known).drawn == whole.drawn
    assert late(*cut(5), seed=3, known=known).drawn == whole.drawn


def test_known_ids_wait_for_their_text() -> None:
    whole = late(TEXT, seed=3)
    waiting = late(TEXT[:12], seed=3, known=whole.drawn, ended=False)
    assert waiting.waits_for_text
    assert 0 < len(waiting.drawn) < len(whole.drawn)
    assert waiting.drawn == whole.drawn[: len(waiting.drawn)]


def test_the_last_part_has_a_most() -> None:
    greedy = Manner(greedy=True, watch=False)
    assert len(late(TEXT[:3], manner=greedy, limits=CodeLimits()).codes) == 3 * 20
    assert len(late(TEXT[:3], manner=greedy, limits=CodeLimits(most=50)).codes) == 50


def test_text_after_the_end_is_refused() -> None:
    ended, whole = late(TEXT[:5], limits=CodeLimits(most=5)), job()
    for each in (ended, whole):
        with pytest.raises(ValueError, match="text: nothing can be added, it has ended"):
            each.add_text([1])
    with pytest.raises(ValueError, match="text: 300 is not from 0 to 299"):
        job((), streaming=True).add_text([300])
    whole.end_text()


def test_an_end_without_any_text_still_ends() -> None:
    made = late(prompt_text=[], prompt_codes=[])
    assert made.done
    assert made.error is None
    assert len(made.codes) <= 1


def test_what_depends_on_the_voice_alone_is_a_prefix_of_its_utterances() -> None:
    config = support.config()
    for text, codes in ((PROMPT_TEXT, PROMPT_CODES), (list(range(1, 30)), PROMPT_CODES), ([1, 2], []), ([], [5])):
        ids = voice_ids(config, text, codes, streaming=True)
        made = CodeJob(config, TEXT, prompt_text=text, prompt_codes=codes, streaming=True)
        assert len(ids) >= 1
        assert made.ahead(len(ids)) == list(ids)
        assert len(ids) < made.pending
    greedy = Manner(greedy=True, watch=False, keep_scores=True)
    shared = decoder()
    prefix = shared.prefix(voice_ids(config, PROMPT_TEXT, PROMPT_CODES, streaming=True))
    assert prefix.saved.length == 20
    with_it, without = (
        job(TEXT, streaming=True, prefix=each, manner=greedy, limits=CodeLimits(most=40)) for each in (prefix, None)
    )
    for each in (with_it, without):
        each.end_text()
    run(shared, with_it, without)
    assert with_it.drawn == without.drawn
    assert support.difference(with_it, without) <= 1e-4


def test_version_3_reads_its_instructions_whole_and_first() -> None:
    config = replace(support.config(3), vocab=151_936)
    first, *turns = all_ids(config, list(range(50, 58)), [1, 2, 3, END_OF_PROMPT, 4, 5], [])
    assert first == [start_id(config), 1, 2, 3, END_OF_PROMPT]
    assert turns == [[4, 5, 50, 51, 52], [*range(53, 58)], [task_id(config)]]
    assert start_id(config) == code_id(256)
    assert task_id(config) == code_id(258)
