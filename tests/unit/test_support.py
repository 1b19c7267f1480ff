"""The tools of the tests tell the truth: what a driver acks as played are samples of the timeline, also for Opus."""

from collections import deque

import pytest

from bench._session import Session
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_client, encode
from protocol.frames import AudioFrame
from tests.support.server import BareClient
from tests.support.session_driver import Driver


class Line:
    """The client's end of a connection to a session machine, in memory."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.driver.open(format="opus", max_lead_ms=None)
        self.driver.say(1, "ab")
        self.driver.run(acks=False)
        config = self.driver.session.config
        assert config is not None
        self.pre_skip = config.pre_skip
        self.waiting = deque(
            item.encode(1) if isinstance(item, AudioFrame) else encode(item) for item in self.driver.order
        )
        self.acks: list[c.Ack] = []

    async def recv(self) -> str | bytes:
        return self.waiting.popleft()

    async def send(self, data: str) -> None:
        message = decode_client(data)
        assert isinstance(message, c.Ack)
        self.acks.append(message)

    def check(self) -> None:
        """All that arrived was acked, and as heard what a listener heard of it."""
        (done,) = self.driver.of(s.Done)
        frames = self.driver.frames
        assert frames[-1].end_sample > done.samples + self.pre_skip  # there is padding
        assert [ack.next_sample for ack in self.acks] == [frame.end_sample for frame in frames]
        played = [max(0, frame.end_sample - self.pre_skip) for frame in frames[:-1]]
        assert [ack.played_sample for ack in self.acks] == [*played, done.samples]


async def test_the_bare_client_s_acks() -> None:
    line = Line()
    await BareClient(line).until(s.Done)  # type: ignore[arg-type]  # as much of a socket as it needs
    line.check()


async def test_the_benchmarks_acks() -> None:
    line = Line()
    await Session(line, line.pre_skip).hear()  # type: ignore[arg-type]  # as much of a socket as it needs
    line.check()


def test_the_driver_s_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    acks: list[c.Ack] = []
    driver = Driver()
    send = driver.send

    def listen(message: c.ClientMessage) -> None:
        acks.extend([message] if isinstance(message, c.Ack) else [])
        send(message)

    monkeypatch.setattr(driver, "send", listen)
    driver.open(format="opus", max_lead_ms=None)
    driver.say(1, "ab")
    driver.run()
    (done,) = driver.of(s.Done)
    assert driver.frames[-1].end_sample > done.samples
    assert max(ack.played_sample for ack in acks) == acks[-1].played_sample == done.samples
    assert acks[-1].next_sample == driver.frames[-1].end_sample
