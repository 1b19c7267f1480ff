"""8-bit weights for the language model's body on a CPU: a quarter of the memory to read, which is what decoding costs.

Weights are scaled per output, inputs per row while computing. Log-probabilities move by a few hundredths; the speech is
another one than that of the full weights, though as good a sample.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from server.engines.base import EngineError
from server.engines.cosyvoice.llm.speech_lm import SpeechLm

_LEVELS = 127.0


class Int8Linear:
    """As `FastLinear`, for `x` `[rows, in]` in fp32. A row's result does not depend on the other rows."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None) -> None:
        """Raises EngineError where this torch or this CPU cannot do it."""
        weight = torch.cat([each.detach() for each in weights])
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise EngineError("quantise: int8 needs the CPU and precision fp32")
        self._bias: Tensor | None = None
        if biases is not None and any(bias is not None for bias in biases):
            pairs = zip(weights, biases, strict=True)
            self._bias = torch.cat([w.new_zeros(w.shape[0]) if b is None else b.detach() for w, b in pairs])
        # The kernels take one scale for all rows, from their least and greatest number: rows are scaled to 1 before,
        # and one more row sees to it that these are always -1 and 1.
        self._ends = torch.zeros(1, weight.shape[1])
        self._ends[0, :2] = torch.tensor([1.0, -1.0])
        self._packed, self._run = _pack(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """See the class. Rows with numbers that are none stay such."""
        top = x.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-12)
        scaled = torch.cat(((x / top).nan_to_num_(0.0), self._ends))
        made: Tensor = self._run(scaled, self._packed, True)[:-1].mul_(top)
        return made if self._bias is None else made.add_(self._bias)


def prepare_int8(lm: SpeechLm) -> None:
    """In place of `lm.prepare()`. Raises EngineError, one line, where it cannot be done."""
    lm.prepare(Int8Linear)


def _pack(weight: Tensor) -> tuple[Any, Any]:
    """The packed weight, and the operator that takes it."""
    scale = weight.abs().amax(dim=1).clamp_(min=1e-12).double() / _LEVELS
    zeros = torch.zeros(weight.shape[0], dtype=torch.int64)
    try:
        with warnings.catch_warnings(action="ignore"):  # newer versions of torch announce that they will drop this
            quantised = torch.quantize_per_channel(weight, scale, zeros, 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(quantised, None), torch.ops.quantized.linear_dynamic
    except (AttributeError, RuntimeError, NotImplementedError):
        raise EngineError("quantise: int8 is not possible with this version of torch on this CPU") from None
