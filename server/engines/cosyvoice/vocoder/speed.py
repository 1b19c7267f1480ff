"""Speed: a mel stretched or squeezed in time, as its frames come."""

from math import ceil, isfinite

import torch
from torch import Tensor


class MelSpeed:
    """Linear interpolation of an utterance's frames: of `n` frames all together `int(n / speed)`.

    Frame `i` is read at `speed (i + 1/2) - 1/2`, as `torch.nn.functional.interpolate` does it with `scale_factor =
    1 / speed`. With `size = int(n / speed)`, as upstream calls it, it stretches by `n / size` instead, which nobody
    knows before the end; both are the same where `n / speed` is whole, and less than `speed` frames apart at the end
    elsewhere.
    """

    def __init__(self, speed: float) -> None:
        """`speed` 2.0 is twice as fast. ValueError: not a positive number."""
        if not (isfinite(speed) and speed > 0):
            raise ValueError(f"speed must be a number above 0, not {speed}")
        self.speed = speed
        self._rest: Tensor | None = None  # frames from number `_at` on that are still needed
        self._at = 0
        self._made = 0

    @torch.inference_mode()
    def push(self, mel: Tensor, last: bool) -> Tensor:
        """`mel`: the next frames `[n, mels]`. Returns those that are certain by now, `[m, mels]`."""
        if self.speed == 1.0:
            return mel
        mel = mel if self._rest is None else torch.cat([self._rest, mel])
        known = self._at + mel.shape[0]
        count = int(known / self.speed)
        if not last:
            # Both frames that one is made of must be there.
            count = min(count, max(0, ceil((known - 0.5) / self.speed - 0.5)))
        if count <= self._made:
            self._rest = mel
            return mel[:0]
        numbers = torch.arange(self._made, count, device=mel.device, dtype=torch.float64)
        places = ((numbers + 0.5) * self.speed - 0.5).clamp_(min=0)
        left = places.floor()
        share = (places - left).to(mel.dtype)[:, None]
        index = left.long() - self._at
        result = torch.lerp(mel[index], mel[(index + 1).clamp_(max=mel.shape[0] - 1)], share)
        self._made = count
        oldest = min(max(0, int((count + 0.5) * self.speed - 0.5)), known)
        self._rest, self._at = mel[oldest - self._at :].clone(), oldest
        return result
