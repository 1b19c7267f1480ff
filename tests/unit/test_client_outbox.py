"""What waits to be sent: in order, and of the acks those that still tell something; also in the modelled client."""

from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bench._simulated_client import Client
from bench._simulated_clock import Clock
from client.effects import Send
from client.outbox import Outbox
from protocol import client_messages as c
from protocol import decode_client, encode
from tests.support.client_script import opened

POSTED: tuple[c.ClientMessage, ...] = (
    c.Ack(1, 1, 10), c.Ack(1, 1, 20, 20), c.Ack(1, 2, 0), c.End(1), c.Ack(1, 2, 30),
)  # fmt: skip
SENT = [c.Ack(1, 1, 20, 20), c.End(1), c.Ack(1, 2, 30)]

messages = st.one_of(
    st.builds(c.Ack, st.just(1), st.integers(1, 3), st.integers(0, 9)), st.builds(c.Flush, st.integers(1, 99))
)


def everything(outbox: Outbox) -> list[c.ClientMessage]:
    return list(iter(outbox.next, None))


def test_the_newest_ack_of_each_utterance_is_sent() -> None:
    outbox = Outbox()
    assert outbox.is_empty
    for message in POSTED:
        outbox.post(message)
    assert (outbox.messages, outbox.is_empty) == (2, False)
    assert everything(outbox) == SENT
    assert outbox.is_empty
    outbox.post(POSTED[0])
    outbox.clear()
    assert outbox.is_empty


@given(st.lists(messages, max_size=30))
def test_nothing_but_acks_that_a_newer_one_replaces_is_left_out(posted: list[c.ClientMessage]) -> None:
    outbox = Outbox()
    for message in posted:
        outbox.post(message)
    sent = everything(outbox)
    flushes = [[each for each in some if isinstance(each, c.Flush)] for some in (sent, posted)]
    assert flushes[0] == flushes[1]
    acks = [each for each in posted if isinstance(each, c.Ack)]
    newest = [list(group)[-1] for _, group in groupby(acks, key=lambda ack: ack.utterance)]
    assert [each for each in sent if isinstance(each, c.Ack)] == newest


class Narrow:
    """A connection's end that takes something only when it may."""

    is_open = True
    is_closed = False

    def __init__(self) -> None:
        self.is_writable = True
        self.written: list[c.ClientMessage] = []

    def write(self, message: str | bytes) -> None:
        """See Endpoint."""
        assert self.is_writable
        self.written.append(decode_client(message))

    def abort(self) -> None:
        """See Endpoint."""


def test_the_modelled_client_sends_what_the_real_one_sends() -> None:
    end: Any = Narrow()
    client = Client(Clock(), lambda _: end, c.Open(), started=lambda _: None)
    client.received(end, encode(opened()))
    end.is_writable = False
    client.do([Send(message) for message in POSTED])
    end.is_writable = True
    client.writable(end)
    assert end.written == SENT
