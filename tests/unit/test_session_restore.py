"""A session whose process is killed goes on in another one, from its journal, at the very next sample."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.session import Policy, ResumeRefused, Session
from server.session.restore import CannotRestore, belongs_to, restore
from tests.support.session_driver import TEXT, Driver, capabilities, render
from tests.unit.test_session_resume import Receiver

POLICY = Policy("tone-low")


class Journaled:
    """A driver whose session is recorded, and a client; `kill` loses everything but the lines that were written."""

    def __init__(self, **open_: Any) -> None:
        self.lines: list[bytes] = []
        self.driver = Driver()
        self.driver.session = Session(
            POLICY, capabilities(), session_id="s", token="t", now=100.0, recorded=True, principal="ann"
        )
        self.receiver = LenientReceiver(self.driver)
        self.epoch = 0
        self.driver.open(**open_)

    def write(self) -> None:
        """The store writes what waits."""
        log = self.driver.session.journal
        lines, made = log.take()
        self.lines += lines
        log.written = made

    def kill(self) -> None:
        self.epoch += 1
        session = restore(self.lines, POLICY, capabilities(), epoch=self.epoch, now=self.driver.now)
        self.driver.session, self.driver.coder = session, None
        self.driver.seq = session._seq
        self.receiver.known = set(self.receiver.segments)
        self.receiver.resume()

    def step(self, chance: random.Random, write: float = 0.5) -> bool:
        """One thing happens. Whether anything did."""
        driver, receiver = self.driver, self.receiver
        if chance.random() < write:
            self.write()
        data = driver.session.next_outgoing(driver.now)
        if data is not None:
            receiver.take(data)
            if chance.random() < 0.3:
                driver.now += 0.4
                driver.send(c.Ack(receiver.generation, *receiver.place, event=receiver.event))
            return True
        work = driver.take_work()
        if work is not None:
            driver.do(work)
            return True
        if driver.session.journal.waits:
            self.write()
            return True
        return False

    def finish(self, chance: random.Random, kills: float = 0.0) -> None:
        idle = 0
        while idle < 3:
            if kills and chance.random() < kills:
                self.kill()
            if self.step(chance):
                idle = 0
            else:
                self.driver.send(c.Ack(self.receiver.generation, *self.receiver.place, event=self.receiver.event))
                idle += 1


class LenientReceiver(Receiver):
    """Takes what may come again after a change of epoch: the events of segments that it knows."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.segments: dict[tuple[int, int], s.SegmentBegin] = {}
        self.known: set[tuple[int, int]] = set()

    def take(self, data: str | bytes) -> None:
        before = len(self.events)
        super().take(data)
        for event in self.events[before:]:
            if isinstance(event, s.SegmentBegin):
                key = (event.utterance, event.segment)
                old = self.segments.get(key)
                if old is not None:
                    assert key in self.known, "a segment came twice without a new epoch"
                    assert (old.start, old.end, old.first_sample) == (event.start, event.end, event.first_sample)
                self.segments[key] = event


def say_all(driver: Driver) -> None:
    driver.say(1, TEXT)
    driver.numbered(c.Start, utterance=2)
    driver.numbered(c.Text, text="再见。你好")
    driver.numbered(c.Flush)
    driver.numbered(c.Silence, ms=1_500)
    driver.numbered(c.Text, text="世界")
    driver.numbered(c.End)


def undisturbed() -> Driver:
    driver = Driver()
    driver.open(max_lead_ms=None)
    say_all(driver)
    driver.run()
    return driver


@pytest.mark.parametrize("seed", range(40))
def test_kills_anywhere_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)
    whole = undisturbed()
    journaled = Journaled(max_lead_ms=None)
    say_all(journaled.driver)
    journaled.write()
    journaled.finish(chance, chance.choice((0.01, 0.05)))
    for utterance in (1, 2):
        assert bytes(journaled.receiver.pcm[utterance]) == whole.pcm(utterance)
    done = {event.utterance: event.digest for event in journaled.receiver.events if isinstance(event, s.Done)}
    assert done == {event.utterance: event.digest for event in whole.of(s.Done)}


