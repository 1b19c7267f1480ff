"""The language model where weights cannot be packed, and in half precision."""

import pytest
import torch

from server.engines.cosyvoice import linear
from server.engines.cosyvoice.linear import FastLinear
from server.engines.cosyvoice.llm.jobs import CodeLimits, Manner
from tests.support import cosyvoice_llm as support
from tests.support.cosyvoice_llm import decoder, job, run

GREEDY = Manner(greedy=True, watch=False, keep_scores=True)


@pytest.mark.parametrize("packed", [True, False])
def test_joined_layers_are_the_layers_one_by_one(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packed:
        monkeypatch.setattr(linear, "packing", lambda: None)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(n, 24, generator=generator) for n in (5, 8)]
    biases = [torch.randn(5, generator=generator), None]
    x = torch.randn(2, 6, 24, generator=generator)
    joined = FastLinear(weights, biases)
    first, second = joined(x)[..., :5], joined(x)[..., 5:]
    assert joined.outs == 13
    assert torch.allclose(first, torch.nn.functional.linear(x, weights[0], biases[0]), atol=1e-5)
    assert torch.allclose(second, torch.nn.functional.linear(x, weights[1]), atol=1e-5)
    assert torch.allclose(FastLinear(weights[:1])(x), x @ weights[0].t(), atol=1e-5)


def test_without_packed_weights_the_same_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, plain, beside = (job(seed=1, manner=GREEDY, limits=CodeLimits(most=20)) for _ in range(3))
    run(decoder(), packed)
    monkeypatch.setattr(linear, "packing", lambda: None)
    shared = decoder(lm=support.fresh())
    run(shared, plain)
    run(shared, beside, job(seed=2, limits=CodeLimits(most=20)), job(seed=3, limits=CodeLimits(most=9)))
    assert plain.drawn == packed.drawn == beside.drawn
    assert support.difference(plain, packed) <= 1e-4
    assert support.difference(plain, beside) <= 1e-4


@pytest.mark.parametrize("fixed", [False, True])
def test_half_precision_is_close_and_neighbours_matter_little(fixed: bool) -> None:
    lm = support.fresh().to(torch.bfloat16)
    shared = decoder(lm=lm, fixed=fixed)
    limits = CodeLimits(most=1)
    exact, half, beside = (job(seed=1, manner=GREEDY, limits=limits) for _ in range(3))
    run(decoder(), exact)
    run(shared, half)
    run(shared, beside, job(seed=2, limits=limits), job(range(20, 29), seed=3, limits=limits))
    assert half.scores[0].dtype == torch.float32
    assert 1e-4 < support.difference(exact, half) < 0.3
    assert support.difference(half, beside) < 0.1
    long = [job(seed=n) for n in range(3)]
    run(shared, *long)
    assert all(each.error is None and len(each.codes) >= 12 for each in long)
    assert shared.slots.free_slots == 4
