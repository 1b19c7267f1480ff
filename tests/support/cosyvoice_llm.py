"""Small language models, and utterances driven through them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from server.engines.cosyvoice.config import LlmConfig, ModelVersion, SamplingConfig
from server.engines.cosyvoice.linear import packing
from server.engines.cosyvoice.llm.decoding import PIECE, Decoder
from server.engines.cosyvoice.llm.jobs import CodeJob, Manner
from server.engines.cosyvoice.llm.slots import SlotCache
from server.engines.cosyvoice.llm.speech_lm import SpeechLm
from server.engines.cosyvoice.synthetic import fill_randomly

PROMPT_TEXT = [7, 8, 9, 10, 11, 12, 13]
PROMPT_CODES = [3 * n % 200 for n in range(33)]


def config(version: ModelVersion = 2) -> LlmConfig:
    """Of a model of 64 channels; its vocabulary is too small for `<|endofprompt|>`."""
    return LlmConfig(version, hidden=64, layers=2, heads=4, kv_heads=2, ffn=128, vocab=300, codes=256)


def fresh(version: ModelVersion = 2, seed: int = 0) -> SpeechLm:
    """A model with weights by chance, not prepared."""
    lm = SpeechLm(config(version))
    fill_randomly(lm, seed)
    return lm


@lru_cache(maxsize=4)
def model(version: ModelVersion = 2) -> SpeechLm:
    """A prepared one, shared between tests: it has no state."""
    lm = fresh(version)
    lm.prepare()
    return lm


def decoder(
    slots: int = 4,
    length: int = 512,
    *,
    lm: SpeechLm | None = None,
    piece: int = PIECE,
    fixed: bool = False,
    aside_bytes: int | None = None,
) -> Decoder:
    """One on the CPU."""
    lm = lm or model()
    cache = SlotCache(lm.config, slots, length, lm.device, lm.dtype)
    return Decoder(lm, cache, SamplingConfig(), piece, fixed_shapes=fixed, aside_bytes=aside_bytes)


def job(text: Sequence[int] = range(20, 26), *, seed: int = 0, watch: bool = False, **more: Any) -> CodeJob:
    """One with a voice; models by chance repeat themselves, so nothing watches."""
    version = more.pop("version", 2)
    manner = more.pop("manner", Manner(watch=watch, keep_scores=True))
    voice = {"prompt_text": PROMPT_TEXT, "prompt_codes": PROMPT_CODES}
    return CodeJob(config(version), list(text), seed=seed, manner=manner, **(voice | more))


def run(decoder: Decoder, *jobs: CodeJob, ticks: int = 10_000) -> None:
    """Until all are done or wait for text."""
    for _ in range(ticks):
        if all(job.done or job.waits_for_text for job in jobs):
            return
        decoder.advance(jobs)


def difference(left: CodeJob, right: CodeJob) -> float:
    """The largest, of the log-probabilities that both saw."""
    pairs = zip(left.scores, right.scores, strict=False)
    return max(float((a - b).abs().max()) for a, b in pairs)


def is_exact() -> bool:
    """Whether this machine's linear layers do not depend on the number of rows."""
    return packing() is not None
