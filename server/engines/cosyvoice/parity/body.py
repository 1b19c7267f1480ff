"""Sizes of the language model that no file of a set tells: how many heads it has, and the base of its positions.

What the vectors at hand were made with is tried first, then all that the shapes allow. Nothing is lost by trying: a
wrong guess misses the first log-probabilities by far.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from server.engines.cosyvoice.config import LlmConfig
from server.engines.cosyvoice.folder import Model, not_needed
from server.engines.cosyvoice.llm.speech_lm import SpeechLm
from server.engines.cosyvoice.parity.checks import greedy_codes
from server.engines.cosyvoice.parity.findings import LOG_CHANCE, Case, MissingInput, compare
from server.engines.cosyvoice.parity.sets import VectorSet
from server.engines.cosyvoice.synthetic import state_by_rule
from server.engines.cosyvoice.weights import load_checked, uninitialised

BASES: Final = (10_000.0, 1_000_000.0)
_ENTRY: Final = "llm_logp"


def settle(vectors: VectorSet, tag: str) -> tuple[Case, str]:
    """The set's case, and what was found out about its body if that is not as assumed. Where nothing fits the case is
    as assumed, and its entries will tell. Raises ModelError where the model cannot be built.
    """
    case = Case(vectors.build(tag), vectors.golden)
    if vectors.golden.get(_ENTRY) is None or not len(vectors.golden[_ENTRY]) or _fits(case):
        return case, ""
    state = state_by_rule("llm", vectors.manifest["llm"], tag)
    for llm in _candidates(vectors.config.llm):
        with uninitialised():
            lm = SpeechLm(llm)
        load_checked(lm, state, vectors.name, not_needed)
        config = replace(vectors.config, llm=llm)
        other = Case(Model(config, lm, case.model.flow, case.model.vocoder), vectors.golden)
        if _fits(other):
            return other, f"{llm.heads} heads, rotary base {llm.rope_theta:g} (tried, as no file tells)"
    return case, ""


def _fits(case: Case) -> bool:
    try:
        _, scores = greedy_codes(case, 1)
    except (MissingInput, ValueError):
        return True  # the entry itself will tell
    first = Case(case.model, {_ENTRY: case.golden[_ENTRY][:1]})
    return compare(first, _ENTRY, "", scores, LOG_CHANCE).ok


def _candidates(llm: LlmConfig) -> Iterator[LlmConfig]:
    shared = llm.heads // llm.kv_heads
    for base in BASES:
        for heads in range(shared, llm.hidden // 2 + 1, shared):
            if llm.hidden % heads == 0 and llm.hidden // heads % 2 == 0:
                yield replace(llm, heads=heads, kv_heads=heads // shared, rope_theta=base)
