"""The look-ahead layer. In CosyVoice 3 it is all that stands between the codes' embedding and the estimator."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engines.cosyvoice.flow.blocks import FlowCache, behind_tails


class LookaheadLayer(nn.Module):
    """A convolution over each code and the three after it, then one over that and the two before it."""

    def __init__(self, inputs: int, channels: int, ahead: int) -> None:
        super().__init__()
        self.ahead = ahead
        self.conv1 = nn.Conv1d(inputs, channels, ahead + 1)
        self.conv2 = nn.Conv1d(channels, inputs, 3)

    def mixed(self, codes: Tensor, ahead: Tensor | None, cache: FlowCache | None) -> Tensor:
        """`codes` `[n, size]`, `ahead` `[3, size]` or None (nothing follows); returns `[n, size]`."""
        x = codes.T[None]
        x = functional.pad(x, (0, self.ahead)) if ahead is None else torch.cat([x, ahead.T[None]], 2)
        x = functional.leaky_relu(self.conv1(x))
        x = behind_tails(x, None if cache is None else [cache], "lookahead", 2, [len(codes)])
        return cast(Tensor, self.conv2(x))[0].T + codes


class LookaheadEncoder:
    """The layer as CosyVoice 3's encoder: each code's two frames are the same. What it keeps does not grow."""

    def __init__(self, layer: LookaheadLayer, frames_per_code: int) -> None:
        self._layer = layer
        self._frames_per_code = frames_per_code

    def new_cache(self, history: int | None) -> FlowCache:
        """See `Encoder`."""
        return FlowCache(())

    def encode(self, codes: Tensor, ahead: Tensor | None, blocks: Sequence[int], cache: FlowCache | None) -> Tensor:
        """See `Encoder`; blocks do not matter to it."""
        return self._layer.mixed(codes, ahead, cache).repeat_interleave(self._frames_per_code, 0)
