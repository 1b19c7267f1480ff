"""Frames on their way from noise to mel, one step of the solver at a time, several segments in one call."""

from collections.abc import Sequence
from functools import lru_cache
from math import pi

import torch
from torch import Tensor
from torch.nn import functional

from server.engines.cosyvoice.config import FlowConfig
from server.engines.cosyvoice.flow.base import Estimator
from server.engines.cosyvoice.flow.blocks import FlowCache

LIMIT_S = 300  # of the noise that the models were trained to start from
CODES_PER_SECOND = 25
PADDED_TO = 64  # frames: passes of lengths that round up to the same multiple join


class FlowPass:
    """Frames that are being made: those of `mu`, of which the first `skip` belong to the prompt. `position` is their
    place and `blocks` their blocks, in codes; `prompt_mel` is what is known of the first of them.
    """

    def __init__(
        self, estimator: Estimator, config: FlowConfig, mu: Tensor, speaker: Tensor, prompt_mel: Tensor,
        position: int, blocks: Sequence[int], caches: Sequence[FlowCache] | None, *, skip: int,
    ) -> None:  # fmt: skip
        check_length(position + sum(blocks))
        self.estimator = estimator
        self.config = config
        self.frames, mels = mu.shape
        self.blocks = [config.frames_per_code * block for block in blocks]
        self.caches = caches
        first = config.frames_per_code * position
        self.x = noise(mels, mu.device)[first : first + self.frames]  # float32: steps add up in it
        self.mu = mu.new_zeros(2, self.frames, mels)
        self.mu[0] = mu
        self.condition = mu.new_zeros(2, self.frames, mels)
        known = min(self.frames, len(prompt_mel))
        self.condition[0, :known] = prompt_mel[:known]
        self.speaker = torch.stack([speaker, torch.zeros_like(speaker)])
        self.at = 0
        self._skip = skip

    @property
    def done(self) -> bool:
        """Whether all steps are made."""
        return self.at == self.config.steps

    @property
    def mel(self) -> Tensor:
        """`[frames, 80]` float32, without the prompt's; RuntimeError before it is done."""
        if not self.done:
            raise RuntimeError(f"{self.at} of {self.config.steps} steps are made")
        return self.x[self._skip :]

    def step(self) -> bool:
        """One step of the solver; True when all are made."""
        step_passes([self])
        return self.done

    def solve(self) -> Tensor:
        """All steps that are left; the mel."""
        while not self.done:
            self.step()
        return self.mel


@torch.inference_mode()
def step_passes(passes: Sequence[FlowPass], *, pad: bool | None = None) -> None:
    """One step of the solver for each of them (of one or several models, at any of their steps; done ones are left
    alone). Those of equal length are computed in one call. `pad`: shorter ones are padded to join; None: on a GPU,
    where calls are dearer than frames.
    """
    groups: dict[tuple[int, bool, int], list[FlowPass]] = {}
    for item in passes:
        if not item.done:
            padded = item.x.device.type != "cpu" if pad is None else pad
            length = -(-item.frames // PADDED_TO) * PADDED_TO if padded else item.frames
            groups.setdefault((id(item.estimator), item.caches is None, length), []).append(item)
    for group in groups.values():
        _step(group)


def _step(group: list[FlowPass]) -> None:
    config = group[0].config
    times, widths = schedule(config.steps)
    longest = max(item.frames for item in group)
    dtype = group[0].mu.dtype
    caches = [item.caches[item.at] for item in group if item.caches is not None]
    velocity = (
        group[0]
        .estimator.velocity(
            _rows([item.x.to(dtype).expand(2, -1, -1) for item in group], longest),
            _rows([item.mu for item in group], longest),
            [times[item.at] for item in group],
            torch.cat([item.speaker for item in group]),
            _rows([item.condition for item in group], longest),
            [item.blocks for item in group],
            caches or None,
        )
        .float()
    )
    guidance = config.guidance
    for number, item in enumerate(group):
        with_voice, without = velocity[2 * number : 2 * number + 2, : item.frames]
        item.x = item.x + widths[item.at] * ((1.0 + guidance) * with_voice - guidance * without)
        item.at += 1


def _rows(parts: list[Tensor], longest: int) -> Tensor:
    """Joined along the rows, padded to `longest` frames."""
    padded = [functional.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts]
    return padded[0] if len(padded) == 1 else torch.cat(padded)


@lru_cache(maxsize=8)
def schedule(steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Where each step starts, and how far it goes; in float32, added up as the models' authors do."""
    span = 1 - torch.cos(torch.linspace(0, 1, steps + 1, dtype=torch.float32) * 0.5 * pi)
    now, width = span[0], span[1] - span[0]
    times, widths = [], []
    for step in range(1, steps + 1):
        times.append(float(now))
        widths.append(float(width))
        now = now + width
        if step < steps:
            width = span[step + 1] - now
    return tuple(times), tuple(widths)


@lru_cache(maxsize=8)
def noise(mels: int, device: torch.device) -> Tensor:
    """What every segment starts from, `[15000, mels]` float32: the models know no other."""
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn([1, mels, 2 * CODES_PER_SECOND * LIMIT_S], generator=generator)
        return drawn[0].T.contiguous().to(device)


def check_length(codes: int) -> None:
    if codes > CODES_PER_SECOND * LIMIT_S:
        seconds = codes / CODES_PER_SECOND
        raise ValueError(f"codes: {seconds:.1f} s of speech with the voice's prompt; allowed: {LIMIT_S} s in a segment")
