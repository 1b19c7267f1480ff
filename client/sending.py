"""A session's numbered messages: sequence numbers, the window for text, what the server has not yet taken. Pure."""

import dataclasses
from collections import deque
from typing import TypeVar

from client.errors import ServerMisbehaved
from protocol.client_messages import Numbered, Text
from protocol.server_messages import SeqAck

N = TypeVar("N", bound=Numbered)


class SendWindow:
    """Numbers messages from 1 and counts how much text may still be sent.

    `room`: characters. `unacked`: messages that the server has not confirmed, oldest first; a resume sends them again.
    """

    def __init__(self, window_chars: int) -> None:
        self.seq = 0
        self.acked = 0
        self.unacked: deque[Numbered] = deque()
        self._granted = window_chars
        self._flying = 0

    @property
    def room(self) -> int:
        """Characters of text that may be sent now."""
        return max(0, self._granted - self._flying)

    def number(self, message: N) -> N:
        """The message with its sequence number; `message.seq` is ignored. Text must fit in `room` (ValueError)."""
        if isinstance(message, Text):
            if len(message.text) > self.room:
                raise ValueError(f"{len(message.text)} characters do not fit in a window of {self.room}")
            self._flying += len(message.text)
        self.seq += 1
        numbered = dataclasses.replace(message, seq=self.seq)
        self.unacked.append(numbered)
        return numbered

    def ack(self, message: SeqAck) -> None:
        """Takes the server's word on what it has and how much more it takes. Raises ServerMisbehaved."""
        if message.seq > self.seq:
            raise ServerMisbehaved(f"the server acks message {message.seq}, but only {self.seq} were sent")
        if message.seq < self.acked:
            return  # a late repeat: the newer word stands
        while self.unacked and self.unacked[0].seq <= message.seq:
            gone = self.unacked.popleft()
            if isinstance(gone, Text):
                self._flying -= len(gone.text)
        self.acked = message.seq
        self._granted = message.room
