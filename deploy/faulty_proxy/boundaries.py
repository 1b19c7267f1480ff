"""Where the messages of a WebSocket end in its bytes, found as they pass: for faults at exactly such a place. Pure."""

from typing import Final

_HEAD_END: Final = b"\r\n\r\n"
_FINAL_BIT: Final = 0x80
_MASK_BIT: Final = 0x80
_CONTROL_BIT: Final = 0x08
_LONGEST_HEADER: Final = 14  # 2 bytes, 8 of length, 4 of mask


class MessageBoundaries:
    """Follows one direction of a connection from its first byte. Boundary 0 is the end of the HTTP head.

    Boundary k is the end of the k-th data message; a message in fragments ends with its last one, and control frames
    count as part of what follows them. Only the boundary that is waited for is remembered.
    """

    def __init__(self) -> None:
        self.passed = -1  # the last boundary whose place is known
        self.wanted: int | None = None
        self.wanted_end: int | None = None  # where the wanted boundary is, in bytes from the start, once that is known
        self._seen = 0  # bytes
        self._next_frame: int | None = None  # where the next frame begins; None: in the HTTP head
        self._partial = b""  # the end of the head, or a frame's header as far as it is here

    def want(self, boundary: int) -> None:
        """Remember where this boundary is. Raises ValueError for one that has passed."""
        if boundary <= self.passed:
            raise ValueError(f"boundary {boundary} is known no more: {self.passed} was the last")
        self.wanted, self.wanted_end = boundary, None

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        start = self._seen
        self._seen += len(data)
        if self._next_frame is None:
            text = self._partial + data
            place = text.find(_HEAD_END)
            if place < 0:
                self._partial = text[-(len(_HEAD_END) - 1) :]
                return
            self._next_frame = self._seen - len(text) + place + len(_HEAD_END)
            self._partial = b""
            self._reached(self._next_frame)
        while self._next_frame < self._seen:
            at = max(0, self._next_frame + len(self._partial) - start)
            header = self._partial + data[at : at + _LONGEST_HEADER - len(self._partial)]
            size = _frame_size(header)
            if size is None:
                self._partial = header
                return
            self._partial = b""
            self._next_frame += size
            if header[0] & _FINAL_BIT and not header[0] & _CONTROL_BIT:
                self._reached(self._next_frame)

    def _reached(self, end: int) -> None:
        self.passed += 1
        if self.passed == self.wanted:
            self.wanted_end = end


def _frame_size(header: bytes) -> int | None:
    """How long a frame is with its header; None: too little of the header is here."""
    if len(header) < 2:
        return None
    mask = 4 if header[1] & _MASK_BIT else 0
    length = header[1] & 0x7F
    extra = {126: 2, 127: 8}.get(length, 0)
    if len(header) < 2 + extra:
        return None
    if extra:
        length = int.from_bytes(header[2 : 2 + extra], "big")
    return 2 + extra + mask + length
