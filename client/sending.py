"""A session's numbered messages: sequence numbers, the window for text, what the server has not yet taken. Pure."""

import dataclasses
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

from client.errors import ServerMisbehaved
from protocol.client_messages import Numbered, Silence, Start, Text
from protocol.server_messages import SeqAck

N = TypeVar("N", bound=Numbered)
SILENCE_CHARS: Final = 1  # what a `silence` takes of the window (docs/protocol.md, "Text and room")


class SendWindow:
    """Numbers messages from 1 and counts how much text may still be sent.

    `room`: characters; a silence takes one. `unacked`: messages that the server has not confirmed, oldest first; a
    resume sends them again.
    """

    def __init__(self, window_chars: int) -> None:
        self.seq = 0
        self.acked = 0
        self.unacked: deque[Numbered] = deque()
        self._granted = window_chars
        self._flying = 0

    def go_on(self, seq: int) -> None:
        """Another process sent the messages up to here, and the server has them."""
        self.seq = self.acked = seq

    @property
    def room(self) -> int:
        """Characters that may be sent now."""
        return max(0, self._granted - self._flying)

    def number(self, message: N) -> N:
        """The message with its sequence number; `message.seq` is ignored. It must fit in `room` (ValueError)."""
        characters = _characters(message)
        if characters > self.room:
            raise ValueError(f"{characters} characters do not fit in a window of {self.room}")
        self._flying += characters
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
            self._flying -= _characters(self.unacked.popleft())
        self.acked = message.seq
        self._granted = message.room


class Backlog:
    """Messages of utterances that another session goes on with, until that one has room for them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Numbered]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, utterance: int, messages: Iterable[Numbered]) -> None:
        """To be sent after all others."""
        self._waiting.extend((utterance, message) for message in messages)

    def drop(self, utterance: int) -> bool:
        """It was cancelled. Returns whether the server has heard nothing of it yet."""
        gone = [message for number, message in self._waiting if number == utterance]
        self._waiting = deque(item for item in self._waiting if item[0] != utterance)
        return any(isinstance(message, Start) for message in gone)

    def take(self, window: SendWindow) -> list[Numbered]:
        """What fits, numbered."""
        taken: list[Numbered] = []
        while self._waiting:
            utterance, message = self._waiting.popleft()
            room = window.room
            if _characters(message) > room:
                if isinstance(message, Text) and room:
                    taken.append(window.number(Text(0, message.text[:room])))
                    message = Text(0, message.text[room:])
                self._waiting.appendleft((utterance, message))
                break
            taken.append(window.number(message))
        return taken


def _characters(message: Numbered) -> int:
    """What a message takes of the window."""
    match message:
        case Text():
            return len(message.text)
        case Silence():
            return SILENCE_CHARS
        case _:
            return 0
