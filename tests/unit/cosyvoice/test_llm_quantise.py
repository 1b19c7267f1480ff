"""The language model with 8-bit weights."""

import pytest
import torch

from server.engines.base import EngineError
from server.engines.cosyvoice.linear import FastLinear
from server.engines.cosyvoice.llm.decoding import Decoder
from server.engines.cosyvoice.llm.jobs import CodeLimits, Manner
from server.engines.cosyvoice.llm.quantise import Int8Linear, prepare_int8
from tests.support import cosyvoice_llm as support
from tests.support.cosyvoice_llm import decoder, job, run

WEIGHTS = [torch.randn(48, 64, generator=torch.Generator().manual_seed(1)) / 8, torch.ones(16, 64) / 8]
BIASES = [None, torch.arange(16.0)]
ROWS = torch.randn(9, 64, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 3, 9)[:, None]


@pytest.fixture(scope="module")
def small() -> Decoder:
    lm = support.fresh()
    prepare_int8(lm)
    return decoder(lm=lm)


def test_layers_joined_in_8_bits_are_close_to_the_exact_ones() -> None:
    exact, rough = (make(WEIGHTS, BIASES)(ROWS) for make in (FastLinear, Int8Linear))
    wanted = torch.cat([ROWS @ WEIGHTS[0].t(), ROWS @ WEIGHTS[1].t() + BIASES[1]], dim=1)  # type: ignore[operator]
    assert torch.allclose(exact, wanted, rtol=1e-4, atol=1e-4)
    error = (rough - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(error.max()) < 0.04
    assert float(error.max()) > 1e-5, "nothing was quantised"


def test_a_row_does_not_depend_on_the_others_not_even_on_broken_ones() -> None:
    layer = Int8Linear(WEIGHTS, BIASES)
    together = layer(ROWS)
    assert all(torch.equal(layer(ROWS[n : n + 1])[0], together[n]) for n in range(9))
    broken = ROWS.clone()
    broken[3, 5], broken[4, 6] = torch.nan, torch.inf
    made = layer(broken)
    assert not bool(made[3].isfinite().all())
    assert not bool(made[4].isfinite().all())
    assert torch.equal(made[5:], together[5:])
    assert torch.equal(made[:3], together[:3])
    assert torch.equal(layer(torch.zeros(1, 64))[0, :48], torch.zeros(48))


def test_log_probabilities_move_a_little_and_neighbours_change_nothing(small: Decoder) -> None:
    greedy = Manner(greedy=True, watch=False, keep_scores=True)
    alone, beside, exact = (job(seed=1, manner=greedy, limits=CodeLimits(most=12)) for _ in range(3))
    run(small, alone)
    run(small, beside, *(job(seed=n, limits=CodeLimits(most=20)) for n in range(2, 5)))
    run(decoder(), exact)
    assert alone.drawn == beside.drawn
    assert support.difference(alone, beside) == 0.0
    assert 1e-4 < float((alone.scores[0] - exact.scores[0]).abs().max()) < 0.3


def test_what_it_cannot_do_is_said_in_one_line() -> None:
    with pytest.raises(EngineError, match="quantise: int8 needs the CPU and precision fp32"):
        Int8Linear([torch.zeros(4, 8, dtype=torch.bfloat16)])
