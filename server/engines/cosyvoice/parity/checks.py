"""Which entries are known, and how each is computed again."""

import re
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from server.engines.cosyvoice.flow.matching import FlowPrompt, noise
from server.engines.cosyvoice.llm.decoding import Decoder
from server.engines.cosyvoice.llm.jobs import CodeJob, CodeLimits, Manner
from server.engines.cosyvoice.llm.slots import SlotCache
from server.engines.cosyvoice.parity.findings import (
    EXACT,
    LOG_CHANCE,
    MEL,
    NOISE,
    WAVE,
    Case,
    Finding,
    MissingInput,
    compare,
)
from server.engines.cosyvoice.vocoder.hift import Hift

OVERLAP: Final = 8  # frames that the original code speaks twice, to fade from one chunk into the next
TEXT_PIECE: Final = 5  # text tokens that arrive at once in the entries about late text
INPUTS: Final = (
    "text prompt_text prompt_speech flow_token flow_prompt_token flow_prompt_feat flow_embedding hift_mel".split()
)

_GREEDY: Final = Manner(greedy=True, as_upstream=True, watch=False, keep_scores=True)
_ENDLESS: Final = 1_000_000
_FLOW_ENTRY: Final = re.compile(r"flow_mel_n(\d+)_stream([01])_final([01])")


def greedy_codes(case: Case, count: int, prompt: str = "prompt_speech") -> tuple[list[int], npt.NDArray[np.float32]]:
    """The likeliest codes of the whole text, and the log-probabilities `[count, rows]` they were chosen of. `prompt`:
    the entry with the codes of the voice.
    """
    known = case.drawn.get(prompt)
    if known is None or len(known[0]) < count:
        job = CodeJob(
            case.model.config.llm,
            case.ids("text"),
            prompt_text=case.ids("prompt_text", []),
            prompt_codes=case.ids(prompt, []),
            limits=CodeLimits(most_per_token=_ENDLESS, most=count),
            manner=_GREEDY,
        )
        known = case.drawn[prompt] = _run(case, job, count)
    return known[0][:count], known[1][:count]


def late_codes(case: Case, count: int) -> tuple[list[int], npt.NDArray[np.float32]]:
    """The same where the text arrives a few tokens at a time."""
    if "late" not in case.drawn:
        job = CodeJob(
            case.model.config.llm,
            (),
            prompt_text=case.ids("prompt_text", []),
            prompt_codes=case.ids("prompt_speech", []),
            limits=CodeLimits(most_per_token=_ENDLESS, most=count),
            streaming=True,
            manner=_GREEDY,
        )
        case.drawn["late"] = _run(case, job, count, case.ids("text"))
    return case.drawn["late"]


def _run(
    case: Case, job: CodeJob, count: int, text: list[int] | None = None
) -> tuple[list[int], npt.NDArray[np.float32]]:
    lm = case.model.lm
    lm.prepare()
    inputs = sum(len(case.ids(name, [])) for name in ("text", "prompt_text", "prompt_speech", "flow_prompt_token"))
    cache = SlotCache(lm.config, 1, 2 * (inputs + count) + 64, lm.device, lm.dtype)  # fill marks, too
    decoder = Decoder(lm, cache, case.model.config.sampling)

    def go_on() -> None:
        while not (job.done or job.waits_for_text):
            decoder.advance([job])
        if job.error is not None:
            raise job.error

    for at in range(0, len(text or ()), TEXT_PIECE):
        if not job.done:
            job.add_text((text or [])[at : at + TEXT_PIECE])
            go_on()
    job.end_text()
    go_on()
    decoder.release(job)
    return job.codes[:count], torch.stack(job.scores[:count]).numpy()


def _llm(case: Case, entry: str) -> Iterator[Finding]:
    late = "bistream" in entry
    count = len(case.golden[entry])
    codes, scores = (late_codes if late else greedy_codes)(case, count)
    if entry.endswith("_tokens"):
        yield compare(case, entry, "decoded", codes, EXACT)
    else:
        yield compare(case, entry, "decoded", scores, LOG_CHANCE)


def flow_prompt(case: Case) -> FlowPrompt:
    """The voice as the flow gets it."""
    codes = torch.tensor(case.ids("flow_prompt_token", []), dtype=torch.int64)
    mels, size = case.model.config.flow.mels, case.model.config.flow.speaker_size
    mel = case.tensor("flow_prompt_feat", -1, mels) if len(codes) else torch.zeros(0, mels)
    return FlowPrompt(codes, mel, case.tensor("flow_embedding", size))