@pytest.mark.parametrize("seed", range(10))
def test_text_that_was_acked_survives_and_other_text_is_sent_again(seed: int) -> None:
    """The client repeats what was not acked; nothing is spoken twice."""
    chance = random.Random(seed)
    journaled = Journaled(max_lead_ms=None)
    pieces = [TEXT[at : at + 3] for at in range(0, len(TEXT), 3)]
    messages: list[Any] = [c.Start(1, 1), *(c.Text(2 + n, piece) for n, piece in enumerate(pieces))]
    messages.append(c.End(len(messages) + 1))
    journaled.write()
    sent = 0
    while sent < len(messages):
        journaled.driver.send(messages[sent])
        sent += 1
        for _ in range(chance.randrange(4)):
            journaled.step(chance)
        if chance.random() < 0.2:
            journaled.kill()
            sent = journaled.driver.seq
    journaled.finish(chance)
    whole = Driver()
    whole.open(max_lead_ms=None)
    whole.say(1, TEXT)
    whole.run()
    assert bytes(journaled.receiver.pcm[1]) == whole.pcm(1)


def test_nothing_is_told_before_it_is_written() -> None:
    journaled = Journaled()
    driver = journaled.driver
    driver.drain()
    assert not driver.messages
    journaled.write()
    driver.drain()
    say_all(driver)
    driver.drain()
    assert [type(message) for message in driver.messages] == [s.Opened]
    journaled.write()
    driver.drain()
    assert isinstance(driver.messages[-1], s.SeqAck)
    work = driver.take_work()
    assert work is not None
    driver.do(work)
    driver.drain()
    assert not driver.frames
    journaled.write()
    driver.drain()
    assert driver.frames


def test_another_voice_now_is_noticed_before_anything_is_sent() -> None:
    """The engine changed between the two processes: the client hears where its audio ended in the text."""
    journaled = Journaled(max_lead_ms=None)
    say_all(journaled.driver)
    journaled.write()
    chance = random.Random(1)
    while journaled.receiver.place < (1, 40_000):
        journaled.step(chance)
    journaled.write()

    def louder(request: SegmentRequest) -> RenderedChunk:
        chunk = render(request)
        return RenderedChunk(bytes(len(chunk.pcm)), chunk.words)

    journaled.driver.render = louder
    journaled.kill()
    segment = [
        each for each in journaled.receiver.segments.values() if each.first_sample <= journaled.receiver.place[1]
    ]
    with pytest.raises(ResumeRefused) as refused:
        journaled.finish(chance)
    assert (refused.value.reason, refused.value.utterance) == ("epoch", 1)
    assert refused.value.position == segment[-1].start
    assert not journaled.driver.session.verified


def test_a_cancel_survives() -> None:
    journaled = Journaled(max_lead_ms=None)
    say_all(journaled.driver)
    chance = random.Random(3)
    for _ in range(6):
        journaled.step(chance)
    journaled.driver.numbered(c.Cancel, utterance=1)
    journaled.write()
    journaled.kill()
    journaled.finish(chance)
    events = journaled.receiver.events
    assert [event.utterance for event in events if isinstance(event, s.Cancelled)] == [1]
    assert [event.utterance for event in events if isinstance(event, s.Done)] == [2]


def test_the_key_is_never_written() -> None:
    journaled = Journaled(api_key="sesame-open")
    say_all(journaled.driver)
    journaled.write()
    assert b"sesame" not in b"".join(journaled.lines)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"x"],
        [b"[]"],
        [b'["message","{}"]'],
        [b'["open","s","ann","{}","00"]'],
        [b'["open","s","ann","{\\"type\\":\\"ping\\"}","00"]'],
        [b'["open","s","ann","{\\"type\\":\\"open\\",\\"voice\\":\\"gone\\"}","00"]'],
        [b'["open","s","ann","{\\"type\\":\\"open\\"}","00"]', b'["end",1,0,5,"zz"]', b'["token",1]'],
        [b'["open","s","ann","{\\"type\\":\\"open\\"}","00"]', b'["nonsense",1]'],
    ],
)
def test_a_journal_that_makes_no_sense_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(CannotRestore):
        restore(lines, POLICY, capabilities(), epoch=1, now=0.0)


