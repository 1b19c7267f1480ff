"""The language model against what CosyVoice's own code computed with the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from server.engines.cosyvoice.config import ModelVersion, SamplingConfig
from server.engines.cosyvoice.llm.decoding import Decoder
from server.engines.cosyvoice.llm.jobs import CodeJob, CodeLimits, Manner
from server.engines.cosyvoice.llm.slots import SlotCache
from server.engines.cosyvoice.llm.speech_lm import IGNORED_KEYS, SpeechLm
from server.engines.cosyvoice.synthetic import full, read_manifest, state_by_rule, tiny

DATA = Path(__file__).parents[2] / "data" / "cosyvoice"
VERSIONS: tuple[ModelVersion, ...] = (2, 3)
GREEDY = Manner(greedy=True, as_upstream=True, watch=False, keep_scores=True)


@pytest.fixture(scope="module", params=VERSIONS, ids=["v2", "v3"])
def golden(request: pytest.FixtureRequest) -> tuple[Decoder, Any]:
    """A decoder with the weights of the rule, and the vectors."""
    version: ModelVersion = request.param
    config = tiny(version).llm
    lm = SpeechLm(config)
    state = state_by_rule("llm", read_manifest(DATA / f"cosyvoice{version}_manifest.json")["llm"])
    lm.load_state_dict({key: value for key, value in state.items() if key not in IGNORED_KEYS})
    decoder = Decoder(lm, SlotCache(config, 2, 400, lm.device, lm.dtype), SamplingConfig())
    return decoder, np.load(DATA / f"cosyvoice{version}_golden.npz")


def utterance(decoder: Decoder, vectors: Any, text: list[int], most: int, **more: Any) -> CodeJob:
    voice = {name: vectors[entry].tolist() for name, entry in (("prompt_text",) * 2, ("prompt_codes", "prompt_speech"))}
    return CodeJob(decoder.lm.config, text, limits=CodeLimits(most=most), manner=GREEDY, **voice, **more)


def expect(job: CodeJob, vectors: Any, entry: str) -> None:
    wanted: npt.NDArray[np.float32] = vectors[f"{entry}_logp"]
    assert job.error is None
    assert job.codes == vectors[f"{entry}_tokens"].tolist()
    assert torch.stack(job.scores).numpy() == pytest.approx(wanted, abs=1e-4, rel=0)


def test_a_whole_text_gives_the_codes_and_log_probabilities_of_the_reference(golden: tuple[Decoder, Any]) -> None:
    decoder, vectors = golden
    job = utterance(decoder, vectors, vectors["text"].tolist(), 80)
    while not job.done:
        decoder.advance([job])
    expect(job, vectors, "llm")


def test_text_that_arrives_late_gives_those_of_the_reference(golden: tuple[Decoder, Any]) -> None:
    decoder, vectors = golden
    job, text = utterance(decoder, vectors, [], 60, streaming=True), vectors["text"].tolist()
    for start in range(0, len(text), 5):
        job.add_text(text[start : start + 5])
        while not (job.done or job.waits_for_text):
            decoder.advance([job])
    job.end_text()
    while not job.done:
        decoder.advance([job])
    expect(job, vectors, "llm_bistream")


def test_both_at_once_and_beside_others_give_the_same(golden: tuple[Decoder, Any]) -> None:
    decoder, vectors = golden
    text = vectors["text"].tolist()
    first, second = utterance(decoder, vectors, text, 80), utterance(decoder, vectors, text, 80)
    for _ in range(9):
        decoder.advance([first])
    while not (first.done and second.done):
        decoder.advance([second, first])
    expect(first, vectors, "llm")
    expect(second, vectors, "llm")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_official_checkpoints_keys_and_shapes_are_the_models(version: ModelVersion) -> None:
    manifest = read_manifest(DATA / f"cosyvoice{version}_full_manifest.json")["llm"]
    with torch.device("meta"):
        lm = SpeechLm(full(version).llm)
    wanted = {key: entry.shape for key, entry in manifest.items() if key not in IGNORED_KEYS}
    assert {key: tuple(value.shape) for key, value in lm.state_dict().items()} == wanted
