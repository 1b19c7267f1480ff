"""Whole utterances, cut into chunks as the original code cuts them.

It waits for 25 codes and the three that are looked ahead at, more where the voice's prompt ends within a block, doubles
that with every chunk up to 100, and makes the mel of everything again each time. For its last chunk everything is one
block, unlike before. Version 2 speaks the last 8 frames of a chunk again in the next one and fades over; version 3
makes the sound of everything again, too.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from server.engines.cosyvoice.llm.watching import SilentRuns, silent_codes
from server.engines.cosyvoice.parity.checks import OVERLAP, flow_prompt, greedy_codes
from server.engines.cosyvoice.parity.findings import EXACT, WAVE, Case, Finding, compare
from server.engines.cosyvoice.vocoder.causal import CausalHift
from server.engines.cosyvoice.vocoder.hift import Hift

MOST_BLOCKS: Final = 4  # that a chunk grows to
MOST_DRAWN: Final = 8  # times as many codes as are kept, before it is clear that only silence follows
_STARTS: Final = (1, 2, 4)  # blocks: the size is kept on the shared model, so a later request starts with more


def chunks_of(total: int, prompt: int, block: int, lookahead: int, start: int = 1) -> list[int]:
    """How many codes each chunk but the last has, of `total` ones behind a prompt of `prompt`."""
    size, chunks, at = start * block, list[int](), 0
    due = size + -prompt % size
    while total - at >= due + lookahead:
        chunks.append(due)
        at += due
        due = size = min(MOST_BLOCKS * block, 2 * size)
    return chunks


def streamed(case: Case, entry: str) -> Iterator[Finding]:
    """`e2e_stream`: what comes before the last chunk with the mel made at once and in hops; the last chunk as
    upstream makes it, in one block.
    """
    frames = case.golden["e2e_stream"].size // case.model.vocoder.network.samples
    codes = _codes(case, frames)
    chunks = _chunks(case, len(codes))
    for how, mel in (("at once", _mel_again), ("in hops", _mel_in_hops)):
        pieces = _speak(case, mel(case, codes, chunks))
        before = slice(0, sum(map(len, pieces[:-1])))
        whole = torch.cat(pieces)
        if before.stop:
            yield compare(case, entry, f"{how}, before the last chunk", whole, WAVE, before)
        if how == "at once":
            yield compare(case, entry, "last chunk", whole, WAVE, slice(before.stop, None))


def lengths(case: Case, entry: str) -> Iterator[Finding]:
    """`e2e_stream_lens`: samples of each chunk."""
    frames = int(case.golden[entry].sum()) // case.model.vocoder.network.samples
    codes = _codes(case, frames)
    pieces = _speak(case, _mel_again(case, codes, _chunks(case, len(codes))))
    yield compare(case, entry, "driven", [len(piece) for piece in pieces], EXACT)


def offline(case: Case, entry: str) -> Iterator[Finding]:
    """`e2e_offline`: all at once."""
    codes = _codes(case, case.golden[entry].size // case.model.vocoder.network.samples)
    mel = case.model.flow.whole(codes, flow_prompt(case), streaming=False, final=True).solve()
    yield compare(case, entry, "driven", torch.cat(_speak(case, iter([(mel, True)]))), WAVE)


def _codes(case: Case, frames: int) -> Tensor:
    """As many codes as have these frames; of silent ones in a row version 3 keeps five and leaves out the rest."""
    count = frames // case.model.config.flow.frames_per_code
    silent = silent_codes(3) if case.model.config.version == 3 else frozenset[int]()
    drawn = count
    while True:
        kept = SilentRuns(silent).heard(greedy_codes(case, drawn, "flow_prompt_token")[0])
        if len(kept) >= count or drawn >= MOST_DRAWN * count:
            return torch.tensor(kept[:count], dtype=torch.int64)
        drawn = min(2 * drawn, MOST_DRAWN * count)


def _chunks(case: Case, total: int) -> list[int]:
    """As the lengths tell where they fit one of the sizes that upstream may have started with."""
    config, network = case.model.config.flow, case.model.vocoder.network
    prompt = len(case.ids("flow_prompt_token", []))
    plans = [chunks_of(total, prompt, config.block, config.lookahead, start) for start in _STARTS]
    if "e2e_stream_lens" in case.golden:
        told = case.ids("e2e_stream_lens")
        per_code = config.frames_per_code * network.samples
        for plan in plans:
            expected = [per_code * count for count in (*plan, total - sum(plan))]
            if plan:
                held = OVERLAP * network.samples
                expected = [expected[0] - held, *expected[1:-1], expected[-1] + held]
            if expected == told:
                return plan
    return plans[0]


def _mel_again(case: Case, codes: Tensor, chunks: list[int]) -> Iterator[tuple[Tensor, bool]]:
    """The new frames of each chunk `[frames, mels]`, and whether it is the last one; all is solved again each time."""
    config, prompt, at = case.model.config.flow, flow_prompt(case), 0
    for count in chunks:
        seen = codes[: at + count + config.lookahead]
        mel = case.model.flow.whole(seen, prompt, streaming=True, final=False).solve()
        yield mel[config.frames_per_code * at :], False
        at += count
    mel = case.model.flow.whole(codes, prompt, streaming=False, final=True).solve()
    yield mel[config.frames_per_code * at :], True


def _mel_in_hops(case: Case, codes: Tensor, chunks: list[int]) -> Iterator[tuple[Tensor, bool]]:
    """The same, with what came before kept; the last chunk is in blocks as all others."""
    config, at = case.model.config.flow, 0
    state = case.model.flow.start(case.model.flow.prefix(flow_prompt(case), None, aligned=True))
    for count in chunks:
        end = at + count
        yield state.hop(codes[at:end], codes[end : end + config.lookahead]).solve(), False
        at = end
    yield state.hop(codes[at:], None).solve(), True


def _speak(case: Case, mels: Iterator[tuple[Tensor, bool]]) -> list[Tensor]:
    """Samples of each chunk."""
    network = case.model.vocoder.network
    speak: Callable[[Tensor, bool], Tensor] = (
        _Fading(network).speak if isinstance(network, Hift) else _Growing(network).speak
    )
    return [speak(mel.T[None], last) for mel, last in mels]


class _Fading:
    """Version 2: the end of each chunk is spoken again with the next one."""

    def __init__(self, network: Hift) -> None:
        self._network = network
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None  # mel, source and samples of the overlap

    def speak(self, mel: Tensor, last: bool) -> Tensor:
        count = OVERLAP * self._network.samples
        if self._kept is None:
            samples, source = self._network.inference(mel)
        else:
            mel = torch.cat([self._kept[0], mel], 2)
            samples, source = self._network.inference(mel, self._kept[1])
            window = torch.from_numpy(np.hamming(2 * count))
            samples = samples.clone()
            samples[:, :count] = samples[:, :count] * window[:count] + self._kept[2] * window[count:]
        if last:
            return samples[0]
        self._kept = mel[:, :, -OVERLAP:], source[:, :, -count:], samples[:, -count:]
        return samples[0, :-count]


class _Growing:
    """Version 3: everything is spoken again, what has been given out is left away."""

    def __init__(self, network: CausalHift) -> None:
        self._network = network
        self._mels: list[Tensor] = []
        self._given = 0

    def speak(self, mel: Tensor, last: bool) -> Tensor:
        self._mels.append(mel)
        samples, _ = self._network.inference(torch.cat(self._mels, 2), final=last)
        fresh = samples[0, self._given :]
        self._given += len(fresh)
        return fresh
