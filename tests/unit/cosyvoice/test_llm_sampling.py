"""Sampling: what is drawn, how often, and what it depends on."""

import numpy as np
import pytest
import torch

from server.engines.cosyvoice.config import SamplingConfig
from server.engines.cosyvoice.llm.sampling import Allowed, Draws, allowed_table, draw
from tests.support import cosyvoice_llm as support

PLAIN = SamplingConfig()
MANY = 20_000
NONE = [-1] * PLAIN.window


def shares(weights: list[float], recent: list[int], sampling: SamplingConfig = PLAIN) -> list[float]:
    """How often each id is drawn."""
    scores = torch.tensor(weights).log().log_softmax(dim=0).expand(MANY, -1)
    chances = torch.from_numpy(np.random.default_rng(1).random((MANY, 2), dtype=np.float32))
    drawn = draw(scores, torch.tensor(recent).expand(MANY, -1), chances, sampling)
    return [float(share) for share in torch.bincount(drawn, minlength=len(weights)) / MANY]


def test_only_the_nucleus_is_drawn_in_its_proportions() -> None:
    found = shares([0.1, 0.4, 0.05, 0.3, 0.15], NONE)  # 0.4 + 0.3 < 0.8, so the third is the last
    assert found == pytest.approx([0.0, 0.4 / 0.85, 0.0, 0.3 / 0.85, 0.15 / 0.85], abs=0.02)


def test_no_more_than_top_k_are_in_it() -> None:
    assert shares([0.1, 0.4, 0.05, 0.3, 0.15], NONE, SamplingConfig(top_k=2)) == pytest.approx(
        [0.0, 4 / 7, 0.0, 3 / 7, 0.0], abs=0.02
    )


def test_a_code_that_came_lately_is_replaced_by_any_other() -> None:
    found = shares([0.1, 0.4, 0.05, 0.3, 0.15], [*NONE[:-1], 1])
    nucleus = {1: 0.4 / 0.85, 3: 0.3 / 0.85, 4: 0.15 / 0.85}
    rest = {0: 0.1 / 0.6, 2: 0.05 / 0.6, 3: 0.3 / 0.6, 4: 0.15 / 0.6}
    wanted = [nucleus.get(i, 0.0) * (i != 1) + nucleus[1] * rest.get(i, 0.0) for i in range(5)]
    assert found == pytest.approx(wanted, abs=0.02)


def test_how_often_makes_a_repetition_is_a_setting() -> None:
    sometimes = SamplingConfig(repeat_share=0.3)
    assert shares([0.9, 0.1], [*NONE[:-2], 0, 0], sometimes) == [1.0, 0.0]
    assert shares([0.9, 0.1], [*NONE[:-3], 0, 0, 0], sometimes) == [0.0, 1.0]


def test_the_only_code_there_is_may_repeat() -> None:
    assert shares([1.0, 0.0, 0.0], [0] * 10) == [1.0, 0.0, 0.0]


def test_what_has_no_chance_is_never_drawn() -> None:
    scores = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]])
    for chance in (0.0, 0.4999999, 0.5, 0.9999999, 1.0):
        assert int(draw(scores, torch.tensor([NONE]), torch.tensor([[chance, chance]]), PLAIN)) in (0, 2)
        assert int(draw(scores, torch.tensor([[0] * 10]), torch.tensor([[0.1, chance]]), PLAIN)) == 2


def test_a_rows_draw_does_not_depend_on_the_other_rows() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(9, 6564, generator=generator) * 3
    recent = scores.topk(20).indices[:, 5:15].contiguous()
    chances = torch.rand(9, 2, generator=generator)
    together = draw(scores, recent, chances, PLAIN)
    singly = [draw(scores[n : n + 1], recent[n : n + 1], chances[n : n + 1], PLAIN) for n in range(9)]
    assert together.tolist() == torch.cat(singly).tolist()
    assert bool((recent == together[:, None]).any()) or len(set(together.tolist())) > 1


def test_chances_depend_on_seed_and_step_alone() -> None:
    forward, back = Draws(5), Draws(5)
    steps = [0, 1, 63, 64, 65, 200, 128]
    assert [forward.at(step) for step in steps] == [back.at(step) for step in reversed(steps)][::-1]
    assert Draws(6).at(0) != forward.at(0)
    values = np.array([Draws(9).at(step) for step in range(2000)])
    assert len(np.unique(values)) == 4000
    assert values.min() >= 0.0
    assert values.max() < 1.0
    assert values.mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("version", [2, 3])
def test_what_may_be_drawn(version: int) -> None:
    config = support.config(2 if version == 2 else 3)
    table = allowed_table(config, "cpu")
    assert table[Allowed.ALL].all()
    marks = {kind: torch.nonzero(table[kind])[256:, 0].tolist() for kind in Allowed if kind is not Allowed.ALL}
    assert marks == {
        Allowed.CODES: [],
        Allowed.CODES_AND_FILL: [258 if version == 2 else 259],
        Allowed.CODES_AND_END: [256 if version == 2 else 257],
    }
    assert bool(table[:, :256].all())
