"""The ring and the flow alone: what a client has, over any connections, is the timeline; every counter is exact."""

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol import server_messages as s
from protocol.frames import HEADER, AudioFrame, Codec, FrameFlag
from server.session.entries import EVENT_BYTES, Entry, Place
from server.session.flow import Flow
from server.session.ring import MAX_EVENTS, RangeError, Ring

N = 4  # samples of a packet
PREROLL = 3 * N
KINDS = ("pcm", "opus", "silence")


def sample(utterance: int, index: int) -> bytes:
    return ((utterance * 7_919 + index) % 65_536).to_bytes(2, "little")


def pcm(utterance: int, first: int, count: int, flags: FrameFlag = FrameFlag.NONE) -> AudioFrame:
    payload = b"".join(sample(utterance, first + i) for i in range(count))
    return AudioFrame(Codec.PCM, utterance, first, count, payload, flags)


def silence(utterance: int, first: int, count: int) -> AudioFrame:
    return AudioFrame(Codec.PCM, utterance, first, count, b"", FrameFlag.SILENCE_RUN)


def packet(utterance: int, number: int, flags: FrameFlag = FrameFlag.NONE) -> AudioFrame:
    flags |= FrameFlag.DECODER_RESET if number == 0 else FrameFlag.NONE
    return AudioFrame(Codec.OPUS, utterance, number * N, N, f"packet {utterance}/{number}".encode(), flags)


def timing(utterance: int) -> s.Timing:
    return s.Timing(0, utterance, 0, ())


@dataclass
class Client:
    """Takes what arrives; whatever is missing or comes twice is an AssertionError, except that a connection that took
    over may repeat what the one before still brought.
    """

    place: Place = (0, 0)
    event: int = 0
    whole: set[int] = field(default_factory=set)  # utterances whose LAST came
    cancelled: set[int] = field(default_factory=set)
    samples: dict[int, bytearray] = field(default_factory=dict)

    def take(self, item: Any, *, base: Place, base_event: int, preroll: bool) -> None:
        """`base`: what the client said it had when it asked for this connection."""
        if not isinstance(item, AudioFrame):
            assert item.event > base_event, "an event that was seen came again"
            if item.event <= self.event:
                return
            assert item.event == self.event + 1
            self.event = item.event
            if isinstance(item, s.Cancelled):
                self.cancelled.add(item.utterance)
            return
        number, end = item.utterance, item.end_sample
        if item.codec is Codec.PCM:
            assert (number, item.first_sample) >= base, "samples that the client had came again"
        elif not preroll:
            assert (number, end) > base or not item.count
        else:
            assert (number, end) > (base[0], base[1] - PREROLL)
        if item.flags & FrameFlag.LAST:
            self.whole.add(number)
        if (number, end) <= self.place:
            return
        have = self.place[1] if number == self.place[0] else 0
        if number != self.place[0]:
            before = self.place[0]
            assert not before or before in self.whole | self.cancelled | self.being_cancelled, f"{before} is not whole"
        assert item.first_sample <= have, f"a gap: {item.first_sample} after {have}"
        data = self.samples.setdefault(number, bytearray())
        if item.codec is Codec.OPUS:
            assert item.count == N, "a packet was cut"
            data += item.payload
        elif item.flags & FrameFlag.SILENCE_RUN:
            data += bytes(2 * (end - have))
        else:
            data += bytes(item.payload)[2 * (have - item.first_sample) :]
        self.place = (number, end)

    being_cancelled: set[int] = field(default_factory=set)


