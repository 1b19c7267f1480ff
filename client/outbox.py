"""What waits to be sent on one connection. Pure."""

from collections import deque

from protocol.client_messages import Ack, ClientMessage


class Outbox:
    """Messages in order; an ack after all of them, because a newer one of the same utterance says more.

    It has no bound of its own: who posts looks at `messages`.
    """

    def __init__(self) -> None:
        self._messages: deque[ClientMessage] = deque()
        self._ack: Ack | None = None

    @property
    def messages(self) -> int:
        """How many wait, besides the newest ack."""
        return len(self._messages)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._messages and self._ack is None

    def post(self, message: ClientMessage) -> None:
        """To be sent. An ack takes the place of one of the same utterance that still waits."""
        if not isinstance(message, Ack):
            self._messages.append(message)
            return
        if self._ack is not None and self._ack.utterance != message.utterance:
            self._messages.append(self._ack)
        self._ack = message

    def next(self) -> ClientMessage | None:
        """Takes out what is to be sent now; None: nothing waits."""
        if self._messages:
            return self._messages.popleft()
        ack, self._ack = self._ack, None
        return ack

    def clear(self) -> None:
        """Nothing is to be sent any more."""
        self._messages.clear()
        self._ack = None
