"""How many connections each gateway has, in memory that they share: whose turn it is to accept the next one.

All gateways wait on the same listening sockets. Left to the kernel, whoever wakes up first gets the connection, which
is nearly always the same one (measured: 187 of 200). So each looks here first and leaves it to those who have less. The
numbers are hints: nothing breaks where one is a moment old.
"""

import mmap
import os
import tempfile
from typing import Final

_ABSENT: Final = 2**32 - 1
_BYTES: Final = 4


class Loads:
    """One number for each gateway."""

    def __init__(self, descriptor: int, gateways: int) -> None:
        """`descriptor`: of the file that `make_file` gave; it may be closed afterwards."""
        self._map = mmap.mmap(descriptor, gateways * _BYTES)
        self._counts = memoryview(self._map).cast("I")

    @staticmethod
    def make_file(gateways: int) -> int:
        """A descriptor of the memory for so many gateways, none of which is there yet."""
        with tempfile.TemporaryFile() as file:
            file.write(_ABSENT.to_bytes(_BYTES) * gateways)
            file.flush()
            return os.dup(file.fileno())

    def set(self, index: int, connections: int) -> None:
        """The gateway in this place (from 1) serves, and has so many."""
        self._counts[index - 1] = connections

    def clear(self, index: int) -> None:
        """It serves no more."""
        self._counts[index - 1] = _ABSENT

    def has_least(self, index: int) -> bool:
        """Whether no other gateway has less than this one."""
        return self._counts[index - 1] <= min(self._counts)

    def others_serve(self, index: int) -> bool:
        """Whether any other one serves."""
        return any(count != _ABSENT for place, count in enumerate(self._counts, 1) if place != index)
