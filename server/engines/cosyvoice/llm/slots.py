"""Keys and values of many utterances at once, in one static tensor: an utterance that runs has a slot of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from server.engines.cosyvoice.config import LlmConfig


@dataclass(frozen=True, slots=True, eq=False)
class SavedKv:
    """What a slot held: `[layers, positions, 2, kv_heads, head_dim]` (keys, values), never changed any more."""

    data: Tensor

    @property
    def length(self) -> int:
        """Positions."""
        return self.data.shape[1]

    @property
    def bytes(self) -> int:
        """What it takes."""
        return self.data.numel() * self.data.element_size()


class SlotCache:
    """`data[layer, slot, position, 0 | 1]` are keys and values `[kv_heads, head_dim]`; `lengths[slot]` says how many
    positions of a slot are used. The last row of every slot is never read: what has no place of its own goes there.
    """

    def __init__(
        self, config: LlmConfig, slots: int, length: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        """`length` positions for each of `slots` utterances. Raises ValueError where either is below 1."""
        if slots < 1 or length < 1:
            raise ValueError(f"a cache needs at least 1 slot of 1 position, not {slots} of {length}")
        self.config, self.slots, self.length = config, slots, length
        shape = (config.layers, slots, length + 1, 2, config.kv_heads, config.head_dim)
        self.data = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = [0] * slots
        # The same memory by layer: its rows, slot after slot; keys and values as attention wants them.
        self.rows = [layer.flatten(0, 1) for layer in self.data]
        self.keys, self.values = ([layer[:, :, i].transpose(1, 2) for layer in self.data] for i in (0, 1))
        self._free = set(range(slots))

    @property
    def free_slots(self) -> int:
        """How many can be taken."""
        return len(self._free)

    @property
    def bytes(self) -> int:
        """What it takes, used or not."""
        return self.data.numel() * self.data.element_size()

    def alloc(self) -> int | None:
        """The lowest free slot, empty; None where none is free."""
        if not self._free:
            return None
        slot = min(self._free)
        self._free.remove(slot)
        self.lengths[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back. Raises ValueError where it is free already."""
        if slot in self._free or not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is not in use")
        self._free.add(slot)
        self.lengths[slot] = 0

    def wipe(self, slot: int) -> None:
        """Forget numbers that are none: whoever gets the slot next may compute with what it does not use."""
        with torch.inference_mode():
            self.data[:, slot].zero_()

    def save(self, slot: int, device: torch.device | str | None = None) -> SavedKv:
        """A copy of what the slot holds, on `device` (None: where the cache is)."""
        with torch.inference_mode():
            used = self.data[:, slot, : self.lengths[slot]]
            return SavedKv(used.to(device, copy=True) if device is not None else used.clone())

    def load(self, slot: int, saved: SavedKv) -> None:
        """Put a copy of what was saved into a slot; what it held is gone."""
        if saved.length > self.length:
            raise ValueError(f"{saved.length} positions do not fit into a slot of {self.length}")
        with torch.inference_mode():
            self.data[:, slot, : saved.length].copy_(saved.data)
        self.lengths[slot] = saved.length