class RingMachine(RuleBasedStateMachine):
    """Everything a session does to a ring, with connections that break and deliver late."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring()
        self.client = Client()
        self.event = 0
        self.utterance = 0
        self.kind = "pcm"
        self.made = 0
        self.finished = True
        self.expected: dict[int, bytearray] = {}
        self.wire: deque[Any] = deque()  # on the connection of now
        self.late: deque[Any] = deque()  # on the one before: it may still bring some
        self.base: Place = (0, 0)
        self.base_event = 0
        self.late_base: tuple[Place, int, bool] = ((0, 0), 0, False)
        self.preroll = False
        self.alive: set[int] = set()

    # ---- the session's side ----

    @rule(kind=st.sampled_from(KINDS))
    def start(self, kind: str) -> None:
        if not self.finished:
            self.last()
        self.utterance += 1
        self.kind, self.made, self.finished = kind, 0, False
        self.alive.add(self.utterance)
        self.expected[self.utterance] = bytearray()

    @precondition(lambda self: not self.finished)
    @rule(count=st.integers(1, 9))
    def add_audio(self, count: int) -> None:
        u, at = self.utterance, self.made
        if self.kind == "opus":
            frames = [packet(u, at // N + i) for i in range(min(count, 3))]
        elif self.kind == "silence" and count % 2:
            frames = [silence(u, at, count)]
        else:
            frames = [pcm(u, at, count)]
        for frame in frames:
            self.ring.add(frame)
            self.made = frame.end_sample
            silent = bool(frame.flags & FrameFlag.SILENCE_RUN)
            self.expected[u] += bytes(2 * frame.count) if silent else bytes(frame.payload)

    @precondition(lambda self: not self.finished)
    @rule()
    def last(self) -> None:
        self.finished = True
        if self.kind == "opus":
            frame = packet(self.utterance, self.made // N, FrameFlag.LAST)
            self.expected[self.utterance] += frame.payload
        else:
            frame = pcm(self.utterance, self.made, 0, FrameFlag.LAST)
        self.made = frame.end_sample
        self.ring.add(frame)

    @precondition(lambda self: self.utterance)
    @rule()
    def add_event(self) -> None:
        if self.utterance in self.alive:
            self.ring.add(timing(self.utterance))

    @rule(count=st.integers(1, 6))
    def send(self, count: int) -> None:
        for _ in range(count):
            if self.ring.head is None:
                return
            head = self.ring.head
            entry = self.ring.sent()
            assert entry is head
            item = entry.item
            if not isinstance(item, AudioFrame):
                if not entry.number:
                    self.event += 1
                    entry.number = self.event
                item = replace(item, event=entry.number)
            self.wire.append(item)

    @rule(samples=st.integers(1, 8))
    def split(self, samples: int) -> None:
        head = self.ring.head
        item = head.item if head is not None else None
        if isinstance(item, AudioFrame) and item.codec is Codec.PCM and item.count > samples:
            self.ring.split_head(samples)
            first = self.ring.head
            assert first is not None
            assert isinstance(first.item, AudioFrame)
            assert (first.item.first_sample, first.item.count) == (item.first_sample, samples)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(number)
        if number == self.utterance:
            self.finished = True
        self.ring.cancel(number)
        self.client.being_cancelled.add(number)
        self.ring.insert([s.Cancelled(0, number, 0, 0)])

    # ---- the network and the client ----

    @rule(count=st.integers(1, 8))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            self.late.clear()  # whoever is answered on the new one lets the old one go
            self.client.take(self.wire.popleft(), base=self.base, base_event=self.base_event, preroll=self.preroll)

    @rule(count=st.integers(1, 8))
    def deliver_late(self, count: int) -> None:
        base, event, preroll = self.late_base
        for _ in range(min(count, len(self.late))):
            self.client.take(self.late.popleft(), base=base, base_event=event, preroll=preroll)

    @rule(older=st.booleans())
    def ack(self, older: bool) -> None:
        if self.late:
            return  # a client acks on the connection it has adopted
        event = max(self.base_event, self.client.event - 1) if older else self.client.event
        place = self.client.place if self.client.place[0] in self.alive else (0, 0)
        before = len(self.ring._kept)
        gone = self.ring.confirm(place, event)
        assert len(gone) == before - len(self.ring._kept)
        for entry in gone:
            if isinstance(entry.item, AudioFrame):
                assert (entry.item.utterance, entry.item.end_sample) <= self.client.place
            else:
                assert entry.number <= self.client.event

    @rule(loses=st.booleans(), decoder=st.booleans())
    def resume(self, loses: bool, decoder: bool) -> None:
        """The client asks on a new connection; the old one may still bring what is on its way."""
        client = self.client
        if not self.late or not loses:
            self.late, self.late_base = self.wire, (self.base, self.base_event, self.preroll)
        if loses:
            self.late = deque()
        self.wire = deque()
        self.base, self.base_event, self.preroll = client.place, client.event, not decoder
        self.ring.check(client.place, client.event, self.event)
        self.ring.rewind(client.place, client.event, None if decoder else PREROLL)
        assert self.ring.last_sent == client.place

    @rule(beyond=st.integers(1, 5))
    def forged(self, beyond: int) -> None:
        """What was never sent, or is gone, is refused, and looking changes nothing."""
        ring = self.ring
        furthest, floor, event = ring.furthest, ring.floor, self.event
        with pytest.raises(RangeError):
            ring.check((furthest[0], furthest[1] + beyond), self.client.event, event)
        with pytest.raises(RangeError):
            ring.check((furthest[0] + beyond, 0), self.client.event, event)
        with pytest.raises(RangeError):
            ring.check(self.client.place, event + beyond, event)
        if floor > (0, 0):
            with pytest.raises(RangeError):
                ring.check((floor[0], floor[1] - 1) if floor[1] else (floor[0] - 1, 0), self.client.event, event)
        if ring._first_kept_event > 1:
            with pytest.raises(RangeError):
                ring.check(self.client.place, ring._first_kept_event - 2, event)

    # ---- what always holds ----

    @invariant()
    def counters_are_exact(self) -> None:
        ring = self.ring
        kept, waiting = list(ring._kept), list(ring._waiting)
        assert ring.samples == sum(e.item.count for e in waiting if isinstance(e.item, AudioFrame))
        assert ring.kept_samples == sum(e.item.count for e in kept if isinstance(e.item, AudioFrame))
        assert ring.bytes == sum(size(e) for e in kept + waiting)
        assert ring._events == sum(not isinstance(e.item, AudioFrame) for e in waiting)
        assert ring._kept_events == sum(not isinstance(e.item, AudioFrame) for e in kept)
        cancelled = sum(isinstance(e.item, s.Cancelled) for e in waiting)
        assert ring.cancelled_ready + ring.cancelled_blocked == cancelled
        assert ring._numbered == sum(e.number > 0 for e in waiting)
        assert ring._kept_frames == Counter(e.item.utterance for e in kept if isinstance(e.item, AudioFrame))
        items = Counter(e.item.utterance for e in waiting if not isinstance(e.item, s.Cancelled))
        assert ring._items == items
        assert ring.empty == (not waiting)
        assert ring.all_confirmed == (not waiting and not kept)
        assert ring.audio_waits == (ring.samples > 0)
        assert list(ring.following()) == waiting

    @invariant()
    def the_order_is_that_of_the_timeline(self) -> None:
        entries = [*self.ring._kept, *self.ring._waiting]
        numbers = [e.number for e in entries if e.number]
        assert numbers == sorted(set(numbers))
        assert all(0 < number <= self.event for number in numbers)
        at: Place = (0, 0)
        for frame in (e.item for e in entries if isinstance(e.item, AudioFrame)):
            assert (frame.utterance, frame.first_sample) >= at
            at = (frame.utterance, frame.end_sample)
        assert all(e.number for e in self.ring._kept if not isinstance(e.item, AudioFrame))

    @invariant()
    def what_is_ready_waits_for_no_audio(self) -> None:
        """Else a client whose acks are not read, because many answers wait, would wait for ever."""
        waiting = list(self.ring._waiting)
        ready = [at for at, e in enumerate(waiting) if isinstance(e.item, s.Cancelled)]
        if self.ring.cancelled_ready:
            assert not any(isinstance(e.item, AudioFrame) for e in waiting[: ready[-1]])

    @invariant()
    def the_bounds_hold(self) -> None:
        ring = self.ring
        assert ring.floor <= self.client.place <= ring.furthest
        assert ring.last_sent <= ring.furthest
        assert len(ring._tail) <= 40
        for number, data in self.client.samples.items():
            assert self.expected[number].startswith(bytes(data))

    def teardown(self) -> None:
        """In the end the client has all of it."""
        if not self.finished:
            self.last()
        self.late.clear()
        while not self.ring.empty or self.wire:
            self.send(6)
            self.deliver(8)
        for number in self.alive:
            assert self.client.samples.get(number, b"") == self.expected[number]
        self.ring.confirm(self.client.place, self.client.event)
        assert self.client.event == self.event
        assert all(isinstance(e.item, AudioFrame) and not e.item.count for e in self.ring._kept)


def size(entry: Entry) -> int:
    return HEADER.size + len(entry.item.payload) if isinstance(entry.item, AudioFrame) else EVENT_BYTES


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


# ---- single cases ----


def sent(ring: Ring, *items: Any) -> None:
    """Add and send these; events are numbered from 1."""
    for item in items:
        ring.add(item)
    number = 0
    while ring.head is not None:
        entry = ring.sent()
        if not isinstance(entry.item, AudioFrame):
            number += 1
            entry.number = number


def frames(ring: Ring) -> list[tuple[int, int]]:
    return [(e.item.first_sample, e.item.count) for e in ring.following() if isinstance(e.item, AudioFrame)]


def test_pcm_is_cut_to_the_sample() -> None:
    ring = Ring()
    sent(ring, pcm(1, 0, 10), pcm(1, 10, 10))
    ring.rewind((1, 7), 0, None)
    assert frames(ring) == [(7, 3), (10, 10)]
    first = ring.sent().item
    assert isinstance(first, AudioFrame)
    assert bytes(first.payload) == b"".join(sample(1, i) for i in (7, 8, 9))


def test_silence_is_cut_to_the_sample() -> None:
    ring = Ring()
    sent(ring, silence(1, 0, 100))
    ring.rewind((1, 30), 0, None)
    assert frames(ring) == [(30, 70)]
    assert ring.bytes == HEADER.size


def test_packets_are_never_cut() -> None:
    ring = Ring()
    sent(ring, *(packet(1, n) for n in range(5)))
    ring.rewind((1, 2 * N + 1), 0, None)
    assert frames(ring) == [(2 * N, N), (3 * N, N), (4 * N, N)]


def test_a_new_decoder_is_warmed_up_also_twice_in_a_row() -> None:
    ring = Ring()
    sent(ring, *(packet(1, n) for n in range(10)))
    ring.confirm((1, 8 * N), 0)
    for _ in range(3):
        ring.rewind((1, 8 * N), 0, PREROLL)
        assert frames(ring) == [(n * N, N) for n in range(5, 10)]
        for _ in range(4):
            ring.sent()
        assert ring.last_sent == (1, 9 * N)


def test_an_utterance_that_is_whole_needs_no_warming_up() -> None:
    ring = Ring()
    sent(ring, *(packet(1, n) for n in range(4)), packet(1, 4, FrameFlag.LAST))
    ring.rewind((1, 5 * N), 0, PREROLL)
    assert ring.all_confirmed


def test_only_packets_of_the_same_utterance_warm_it_up() -> None:
    ring = Ring()
    sent(ring, *(packet(1, n) for n in range(4)), packet(2, 0), packet(2, 1))
    ring.confirm((2, N), 0)
    ring.rewind((2, N), 0, PREROLL)
    assert [(e.item.utterance, e.item.first_sample) for e in ring.following() if isinstance(e.item, AudioFrame)] == [
        (2, 0),
        (2, N),
    ]


def test_an_empty_last_frame_comes_again_unless_something_after_it_came() -> None:
    ring = Ring()
    sent(ring, pcm(1, 0, 10), pcm(1, 10, 0, FrameFlag.LAST), timing(1))
    assert len(ring.confirm((1, 10), 0)) == 1
    ring.rewind((1, 10), 0, None)
    assert frames(ring) == [(10, 0)]
    while ring.head is not None:
        ring.sent()
    assert len(ring.confirm((1, 10), 1)) == 2
    assert ring.all_confirmed


def test_what_came_late_on_the_old_connection_does_not_come_again() -> None:
    """The client had 10 samples when it asked; when the answer was lost it had 30, and three events."""
    ring = Ring()
    sent(ring, timing(1), pcm(1, 0, 20), timing(1), pcm(1, 20, 20), timing(1))
    ring.rewind((1, 10), 1, None)
    ring.check((1, 30), 2, 3)
    ring.rewind((1, 30), 2, None)
    assert frames(ring) == [(30, 10)]
    assert [e.number for e in ring.following() if e.number] == [3]
    with pytest.raises(RangeError):
        ring.check((1, 41), 2, 3)


def test_a_client_that_confirms_no_events_costs_a_bound_number() -> None:
    ring = Ring()
    for number in range(1, 3 * MAX_EVENTS):
        ring.add(timing(1))
        ring.sent().number = number
    assert len(ring._kept) == MAX_EVENTS
    assert ring.bytes == MAX_EVENTS * EVENT_BYTES
    oldest = ring._kept[0].number
    ring.check((0, 0), oldest - 1, 3 * MAX_EVENTS)
    with pytest.raises(RangeError):
        ring.check((0, 0), oldest - 2, 3 * MAX_EVENTS)
    ring.confirm((0, 0), 3 * MAX_EVENTS)
    assert ring.bytes == 0


def test_a_cancel_leaves_the_numbers_that_were_given() -> None:
    ring = Ring()
    sent(ring, timing(1), pcm(1, 0, 10), timing(1))
    ring.rewind((0, 0), 0, None)
    ring.cancel(1)
    ring.insert([s.Cancelled(0, 1, 0, 0)])
    assert [(type(e.item), e.number) for e in ring.following()] == [(s.Timing, 1), (s.Timing, 2), (s.Cancelled, 0)]
    assert (ring.samples, ring.bytes) == (0, 3 * EVENT_BYTES)


# ---- flow ----


class FlowMachine(RuleBasedStateMachine):
    """Against a list of what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.lead = 400
        self.flow = Flow(self.lead)
        self.window = 3_000
        self.now = 0.0
        self.sent: list[tuple[int, int, int, float]] = []  # utterance, end, bytes, when
        self.ends: Counter[int] = Counter()
        self.played: Counter[int] = Counter()
        self.utterance = 1

    @rule()
    def next_utterance(self) -> None:
        self.utterance += 1

    @rule(samples=st.integers(0, 120), payload=st.booleans())
    def send(self, samples: int, payload: bool) -> None:
        size = 2 * samples if payload else 0
        waits = sum(each[2] for each in self.sent) + size + HEADER.size
        lead = sum((self.ends - self.played).values())
        allowed = (not self.sent or waits <= self.window) and (lead <= 0 or lead + samples <= self.lead)
        assert self.flow.may_send(samples, size, self.window) == allowed
        if not allowed:
            return
        self.now += 0.01
        u = self.utterance
        self.flow.sent(u, self.ends[u] + samples, samples, size, self.now)
        if samples:
            self.ends[u] += samples
            self.sent.append((u, self.ends[u], size + HEADER.size, self.now))

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), plays=st.booleans())
    def ack(self, data: st.DataObject, plays: bool) -> None:
        u, end, _, _ = data.draw(st.sampled_from(self.sent))
        played = data.draw(st.integers(1, end)) if plays else 0
        covered = [each for each in self.sent if each[:2] <= (u, end)]
        self.sent = [each for each in self.sent if each[:2] > (u, end)]
        assert self.flow.acked(u, end, played) == (
            sum(each[2] for each in covered),
            covered[-1][3] if covered else None,
        )
        if played:
            self.played[u] = max(self.played[u], played)
            for earlier in [known for known in self.ends if known < u]:
                del self.ends[earlier]

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        u = data.draw(st.integers(1, self.utterance))
        self.flow.drop(u)
        self.sent = [each for each in self.sent if each[0] != u]
        self.ends.pop(u, None)
        if u == self.utterance:
            self.utterance += 1

    @precondition(lambda self: self.ends)
    @rule(data=st.data(), live=st.booleans())
    def restart(self, data: st.DataObject, live: bool) -> None:
        u = data.draw(st.sampled_from(sorted(self.ends)))
        low = self.played[u]
        at = data.draw(st.integers(min(low, self.ends[u]), self.ends[u]))
        if not live:  # it is over: it was dropped before
            self.flow.drop(u)
            del self.ends[u]
            if u == self.utterance:
                self.utterance += 1
        self.flow.restart(u, at, low, live=live)
        self.sent.clear()
        for later in [known for known in self.ends if known > u]:
            del self.ends[later]
        if live:
            self.ends[u] = at
            self.utterance = u

    @invariant()
    def counts_are_exact(self) -> None:
        assert self.flow.unacked_bytes == sum(each[2] for each in self.sent)
        assert self.flow.idle == (not self.sent)
        assert self.flow.oldest_sent_at == (self.sent[0][3] if self.sent else None)
        assert self.flow.lead_samples == sum((self.ends - self.played).values())


TestFlow = FlowMachine.TestCase
TestFlow.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_one_frame_may_always_be_on_its_way() -> None:
    flow = Flow(None)
    assert flow.may_send(10**6, 10**6, 100)
    flow.sent(1, 10, 10, 20, 0.0)
    assert not flow.may_send(10, 20, 50)
    flow.acked(1, 10, 0)
    assert flow.may_send(10, 20, 50)


def test_an_utterance_that_is_over_does_not_count_against_the_lead() -> None:
    flow = Flow(100)
    flow.sent(1, 100, 100, 200, 0.0)
    flow.drop(1)
    flow.restart(1, 100, 0, live=False)
    assert flow.lead_samples == 0
    assert flow.may_send(100, 200, 10_000)
