"""Linear layers for inference: several fused along their outputs, with weights laid out for the CPU where that pays."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere with torch
from torch import Tensor

MIN_ROWS: Final = 4  # of a CPU call: below, kernels are chosen that round differently (and are slower)
FAST_TYPES: Final = (torch.float32, torch.bfloat16)


@lru_cache(maxsize=1)
def packing() -> Any | None:
    """oneDNN's operators for packed weights, which torch's own compiler uses; None where this build lacks them or they
    do not compute what they should.
    """
    try:
        ops = torch.ops.mkldnn
        with torch.inference_mode():
            weight, x = torch.linspace(-1, 1, 96).view(6, 16), torch.linspace(0, 2, 80).view(5, 16)
            packed = ops._reorder_linear_weight(weight)
            made = ops._linear_pointwise(x, packed, None, "none", [], "")
            return ops if torch.allclose(made, x @ weight.t(), atol=1e-4) else None
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return None


class FastLinear:
    """`x [..., in]` to `[..., sum of outs]`, as if the layers were called one by one and joined. Keeps its own copy of
    the weights where they are packed; later changes of the originals, or moves, do not reach it.

    On a CPU with oneDNN a row's result does not depend on how many rows are given, as long as they are `MIN_ROWS` or
    more (checked by the LLM's tests).
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None) -> None:
        """`weights[i]` is `[outs[i], in]`, `biases[i]` `[outs[i]]`; None stands for no bias, of all or of one."""
        with torch.inference_mode():
            self._weight = weights[0].detach() if len(weights) == 1 else torch.cat([w.detach() for w in weights])
            self.outs = self._weight.shape[0]
            self._bias = _joined(weights, biases)
            self._packed: Any = None
            ops = packing() if self._weight.device.type == "cpu" and self._weight.dtype in FAST_TYPES else None
            if ops is not None and self._weight.dtype == torch.bfloat16 and not ops._is_mkldnn_bf16_supported():
                ops = None
            if ops is not None:
                self._call = ops._linear_pointwise
                self._packed = ops._reorder_linear_weight(self._weight.contiguous())
                self._weight = self._weight.new_empty(0)  # the packed copy is enough

    def __call__(self, x: Tensor) -> Tensor:
        """See the class."""
        if self._packed is None:
            return F.linear(x, self._weight, self._bias)
        made: Tensor = self._call(x, self._packed, self._bias, "none", [], "")
        return made


def _joined(weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None) -> Tensor | None:
    """One bias for all; zeros where one of several has none."""
    if biases is None or all(bias is None for bias in biases):
        return None
    return torch.cat(
        [w.new_zeros(w.shape[0]) if bias is None else bias.detach() for w, bias in zip(weights, biases, strict=True)]
    )