def _flow(case: Case, entry: str) -> Iterator[Finding]:
    match = _FLOW_ENTRY.fullmatch(entry)
    assert match is not None
    count, streaming, final = int(match[1]), match[2] == "1", match[3] == "1"
    codes, prompt = torch.tensor(case.ids("flow_token")[:count], dtype=torch.int64), flow_prompt(case)
    mel = case.model.flow.whole(codes, prompt, streaming=streaming, final=final).solve()
    yield compare(case, entry, "at once", mel.T, MEL)
    if streaming:
        yield compare(case, entry, "in hops", hops_of(case, codes, prompt, final).T, MEL)


def hops_of(case: Case, codes: Tensor, prompt: FlowPrompt, final: bool) -> Tensor:
    """The mel of codes, one block after the other with what came before kept."""
    config = case.model.config.flow
    state = case.model.flow.start(case.model.flow.prefix(prompt, None, aligned=True))
    total = len(codes) if final else len(codes) - config.lookahead
    at, parts = 0, []
    while at < total:
        end = min(total, at + config.block - (len(prompt.codes) + at) % config.block)
        if final and len(codes) - end < config.lookahead:
            end = total  # too few are left to look at
        ahead = None if final and end == total else codes[end : end + config.lookahead]
        parts.append(state.hop(codes[at:end], ahead).solve())
        at = end
    return torch.cat(parts)


def _noise(case: Case, entry: str) -> Iterator[Finding]:
    frames = case.golden[entry].shape[-1]
    made = noise(case.model.config.flow.mels, torch.device("cpu"))[:frames]
    yield compare(case, entry, "drawn", made.T, NOISE)


def _mel(case: Case) -> Tensor:
    return case.tensor("hift_mel", 1, case.model.config.vocoder.mels, -1)


def _f0(case: Case, entry: str) -> Iterator[Finding]:
    yield compare(case, entry, "at once", case.model.vocoder.network.f0(_mel(case)), WAVE)


def _source(case: Case, entry: str) -> Iterator[Finding]:
    network = case.model.vocoder.network
    yield compare(case, entry, "at once", network.source(network.predict(_mel(case))), WAVE)


def _wave(case: Case, entry: str) -> Iterator[Finding]:
    network, mel = case.model.vocoder.network, _mel(case)
    yield compare(case, entry, "at once", network.decode(mel, network.source(network.predict(mel))), WAVE)


def _first_chunk(case: Case, entry: str) -> Iterator[Finding]:
    yield compare(case, entry, "a part", _chunk(case, entry)[0], WAVE)


def _chunk(case: Case, entry: str) -> tuple[Tensor, Tensor, int]:
    """Samples and source of a first chunk, and how many frames it was given."""
    network, mel = case.model.vocoder.network, _mel(case)
    frames = case.golden[entry].size // network.samples
    if isinstance(network, Hift):
        return (*network.inference(mel[:, :, :frames]), frames)
    frames += network.f0_predictor.after + network.config.lookahead + 1
    return (*network.inference(mel[:, :, :frames], final=False), frames)


def _second_chunk(case: Case, entry: str) -> Iterator[Finding]:
    network = case.model.vocoder.network
    assert isinstance(network, Hift), "version 3 has no second chunk"
    if "hift_chunk1" not in case.golden:
        raise MissingInput("hift_chunk1")
    _, source, frames = _chunk(case, "hift_chunk1")
    start = frames - OVERLAP
    mel = _mel(case)[:, :, start : start + case.golden[entry].size // network.samples]
    kept = source[:, :, -OVERLAP * network.samples :]
    yield compare(case, entry, "a part", network.inference(mel, kept)[0], WAVE)


Check = Callable[[Case, str], Iterator[Finding]]
CHECKS: Final[tuple[tuple[re.Pattern[str], Check], ...]] = (
    (re.compile(r"llm_(bistream_)?(tokens|logp)"), _llm),
    (re.compile(r"rand_noise_head"), _noise),
    (_FLOW_ENTRY, _flow),
    (re.compile(r"hift_f0"), _f0),
    (re.compile(r"hift_source"), _source),
    (re.compile(r"hift_wav"), _wave),
    (re.compile(r"hift_chunk1"), _first_chunk),
    (re.compile(r"hift_chunk2"), _second_chunk),
)
"""What computes which entries, in the order of a table."""
