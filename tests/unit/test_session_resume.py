"""A session whose connection breaks anywhere goes on at the very next sample."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server
from protocol.frames import AudioFrame, FrameFlag, decode_frame
from server.session import Policy, ResumeRefused
from tests.support.session_driver import TEXT, Driver, opened


@dataclass
class Receiver:
    """What a client has, over all connections; checks that nothing is missing and nothing comes twice."""

    driver: Driver
    place: tuple[int, int] = (0, 0)
    event: int = 0
    pcm: dict[int, bytearray] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    token: str = "t"
    generation: int = 1
    resumed: s.Resumed | None = None

    def take(self, data: str | bytes) -> None:
        if isinstance(data, bytes):
            self._audio(decode_frame(data))
            return
        message = decode_server(data)
        if isinstance(message, s.Resumed):
            self.resumed = message
            self.generation, self.token = message.generation, message.new_token
        elif hasattr(message, "event") and not isinstance(message, s.Heartbeat):
            assert message.event == self.event + 1
            self.event = message.event
            self.events.append(message)

    def _audio(self, frame: AudioFrame) -> None:
        assert frame.generation == self.generation
        at = self.place[1] if frame.utterance == self.place[0] else 0
        assert (frame.utterance, frame.first_sample) >= self.place
        assert frame.first_sample == at
        silent = frame.flags & FrameFlag.SILENCE_RUN
        self.pcm.setdefault(frame.utterance, bytearray()).extend(bytes(2 * frame.count) if silent else frame.payload)
        self.place = (frame.utterance, frame.end_sample)

    def resume(self, **changes: Any) -> None:
        session = self.driver.session
        session.detach(self.driver.now)
        fields = {
            "session": "s", "token": self.token, "epoch": session.epoch, "generation_seen": self.generation,
            "utterance": self.place[0], "next_sample": self.place[1], "events_seen": self.event,
        }  # fmt: skip
        message = c.Resume(**{**fields, **changes})
        assert session.accepts(message.token)
        session.resume(message, f"t{session.generation + 1}", self.driver.now)


def step(driver: Driver, receiver: Receiver, chance: random.Random, drop: float) -> bool:
    """One message, perhaps lost with its connection. Whether anything happened."""
    data = driver.session.next_outgoing(driver.now)
    if data is not None:
        if chance.random() < drop:
            receiver.resume()
        else:
            receiver.take(data)
            if chance.random() < 0.3:
                driver.send(c.Ack(receiver.generation, *receiver.place, event=receiver.event))
        return True
    work = driver.take_work()
    if work is not None:
        driver.do(work)
        return True
    return False


def finish(driver: Driver, receiver: Receiver, chance: random.Random, drop: float) -> None:
    idle = 0
    while idle < 3:
        if step(driver, receiver, chance, drop):
            idle = 0
        else:
            driver.send(c.Ack(receiver.generation, *receiver.place, event=receiver.event))
            idle += 1


@pytest.mark.parametrize("seed", range(40))
def test_any_drops_lose_nothing_and_repeat_nothing(seed: int) -> None:
    chance = random.Random(seed)
    whole = opened(max_lead_ms=None)
    driver = opened(max_lead_ms=None)
    for each in (whole, driver):
        each.say(1, TEXT)
        each.numbered(c.Start, utterance=2)
        each.numbered(c.Text, text="再见。")
        each.numbered(c.Silence, ms=1_500)
        each.numbered(c.End)
    whole.run()
    receiver = Receiver(driver)
    finish(driver, receiver, chance, chance.choice((0.02, 0.2, 0.4)))
    for utterance in (1, 2):
        assert bytes(receiver.pcm[utterance]) == whole.pcm(utterance)
    done = [event.digest for event in receiver.events if isinstance(event, s.Done)]
    assert done == [event.digest for event in whole.of(s.Done)]
    assert not driver.session.unfinished


def test_a_client_that_took_half_a_frame_gets_the_other_half() -> None:
    driver = opened(max_lead_ms=None)
    driver.say(1, TEXT)
    driver.do(driver.take_work())  # type: ignore[arg-type]  # there is work
    driver.drain()
    receiver = Receiver(driver, place=(1, 1_001), event=2)
    receiver.resume()
    while (data := driver.session.next_outgoing(driver.now)) is not None:
        receiver.take(data)
    expected = driver.pcm(1)[2 * 1_001 :]
    assert bytes(receiver.pcm[1]) == expected
    assert receiver.resumed is not None
    assert (receiver.resumed.utterance, receiver.resumed.from_sample) == (1, 1_001)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"next_sample": 10**9}, "range"),
        ({"utterance": 2, "next_sample": 0}, "range"),
        ({"events_seen": 10**6}, "range"),
        ({"utterance": 0, "next_sample": 5}, "range"),
        ({"generation_seen": 7}, "range"),
        ({"epoch": 1}, "epoch"),
        ({"played_sample": 10**9}, "range"),
    ],
)
def test_a_resume_out_of_range_changes_nothing(changes: dict[str, Any], reason: str) -> None:
    driver = opened(max_lead_ms=None)
    driver.say(1, TEXT)
    driver.run()
    last = driver.frames[-1]
    receiver = Receiver(driver, (1, last.end_sample), driver.messages[-1].event)
    with pytest.raises(ResumeRefused) as refused:
        receiver.resume(**changes)
    assert refused.value.reason == reason
    assert driver.session.generation == 1
    receiver.resume()
    assert driver.session.generation == 2


def test_a_stale_resume_is_refused() -> None:
    """What was confirmed is gone."""
    driver = opened(max_lead_ms=None)
    driver.say(1, TEXT)
    driver.run()
    receiver = Receiver(driver, (1, 100), 1)
    with pytest.raises(ResumeRefused):
        receiver.resume()


def test_the_old_token_is_good_until_the_new_one_was_used() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.run(acks=False)
    receiver = Receiver(driver)
    receiver.resume()
    session = driver.session
    assert session.accepts("t")
    assert session.accepts("t2")
    assert not session.accepts("t3")
    while (data := session.next_outgoing(driver.now)) is not None:
        receiver.take(data)
    driver.send(c.Ack(2, *receiver.place, event=receiver.event))
    assert not session.accepts("t")
    assert session.accepts("t2")


def test_acks_of_the_old_generation_are_ignored() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.run(acks=False)
    Receiver(driver).resume()
    driver.send(c.Ack(1, 1, 10**9))
    assert driver.session.delivery.flow.idle


def test_an_idle_session_waits_only_shortly() -> None:
    driver = Driver(Policy("tone-low", resume_ttl_s=100, resume_idle_ttl_s=5))
    driver.open(max_lead_ms=None)
    driver.drain()
    driver.session.detach(driver.now)
    assert driver.session.expires_at == driver.now + 5
    driver.session.attached = True
    driver.say(1, TEXT)
    driver.session.detach(driver.now)
    assert driver.session.expires_at == driver.now + 100
