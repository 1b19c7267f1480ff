"""Codes to mel hop by hop: everything that is kept changes nothing."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.flow import blocks as kept
from server.engines.cosyvoice.flow import dit
from server.engines.cosyvoice.flow.blocks import pieces
from server.engines.cosyvoice.flow.matching import FlowPrompt
from server.engines.cosyvoice.flow.passes import noise
from tests.support.cosyvoice_flow import (
    assert_near,
    golden,
    golden_prompt,
    hop_by_hop,
    in_blocks,
    masked,
    random_codes,
    random_prompt,
    tiny_flow,
)

VERSIONS: tuple[ModelVersion, ...] = (2, 3)


def _blocks(prompt: int, hops: Sequence[int]) -> list[int]:
    """Of a segment: the prompt's own, and each hop's, the first one's with the prompt's last codes in front."""
    known = max(0, prompt - 3)
    made = list(pieces(known, 25))
    for number, hop in enumerate(hops):
        first, *others = pieces(hop, 25)
        made += [first + (prompt - known if number == 0 else 0), *others]
    return made


@pytest.mark.parametrize(("count", "streaming", "final"), [(28, 1, 0), (53, 1, 0), (78, 1, 0), (78, 1, 1), (78, 0, 1)])
def test_a_whole_segment_is_as_the_reference(count: int, streaming: int, final: int) -> None:
    codes = torch.from_numpy(golden(3)["flow_token"])[:count]
    made = tiny_flow(3).whole(codes, golden_prompt(3), streaming=bool(streaming), final=bool(final)).solve()
    expected = torch.from_numpy(golden(3)[f"flow_mel_n{count}_stream{streaming}_final{final}"][0].T)
    assert_near(made, expected)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("hops", [(25, 25, 25, 3), (75, 3), (10, 15, 50, 3)])
def test_hops_on_the_grid_of_the_prompt_are_as_the_reference(version: ModelVersion, hops: tuple[int, ...]) -> None:
    codes = torch.from_numpy(golden(version)["flow_token"])
    prefix = tiny_flow(version).prefix(golden_prompt(version), None, aligned=True)
    made = hop_by_hop(prefix, codes, hops)
    expected = torch.from_numpy(golden(version)["flow_mel_n78_stream1_final1"][0].T)
    if 10 in hops:  # a hop that ends off the grid sees less
        made, expected = made[50:], expected[50:]
        with pytest.raises(AssertionError):
            assert_near(made, expected)
    else:
        assert_near(made, expected)


def test_the_noise_is_the_one_that_the_models_know() -> None:
    drawn = noise(80, torch.device("cpu"))
    assert drawn.shape == (15_000, 80)
    assert (drawn[:64].T.numpy() == golden(3)["rand_noise_head"]).all()


@pytest.mark.parametrize(("version", "prompt"), [(2, 0), (2, 40), (3, 0), (3, 1), (3, 3), (3, 4), (3, 40)])
@pytest.mark.parametrize("hops", [(15, 25, 50, 7), (1, 2, 30)])
def test_hops_are_one_evaluation_without_caches(version: ModelVersion, prompt: int, hops: tuple[int, ...]) -> None:
    model, voice, codes = tiny_flow(version), random_prompt(prompt), random_codes(sum(hops))
    made = hop_by_hop(model.prefix(voice, None), codes, hops)
    assert made.shape == (2 * len(codes), 80)
    assert_near(made, in_blocks(model, voice, codes, None, _blocks(prompt, hops)))


@pytest.mark.parametrize("version", VERSIONS)
def test_hops_that_are_not_the_last_look_ahead(version: ModelVersion) -> None:
    model, voice, codes = tiny_flow(version), random_prompt(30), random_codes(43)
    made = hop_by_hop(model.prefix(voice, None), codes, (15, 25), final=False)
    assert_near(made, in_blocks(model, voice, codes[:40], codes[40:], _blocks(30, (15, 25))))
    other = codes.clone()
    other[40] = (other[40] + 1) % 256
    assert not torch.allclose(hop_by_hop(model.prefix(voice, None), other, (15, 25), final=False)[-2:], made[-2:])


@pytest.mark.parametrize("history", [0, 20, 64, 150])
@pytest.mark.parametrize("prompt", [0, 2, 40])
def test_a_history_hides_older_frames_and_nothing_else(
    history: int, prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hops = (15, 25, 25, 60, 9)
    model, voice, codes = tiny_flow(3), random_prompt(prompt), random_codes(sum(hops))
    made = hop_by_hop(model.prefix(voice, history), codes, hops)
    pinned = 2 * max(0, prompt - 3)

    def attend_blocks(query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[int]) -> Tensor:
        return masked(query, key, value, blocks, pinned, history)

    monkeypatch.setattr(dit, "attend_blocks", attend_blocks)
    assert_near(made, in_blocks(model, voice, codes, None, _blocks(prompt, hops)))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_history_longer_than_the_segment_hides_nothing(version: ModelVersion) -> None:
    model, voice, codes, hops = tiny_flow(version), random_prompt(40), random_codes(60), (15, 25, 20)
    everything = hop_by_hop(model.prefix(voice, None), codes, hops)
    assert_near(hop_by_hop(model.prefix(voice, 200), codes, hops), everything)
    assert not torch.allclose(hop_by_hop(model.prefix(voice, 10), codes, hops)[-10:], everything[-10:], atol=1e-3)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("prompt", [0, 40])
def test_segments_that_share_a_prefix_do_not_know_each_other(version: ModelVersion, prompt: int) -> None:
    model, voice, hops = tiny_flow(version), random_prompt(prompt), (15, 20)
    first, second = random_codes(35, 5), random_codes(35, 6)
    prefix = model.prefix(voice, 30)
    alone = [hop_by_hop(model.prefix(voice, 30), codes, hops) for codes in (first, second)]
    states, made = [model.start(prefix), model.start(prefix)], []
    for start, end in ((0, 15), (15, 35)):
        for state, codes in zip(states, (first, second), strict=True):
            made.append(state.hop(codes[start:end], codes[end : end + 3] if end < 35 else None).solve())
    assert torch.equal(torch.cat(made[0::2]), alone[0])
    assert torch.equal(torch.cat(made[1::2]), alone[1])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_held_stops_growing_where_the_history_ends(version: ModelVersion) -> None:
    model, codes = tiny_flow(version), random_codes(163)
    prefix, larger = model.prefix(random_prompt(40), 60), model.prefix(random_prompt(80), 60)
    assert 0 < prefix.bytes < larger.bytes < 2.5 * prefix.bytes
    sizes: dict[int | None, list[int]] = {}
    for history in (60, None):
        state = model.start(model.prefix(random_prompt(40), history))
        sizes[history] = []
        for start in range(0, 160, 20):
            state.hop(codes[start : start + 20], codes[start + 20 : start + 23]).solve()
            sizes[history].append(state.bytes)
    assert sizes[60][-1] == sizes[60][-5] < sizes[None][-1] / 2
    assert sizes[None] == sorted(sizes[None])


def test_the_bytes_of_a_prefix_are_those_of_its_keys_and_values() -> None:
    prefix = tiny_flow(3).prefix(random_prompt(53), None)
    keys_and_values = 10 * 2 * 2 * 2 * 100 * 64 * 4  # steps, layers, both, rows, frames, width, bytes of a number
    tails = 10 * 2 * 2 * 30 * 64 * 4 + 2 * 16 * 4  # steps, convolutions, rows, frames, width; the look-ahead layer's
    assert prefix.bytes == keys_and_values + tails


def test_speech_is_bounded_by_the_noise_that_there_is() -> None:
    model = tiny_flow(3)
    state = model.start(model.prefix(random_prompt(8), 0))
    with pytest.raises(ValueError, match=r"codes: 300\.4 s .*allowed: 300 s"):
        state.hop(random_codes(7_502), None)
    with pytest.raises(ValueError, match="allowed: 300 s"):
        model.whole(random_codes(7_493), random_prompt(8), streaming=False, final=True)
    with pytest.raises(ValueError, match="allowed: 300 s"):
        model.prefix(random_prompt(7_501), None)
    assert state.hop(random_codes(3), None).solve().shape == (6, 80)  # what was refused left nothing behind


def test_what_does_not_fit_is_told_by_name() -> None:
    model, voice = tiny_flow(3), random_prompt(5)
    state = model.start(model.prefix(voice, None))
    for codes, ahead, words in (
        (random_codes(0), None, "codes: there are none"),
        (random_codes(4)[None], None, "codes: torch.int64 of shape"),
        (random_codes(4).float(), None, "codes: torch.float32"),
        (random_codes(4), random_codes(2), "codes ahead: there are 2; allowed: 3"),
    ):
        with pytest.raises(ValueError, match=words):
            state.hop(codes, ahead)
    with pytest.raises(ValueError, match=r"prompt mel: .*two frames for each code"):
        model.prefix(FlowPrompt(voice.codes, voice.mel[:-1], voice.embedding), None)
    with pytest.raises(ValueError, match=r"prompt embedding: .*\(192,\)"):
        model.prefix(FlowPrompt(voice.codes, voice.mel, voice.embedding[None]), None)
    with pytest.raises(ValueError, match="history: -1"):
        model.prefix(voice, -1)
    with pytest.raises(ValueError, match="none of which gets a frame"):
        model.whole(random_codes(3), voice, streaming=True, final=False)


def test_hops_come_one_after_the_other_and_end_with_the_last() -> None:
    model = tiny_flow(3)
    state = model.start(model.prefix(random_prompt(5), None))
    made = state.hop(random_codes(4), random_codes(3))
    made.step()
    with pytest.raises(RuntimeError, match="being made"):
        state.hop(random_codes(4), None)
    with pytest.raises(RuntimeError, match="1 of 10 steps"):
        _ = made.mel
    made.solve()
    state.hop(random_codes(4), None).solve()
    with pytest.raises(RuntimeError, match="the last hop"):
        state.hop(random_codes(4), None)


def test_what_came_before_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, codes = tiny_flow(3), random_codes(28)
    prefix = model.prefix(random_prompt(75), None)
    seen: list[int] = []
    attend = kept.attend

    def counted(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        seen.append(query.shape[2])
        return attend(query, keys, values)

    monkeypatch.setattr(kept, "attend", counted)
    model.start(prefix).hop(codes[:15], codes[15:18]).solve()
    assert set(seen) == {2 * (15 + 3)}
    assert len(seen) == 10 * 2  # steps, layers
