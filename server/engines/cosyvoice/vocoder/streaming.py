"""The vocoder as the engine uses it: a whole mel, or frames as they come, many sessions at a time."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor

from server.engines.cosyvoice.config import VocoderConfig
from server.engines.cosyvoice.vocoder.causal import CausalHift
from server.engines.cosyvoice.vocoder.hift import Hift
from server.engines.cosyvoice.vocoder.stream_causal import CausalState, CausalStream
from server.engines.cosyvoice.vocoder.stream_windows import WindowState, WindowStream

PIECE = 500
"""Frames of a whole mel that are worked out in one go, so that the memory for it has a bound."""

VocoderState: TypeAlias = WindowState | CausalState
"""One utterance's place in the vocoder; made by `Vocoder.start`, `.bytes` is what it holds."""


def make_network(config: VocoderConfig) -> Hift | CausalHift:
    """The network of a version, without weights."""
    return Hift(config) if config.version == 2 else CausalHift(config)


class _Stream(Protocol):
    held_back: int

    def start(self, seed: int, patient: bool) -> VocoderState: ...

    def push(self, states: list[VocoderState], mel: Tensor, last: bool) -> list[Tensor]: ...


class Vocoder:
    """Mel `[frames, 80]` to samples, fp32, 480 a frame. Results are inference tensors on the model's device.

    An utterance's noise is a function of its seed and of a frame's number alone, and rows of a batch do not touch each
    other: neither the way its frames were cut nor what was packed with them makes a difference, but for rounding (1e-4;
    version 2 looks ahead further than it waits: see `WindowStream`).
    """

    def __init__(self, network: Hift | CausalHift) -> None:
        self.network = network
        stream = WindowStream(network) if isinstance(network, Hift) else CausalStream(network)
        self._stream = cast(_Stream, stream)  # its states are the ones that it started

    @property
    def held_back(self) -> int:
        """Frames at the end of what was pushed that no samples come of yet; the last one only in part in version 3."""
        return self._stream.held_back

    @torch.inference_mode()
    def whole(self, mel: Tensor, seed: int) -> Tensor:
        """All samples `[480 * frames]` of a whole mel `[frames, mels]`."""
        state, pieces = self.start(seed, patient=True), []
        for begin in range(0, max(1, mel.shape[0]), PIECE):
            end = begin + PIECE
            pieces.append(self.push(state, mel[begin:end], end >= mel.shape[0]))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def start(self, seed: int, *, patient: bool = False) -> VocoderState:
        """An utterance of which no frame is known yet. `seed`: any integer; its low 64 bits count. `patient`: nobody
        waits for the first samples; version 2 then holds more frames back (about 30), and is exact, too.
        """
        return self._stream.start(seed, patient)

    def push(self, state: VocoderState, mel: Tensor, last: bool) -> Tensor:
        """The samples that are final by now, `[m]`, m may be 0; all together 480 for each frame. Nothing may be pushed
        after `last`: ValueError.
        """
        return self.push_many([(state, mel, last)])[0]

    @torch.inference_mode()
    def push_many(self, items: Sequence[tuple[VocoderState, Tensor, bool]]) -> list[Tensor]:
        """The same for several utterances, those of equal lengths in one go. No state may be in it twice."""
        mels = self.network.config.mels
        groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, (state, mel, last) in enumerate(items):
            if state.ended:
                raise ValueError("the vocoder was given frames after the last ones of an utterance")
            if mel.ndim != 2 or mel.shape[1] != mels:
                raise ValueError(f"a mel must be [frames, {mels}], not {list(mel.shape)}")
            groups[(*state.shape, mel.shape[0], last)].append(number)
        results: dict[int, Tensor] = {}
        for numbers in groups.values():
            mel = torch.stack([items[number][1] for number in numbers]).transpose(1, 2).float()
            last = items[numbers[0]][2]
            samples = self._stream.push([items[number][0] for number in numbers], mel, last)
            results.update(zip(numbers, samples, strict=True))
        return [results[number] for number in range(len(items))]
