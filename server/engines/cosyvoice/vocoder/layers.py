"""What both vocoders are built of: convolutions, the snake activation, residual blocks, and the memory of convolutions.

Everything is built without initial weights: they come from a checkpoint. What is derived of weights once, so that no
call does it again, is forgotten when weights are loaded or moved.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

T = TypeVar("T")


class Derived(nn.Module, Generic[T]):
    """A module that keeps what follows from its weights: `derive` makes it, `derived` gives it."""

    def __init__(self) -> None:
        super().__init__()
        self._derived: T | None = None

    def derive(self) -> T:
        """What follows from the weights."""
        raise NotImplementedError

    @property
    def derived(self) -> T:
        """The same, made at most once for the weights as they are."""
        if self._derived is None:
            self._derived = self.derive()
        return self._derived

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._derived = None
        return cast(Self, super()._apply(fn, recurse))  # type: ignore[no-untyped-call]  # torch has no types for it

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        self._derived = None
        super()._load_from_state_dict(*args, **options)


def weights(*shape: int) -> nn.Parameter:
    """An uninitialised parameter without a gradient."""
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


class Exact(nn.Module):
    """A module whose weights stay in fp32 when the model is cast to a shorter type."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            shorter = moved.dtype in (torch.float16, torch.bfloat16) and tensor.dtype == torch.float32
            return tensor.to(moved.device) if shorter else moved

        return cast(Self, super()._apply(keep, recurse))  # type: ignore[no-untyped-call]  # torch has no types for it


class Conv(nn.Module):
    """A one-dimensional convolution over `[B, channels, n]`; `padding` zeros go on both sides."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1, padding: int = 0
    ) -> None:
        super().__init__()
        self.weight, self.bias = weights(outputs, inputs, kernel), weights(outputs)
        self.stride, self.dilation, self.padding = stride, dilation, padding

    @property
    def reach(self) -> int:
        """How many samples lie between the first and the last that one output is made of."""
        return (self.weight.shape[2] - 1) * self.dilation

    def forward(self, x: Tensor) -> Tensor:
        """`[B, inputs, n]` to `[B, outputs, (n + 2 padding - reach - 1) // stride + 1]`."""
        return functional.conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)


class Tails:
    """What the convolutions of a causal network must see of what came before: one row of numbers for each session.

    The network asks for it in always the same order; what the next call needs is gathered in `after`.
    """

    def __init__(self, before: Tensor) -> None:
        """`before` is `[B, size]`: zeros at the start."""
        self._before, self.after, self._at = before, torch.empty_like(before), 0

    def room(self, channels: int, tail: int, length: int) -> Tensor:
        """A buffer `[B, channels, tail + length]` that begins with the tail; fill the rest, then `keep` it."""
        batch = self._before.shape[0]
        buffer = self._before.new_empty(batch, channels, tail + length)
        size = channels * tail
        buffer[:, :, :tail] = self._before[:, self._at : self._at + size].view(batch, channels, tail)
        return buffer

    def keep(self, buffer: Tensor, tail: int) -> None:
        """Keep the last `tail` samples of a buffer that is full now."""
        batch, channels, length = buffer.shape
        size = channels * tail
        self.after[:, self._at : self._at + size].view(batch, channels, tail).copy_(buffer[:, :, length - tail :])
        self._at += size

    def extend(self, x: Tensor, tail: int) -> Tensor:
        """`x` with the tail before it."""
        buffer = self.room(x.shape[1], tail, x.shape[2])
        buffer[:, :, tail:] = x
        self.keep(buffer, tail)
        return buffer


class Snake(Derived[tuple[Tensor, Tensor]]):
    """`x + sin(alpha x)^2 / alpha`, an `alpha` for each channel (Ziyin et al. 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = weights(channels)

    def derive(self) -> tuple[Tensor, Tensor]:
        """`alpha` and its inverse, `[channels, 1]` each."""
        alpha = self.alpha[:, None]
        return alpha, 1 / (alpha + 1e-9)

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """`[B, channels, n]`, into `out` if given."""
        alpha, inverse = self.derived
        wave = torch.mul(x, alpha) if out is None else torch.mul(x, alpha, out=out)
        wave.sin_().square_()
        return torch.addcmul(x, wave, inverse, out=wave)


class ResBlock(nn.Module):
    """Pairs of dilated and plain convolutions, each added to its input; sees `radius` samples to either side, or, if
    causal, twice as many before.
    """

    def __init__(self, channels: int, kernel: int, dilations: Sequence[int], *, causal: bool) -> None:
        super().__init__()

        def conv(dilation: int) -> Conv:
            reach = (kernel - 1) * dilation
            return Conv(channels, channels, kernel, dilation=dilation, padding=0 if causal else reach // 2)

        self.convs1 = nn.ModuleList(conv(dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(conv(1) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.channels, self.radius = channels, sum((kernel - 1) * (dilation + 1) // 2 for dilation in dilations)

    @property
    def tail(self) -> int:
        """Numbers it keeps in `Tails`."""
        return self.channels * 2 * self.radius

    def forward(self, x: Tensor, tails: Tails | None = None) -> Tensor:
        """`[B, channels, n]` to the same shape. With `tails` it is causal."""
        for snake1, conv1, snake2, conv2 in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            hidden = _convolve(snake2, conv2, _convolve(snake1, conv1, x, tails), tails)
            x = hidden.add_(x)
        return x


def _convolve(snake: nn.Module, conv: nn.Module, x: Tensor, tails: Tails | None) -> Tensor:
    assert isinstance(conv, Conv)
    result: Tensor
    if tails is None:
        result = conv(snake(x))
        return result
    # The activation writes where the convolution reads: no copy of its own for the tail.
    buffer = tails.room(x.shape[1], conv.reach, x.shape[2])
    snake(x, buffer[:, :, conv.reach :])
    tails.keep(buffer, conv.reach)
    result = conv(buffer)
    return result
