"""What is said of a model's memory is what its tensors take."""

from dataclasses import replace

import pytest
import torch

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.fitting import (
    Needs,
    Weights,
    flow_code_bytes,
    llm_body_weights,
    needs_of,
    prefix_bytes,
    segment_bytes,
    slot_bytes,
    weight_bytes,
)
from server.engines.cosyvoice.flow.matching import FlowModel
from server.engines.cosyvoice.folder import modules_of
from server.engines.cosyvoice.llm.slots import SlotCache
from server.engines.cosyvoice.loading import SLOTS_PER_SEGMENT
from server.engines.cosyvoice.synthetic import full, tiny
from tests.support.cosyvoice_flow import random_codes, random_prompt, tiny_flow


@pytest.fixture
def flow(version: ModelVersion) -> FlowModel:
    """With fewer steps of the solver: what is kept of each is alike."""
    whole = tiny_flow(version)
    made = FlowModel(replace(whole.config, steps=2))
    made.load_state_dict(whole.state_dict())
    return made


@pytest.mark.parametrize(("dtype", "item"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_slots(version: ModelVersion, dtype: torch.dtype, item: int) -> None:
    config = tiny(version).llm
    assert SlotCache(config, 3, 100, "cpu", dtype).bytes == 3 * slot_bytes(config, 100, item)


@pytest.mark.parametrize("codes", [3, 20, 53])
def test_what_is_kept_of_a_voice(flow: FlowModel, codes: int) -> None:
    assert flow.prefix(random_prompt(codes), 100).bytes == prefix_bytes(flow.config, 4, codes)


def test_a_second_in_the_cache(flow: FlowModel) -> None:
    short, long = (flow.prefix(random_prompt(codes), None).bytes for codes in (28, 53))
    assert long - short == 25 * flow_code_bytes(flow.config, 4)


def long_segment(flow: FlowModel, history: int, prompt: int, codes: int) -> int:
    """The most that a segment held, hop by hop."""
    state = flow.start(flow.prefix(random_prompt(prompt), history))
    spoken, most, at = random_codes(codes), 0, 0
    for hop in (15, 25, *[50] * 40):
        end = min(at + hop, codes)
        last = codes - end < 3
        state.hop(spoken[at : codes if last else end], None if last else spoken[end : end + 3]).solve()
        most, at = max(most, state.bytes), end
        if last:
            break
    return most


@pytest.mark.parametrize(("history", "codes"), [(0, 120), (40, 190)])
def test_a_segment_holds_no_more_than_is_said(flow: FlowModel, history: int, codes: int) -> None:
    said = segment_bytes(flow.config, 4, history, 30)
    held = long_segment(flow, history, 30, codes)
    assert held <= said
    if history:
        assert held > 0.8 * said


def test_weights(version: ModelVersion) -> None:
    config = tiny(version)
    lm, flow, hift = modules_of(config)
    weights = weight_bytes(config, device="cuda", item=2)
    lm_numbers = sum(each.numel() for each in lm.parameters())
    assert weights.lm == 2 * lm_numbers
    assert weights.vocoder == 4 * sum(each.numel() for each in hift.state_dict().values())
    matrices = sum(each.numel() for name, each in lm.named_parameters() if "_proj.weight" in name)
    assert llm_body_weights(config.llm) == matrices
    assert weight_bytes(config, device="cpu", item=4, quantise="int8").lm == 4 * lm_numbers - 3 * matrices
    if version == 3:
        linears = [each for name, each in flow.named_parameters() if "transformer_blocks" in name and each.dim() == 2]
        large = sum(each.numel() for each in linears) - sum(
            each.numel() for name, each in flow.named_parameters() if "attn_norm" in name and name.endswith("weight")
        )
        assert weight_bytes(config, device="cpu", item=4).layouts == 4 * large


def test_the_official_models_take_what_their_sizes_say(version: ModelVersion) -> None:
    needs = needs_of(full(version), device="cuda", precision="bf16", quantise="none", length=2048, history_s=6.0)
    assert needs.slot == SLOTS_PER_SEGMENT["cuda"] * 12_288 * 2049  # 12.3 KB a token
    millions = {2: 112.5, 3: 332.0}[version]
    assert needs.weights.flow / 2e6 == pytest.approx(millions, rel=0.02)
    assert needs.weights.vocoder / 4e6 == pytest.approx(20.8, rel=0.03)


def test_how_many_fit() -> None:
    needs = Needs(Weights(10, 5, 4, 1), slot=3, segment=7, second=1, voice=9, reserve=30)
    assert needs.fixed == 50
    assert [needs.fitting(memory, 20) for memory in (0, 79, 80, 99, 100)] == [0, 0, 1, 2, 3]
