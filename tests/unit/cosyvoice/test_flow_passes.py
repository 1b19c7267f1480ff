"""Several segments on their way to mel at once, and the steps that they go."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.flow.matching import FlowModel, FlowPass, step_passes
from server.engines.cosyvoice.flow.passes import schedule
from server.engines.cosyvoice.synthetic import tiny
from tests.support.cosyvoice_flow import assert_near, hop_by_hop, random_codes, random_prompt, tiny_flow

VERSIONS: tuple[ModelVersion, ...] = (2, 3)


def _first_hops(model: FlowModel, lengths: list[int]) -> list[FlowPass]:
    """Of different voices and codes."""
    states = [model.start(model.prefix(random_prompt(3 * seed, seed), 40)) for seed in range(len(lengths))]
    return [
        state.hop(random_codes(length, seed), random_codes(3, seed))
        for seed, (state, length) in enumerate(zip(states, lengths, strict=True))
    ]


def _alone(model: FlowModel, lengths: list[int]) -> list[Tensor]:
    return [made.solve() for made in _first_hops(model, lengths)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("pad", [False, True])
def test_packed_passes_are_what_they_are_alone(version: ModelVersion, pad: bool) -> None:
    model, lengths = tiny_flow(version), [15, 12, 20, 31]
    passes = _first_hops(model, lengths)
    while not all(made.done for made in passes):
        step_passes(passes, pad=pad)
    for made, expected in zip(passes, _alone(model, lengths), strict=True):
        assert_near(made.mel, expected, 1e-5)


@pytest.mark.parametrize("version", VERSIONS)
def test_passes_join_and_leave_at_any_step(version: ModelVersion) -> None:
    model, lengths = tiny_flow(version), [15, 12, 11, 12]
    waiting = _first_hops(model, lengths)
    running: list[FlowPass] = []
    started = list(waiting)
    while waiting or not all(made.done for made in running):
        if waiting:
            running.append(waiting.pop(0))
        step_passes(running, pad=True)  # those that are done stay as they are
    for made, expected in zip(started, _alone(model, lengths), strict=True):
        assert_near(made.mel, expected, 1e-5)


@pytest.mark.parametrize("version", VERSIONS)
def test_later_hops_of_packed_passes_are_what_they_are_alone(version: ModelVersion) -> None:
    model, codes = tiny_flow(version), [random_codes(43, 7), random_codes(50, 8)]
    prefix = model.prefix(random_prompt(20), 30)
    states = [model.start(prefix), model.start(prefix)]
    made: list[list[Tensor]] = [[], []]
    hops = [[15, 25, 3], [15, 23, 12]]
    for number in range(3):
        passes = [
            state.hop(
                own[sum(cut[:number]) :][: cut[number]], own[sum(cut[: number + 1]) :][:3] if number < 2 else None
            )
            for state, own, cut in zip(states, codes, hops, strict=True)
        ]
        for _ in range(10):
            step_passes(passes, pad=True)
        for result, done in zip(made, passes, strict=True):
            result.append(done.mel)
    for result, own, cut in zip(made, codes, hops, strict=True):
        assert_near(torch.cat(result), hop_by_hop(prefix, own, cut), 1e-5)


def test_passes_of_equal_length_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_flow(3)
    calls: list[tuple[int, ...]] = []
    velocity: Callable[..., Tensor] = model.estimator.velocity

    def counted(x: Tensor, *others: object) -> Tensor:
        calls.append(tuple(x.shape[:2]))
        return velocity(x, *others)

    passes = _first_hops(model, [15, 12, 15, 9])  # with the prompts' last codes: 15, 15, 18 and 12
    whole = model.whole(random_codes(15), random_prompt(0), streaming=False, final=True)
    monkeypatch.setattr(model.decoder.estimator, "velocity", counted)
    step_passes([*passes, whole])
    assert sorted(calls) == [(2, 24), (2, 30), (2, 36), (4, 30)]
    calls.clear()
    step_passes(passes, pad=True)
    assert calls == [(8, 36)]


def test_steps_grow_as_a_cosine_and_reach_the_end() -> None:
    times, widths = schedule(10)
    assert times[0] == 0.0
    assert sum(widths) == pytest.approx(1.0, abs=1e-6)
    assert list(widths) == sorted(widths)
    assert times[5] == pytest.approx(1 - 2**-0.5, abs=1e-6)


def test_weights_that_are_loaded_later_are_the_ones_that_count() -> None:
    model, codes, voice = FlowModel(tiny(3).flow), random_codes(10), random_prompt(5)
    before = model.whole(codes, voice, streaming=False, final=True).solve()
    model.load_state_dict(tiny_flow(3).state_dict())
    after = model.whole(codes, voice, streaming=False, final=True).solve()
    assert torch.equal(after, tiny_flow(3).whole(codes, voice, streaming=False, final=True).solve())
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("version", VERSIONS)
def test_half_precision_is_near(version: ModelVersion) -> None:
    model, voice = FlowModel(tiny(version).flow), random_prompt(20)
    model.load_state_dict(tiny_flow(version).state_dict())
    model.to(torch.bfloat16)
    made = hop_by_hop(model.prefix(voice, 30), random_codes(40), (15, 25))
    expected = hop_by_hop(tiny_flow(version).prefix(voice, 30), random_codes(40), (15, 25))
    assert made.dtype == torch.float32
    assert (made - expected).abs().mean() < 0.05 * expected.abs().mean()


def test_positions_stay_exact_in_half_precision() -> None:
    model = FlowModel(tiny(3).flow).to(torch.bfloat16)
    exact = tiny_flow(3).state_dict()["decoder.estimator.rotary_embed.inv_freq"]
    assert torch.equal(model.state_dict()["decoder.estimator.rotary_embed.inv_freq"], exact)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_model_is_built_without_memory(version: ModelVersion) -> None:
    with torch.device("meta"):
        model = FlowModel(tiny(version).flow)
    model.load_state_dict(tiny_flow(version).state_dict(), assign=True)
    codes, voice = random_codes(10), random_prompt(5)
    made = model.whole(codes, voice, streaming=True, final=True).solve()
    assert torch.equal(made, tiny_flow(version).whole(codes, voice, streaming=True, final=True).solve())