def test_tokens_that_an_ack_retired_stay_so_in_the_next_process() -> None:
    journaled = Journaled(max_lead_ms=None)
    say_all(journaled.driver)
    journaled.write()
    journaled.driver.drain()
    journaled.receiver.resume()
    journaled.write()
    before = len(journaled.lines)
    journaled.driver.send(c.Ack(2, 0, 0))
    journaled.driver.send(c.Ack(2, 0, 0))
    journaled.write()
    assert sum(line.startswith(b'["token"') for line in journaled.lines[before:]) == 1
    assert not belongs_to(journaled.lines, "ann", "t")
    restored = restore(journaled.lines, POLICY, capabilities(), epoch=1, now=0.0)
    assert not restored.accepts("t")
    assert restored.accepts("t2")


def test_text_of_an_utterance_that_was_passed_over_takes_no_room_after_a_restart() -> None:
    """A client that was in the second one when it came back is told nothing more of the first."""
    journaled = Journaled(max_lead_ms=None)
    say_all(journaled.driver)
    journaled.write()
    journaled.kill()
    session = journaled.driver.session
    session._drop(next(iter(session._sending.values())))
    session.journal.add("gone", 1)
    journaled.write()
    restored = restore(journaled.lines, POLICY, capabilities(), epoch=2, now=0.0)
    assert restored.room == session.room


def test_nothing_comes_before_resumed_while_the_audio_is_compared() -> None:
    journaled = Journaled(max_lead_ms=None)
    driver = journaled.driver
    say_all(driver)
    while not journaled.receiver.pcm:
        journaled.step(random.Random(1), write=1.0)
    journaled.write()
    journaled.kill()
    journaled.write()
    session = driver.session
    assert not session.verified
    for _ in range(20):  # an engine that takes its time
        driver.now += 0.5
        session.on_time(driver.now)
        assert session.deadline() > driver.now
        assert session.next_outgoing(driver.now) is None
    assert journaled.receiver.resumed is None
    work = driver.take_work()
    assert work is not None
    driver.do(work)
    data = session.next_outgoing(driver.now)
    assert isinstance(data, str)
    assert isinstance(decode_server(data), s.Resumed)


def test_every_cut_of_a_journal_restores_or_is_refused() -> None:
    """A crash may end it anywhere."""
    journaled = Journaled(max_lead_ms=None)
    say_all(journaled.driver)
    journaled.write()
    journaled.finish(random.Random(5))
    for count in range(1, len(journaled.lines) + 1):
        session = restore(journaled.lines[:count], POLICY, capabilities(), epoch=1, now=0.0)
        assert not session.attached


def test_whose_it_is_can_be_told_without_restoring_it() -> None:
    journaled = Journaled()
    say_all(journaled.driver)
    journaled.write()
    lines = journaled.lines
    assert belongs_to(lines, "ann", "t")
    assert not belongs_to(lines, "bob", "t")
    assert not belongs_to(lines, "ann", "T")
    journaled.kill()
    journaled.write()
    assert belongs_to(journaled.lines, "ann", "t")  # the answer with the new one may be lost
    assert belongs_to(journaled.lines, "ann", journaled.driver.session._new_token)
    assert belongs_to([b'["open"', b'["token"]'], "bob", "x")  # no journal at all: reading on says so


OPENED = b'["open","s","ann","{\\"type\\":\\"open\\"}","00"]'
START = b'["message","{\\"type\\":\\"start\\",\\"seq\\":1,\\"utterance\\":1}"]'


@pytest.mark.parametrize(
    "line",
    [
        b'["message","{\\"type\\":\\"text\\",\\"seq\\":1,\\"text\\":\\"no start\\"}"]',
        b'["token","abc"]',
        b'["token","00",1]',
        b'["token",null,1]',
        b'["token","' + b"0" * 64 + b'",99999999999999999999]',
        b'["ack","a",0,0,true]',
        b'["codec",1,"x"]',
        b'["segment",1,0,0,1,0,"shout",[]]',
        b'["crc",1,1,"x"]',
    ],
)
def test_a_record_of_the_wrong_kind_is_refused_when_it_is_read(line: bytes) -> None:
    """Not when the client comes back."""
    lines = [OPENED, line] if b"no start" in line else [OPENED, START, line]
    with pytest.raises(CannotRestore):
        restore(lines, POLICY, capabilities(), epoch=1, now=0.0)


def test_a_journal_without_end_is_not_read_to_the_end() -> None:
    def endless() -> Iterator[bytes]:
        yield OPENED
        while True:
            yield b'["crc",1,1,1]'

    with pytest.raises(CannotRestore, match="more than 400000 records"):
        restore(endless(), POLICY, capabilities(), epoch=1, now=0.0)
