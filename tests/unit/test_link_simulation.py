"""The link in a closed loop: a server that obeys it, an emulated line, a client with its ack schedule and player."""

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise

import pytest

from client.acks import AckSchedule
from protocol.frames import HEADER
from protocol.limits import MAX_UNACKED_BYTES
from server.link import Link, Load, Mode, Switch

PCM = 48_000  # bytes/s at 24 kHz
FRAME_S = 0.02
PREROLL_S = 0.12
FAST = 12_500_000.0  # bytes/s: 100 Mbit/s
SLOW = 25_000.0  # 200 kbit/s


class Loop:
    """`rates`: (time, bytes/s) steps of the line, 0: nothing passes. `texts`: (time, seconds of audio written then)."""

    def __init__(
        self,
        *,
        rtt: float,
        rates: list[tuple[float, float]],
        texts: list[tuple[float, float]],
        paced: bool = True,
        engine_speed: float = 5.0,
        bytes_per_s: int = PCM,
        pinned: Mode | None = None,
    ) -> None:
        self.now = 0.0
        self.link = Link(0.0, pinned=pinned, paced=paced)
        self.link.attached(0.0, resumed=False)
        self.switches: list[tuple[float, Switch]] = []
        self.stalls = 0
        self.arrived_bytes = 0
        self.windows: list[tuple[float, int]] = []
        self.delays: list[tuple[float, float]] = []  # of each message on the line: (when sent, seconds)
        self._rtt, self._rates, self._paced = rtt, rates, paced
        self._engine_speed = engine_speed
        self._frame_bytes = round(bytes_per_s * FRAME_S)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._timer_of_check = 0
        # Server: frames to be rendered, rendered, sent, played; and what is unacked as (end frame, bytes, sent at).
        self._unrendered = self._ring = self._sent = self._known_played = 0
        self._rendering = False
        self._unacked: deque[tuple[int, int, float]] = deque()
        self._unacked_bytes = 0
        self._line_free_at = 0.0
        # Client.
        self._acks = AckSchedule(1 << 40, 0.0)
        self._received = self._acked = 0
        self._played_base = 0.0  # frames played up to `_playing_since`
        self._playing_since: float | None = None
        for at, seconds in texts:
            self._at(at, partial(self._write, round(seconds / FRAME_S)))
        self._at(0.0, self._client_timer)

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    @property
    def reasons(self) -> list[tuple[Mode, str]]:
        return [(switch.mode, switch.reason) for _, switch in self.switches]

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    # ---- server ----

    def _write(self, frames: int) -> None:
        self._unrendered += frames
        if not self._rendering:
            self._rendering = True
            self._render()

    def _render(self) -> None:
        if not self._unrendered:
            self._rendering = False
            self._pump()
            return
        if self._ring * FRAME_S < 10:
            self._unrendered -= 1
            self._ring += 1
        self._at(self.now + FRAME_S / self._engine_speed, self._render)
        self._pump()

    def _load(self) -> Load:
        lead = (self._sent - self._known_played) * FRAME_S
        waiting = self._ring > 0 and not self._may_send(1)
        return Load(self._unacked[0][2] if self._unacked else None, waiting, lead, playing=True)

    def _may_send(self, frames: int) -> bool:
        size = frames * self._frame_bytes + HEADER.size
        if self._unacked and self._unacked_bytes + size > self.link.window:
            return False
        return not self._paced or (self._sent + frames - self._known_played) * FRAME_S <= 4.0

    def _pump(self) -> None:
        sent = False
        while self._ring:
            most = min(self.link.block_ms // 20, self.link.message_bytes // self._frame_bytes)
            frames = min(self._ring, max(1, most))
            if (frames < most and self._unrendered) or not self._may_send(frames):
                break
            self._ring -= frames
            self._sent += frames
            self._send(frames)
            sent = True
        if sent:
            self._decide()

    def _send(self, frames: int) -> None:
        size = frames * self._frame_bytes + HEADER.size
        self._unacked.append((self._sent, size, self.now))
        self._unacked_bytes += size
        self.link.sent(self.now, size)
        self._line_free_at = self._passed(max(self.now, self._line_free_at), size)
        self.delays.append((self.now, self._line_free_at - self.now))
        end = self._sent
        self._at(self._line_free_at + self._rtt / 2, lambda: self._arrive(end, size))

    def _passed(self, start: float, size: float) -> float:
        """When `size` bytes have left the line that begin to do so at `start`."""
        steps = [*self._rates, (float("inf"), 0.0)]
        for (begin, rate), (end, _) in pairwise(steps):
            if end <= start:
                continue
            begin = max(begin, start)
            if rate and begin + size / rate <= end:
                return begin + size / rate
            size -= rate * (end - begin)
        raise AssertionError("the line never opens again")

    def _ack_came(self, end: int, played: int, buffered_ms: int, stalls: int) -> None:
        size, sent_at = 0, None
        while self._unacked and self._unacked[0][0] <= end:
            _, bytes_, sent_at = self._unacked.popleft()
            size += bytes_
        self._unacked_bytes -= size
        self._known_played = played
        self.link.acked(self.now, sent_at=sent_at, size=size, buffered_ms=buffered_ms, stalls=stalls, visible=True)
        assert 16_384 <= self.link.window <= MAX_UNACKED_BYTES
        self.windows.append((self.now, self.link.window))
        self._decide()
        self._pump()

    def _decide(self) -> None:
        if switch := self.link.decide(self.now, self._load()):
            self.switches.append((self.now, switch))
        self._timer_of_check += 1
        number, at = self._timer_of_check, self.link.next_check(self.now, self._load())
        if at is not None:
            self._at(at, lambda: self._decide() if number == self._timer_of_check else None)

    # ---- client ----

    def _play(self) -> float:
        """Frames played by now; where the buffer ran dry, playing waits for the pre-roll."""
        if self._playing_since is None:
            return self._played_base
        played = self._played_base + (self.now - self._playing_since) / FRAME_S
        if played >= self._received:
            self.stalls += self._sent > self._received or self._unrendered > 0
            self._played_base, self._playing_since = self._received, None
            return self._played_base
        return played

    def _arrive(self, end: int, size: int) -> None:
        played = self._play()
        self._received = end
        self.arrived_bytes += size
        all_here = not self._unrendered and not self._ring and self._sent == end
        if self._playing_since is None and ((end - played) * FRAME_S >= PREROLL_S or all_here):
            self._playing_since = self.now
        self._acks.arrived(1, end, size)
        self._acks.taken(size)
        if self._acks.due_on_arrival(self.now):
            self._ack()

    def _client_timer(self) -> None:
        if self.now >= self._acks.timer - 1e-9:
            if self._acks.owed or self._play() < self._received or self._unrendered:
                self._ack()
            else:
                self._acks.sent(self.now)
        self._at(self._acks.timer, self._client_timer)

    def _ack(self) -> None:
        played = self._play()
        self._acks.sent(self.now)
        report = (self._acks.position.sample, int(played), int((self._received - played) * 20), self.stalls)
        passes = self._passed(self.now, 1)  # what blocks the line blocks both ways
        self._at(passes + self._rtt / 2, lambda: self._ack_came(*report))


@pytest.mark.parametrize("rtt", [0.001, 0.3])
def test_ten_calm_minutes_never_switch(rtt: float) -> None:
    loop = Loop(rtt=rtt, rates=[(0, FAST)], texts=[(0.5, 600.0)])
    loop.run(610.0)
    assert loop.switches == []
    assert loop.stalls == 0
    assert loop.link.target_lead_s < 0.35


@pytest.mark.parametrize("rtt", [0.001, 0.3])
@pytest.mark.parametrize("engine_speed", [0.9, 1.2])
def test_a_slow_engine_and_a_pausing_writer_never_switch(rtt: float, engine_speed: float) -> None:
    texts = [(at, 0.7 + at % 5) for at in map(float, range(1, 100, 6))]
    loop = Loop(rtt=rtt, rates=[(0, FAST)], texts=texts, engine_speed=engine_speed)
    loop.run(110.0)
    assert (loop.stalls > 10) == (engine_speed < 1), "the case is not what it is meant to be"
    assert loop.switches == []


@pytest.mark.parametrize("rtt", [0.001, 0.04])
def test_a_blackhole_is_noticed_at_once_and_forgotten_in_time(rtt: float) -> None:
    loop = Loop(rtt=rtt, rates=[(0, FAST), (10, 0), (12, FAST)], texts=[(0.5, 90.0)])
    loop.run(80.0)
    (entered, switch), (left, back) = loop.switches
    assert 10 < entered <= 10.5
    assert switch == Switch("block", "ack_age")
    assert back == Switch("stream", "recovered")
    assert 17 <= left <= 30


def test_a_link_that_becomes_too_slow_is_noticed_soon() -> None:
    loop = Loop(rtt=0.04, rates=[(0, FAST), (10, SLOW), (25, FAST)], texts=[(0.5, 120.0)])
    loop.run(24.0)
    assert len(loop.switches) == 1
    assert 10 < loop.switches[0][0] <= 10.75
    assert loop.link.goodput == pytest.approx(SLOW, rel=0.15)
    assert loop.link.block_ms == 800  # because it went on
    assert loop.link.message_bytes <= 0.3 * SLOW
    loop.run(120.0)
    assert loop.reasons[1] == ("stream", "recovered")
    assert len(loop.switches) == 2


def test_a_link_that_becomes_too_slow_for_a_file_is_noticed_soon() -> None:
    loop = Loop(rtt=0.04, rates=[(0, FAST), (2, SLOW)], texts=[(0.0, 60.0)], paced=False)
    loop.run(10.0)
    assert loop.switches[0][1] == Switch("block", "ack_age")
    assert 2 < loop.switches[0][0] <= 2.75


@pytest.mark.parametrize("rate", [62_500.0, 200_000.0, 1_000_000.0])
@pytest.mark.parametrize("rtt", [0.01, 0.15])
def test_goodput_is_the_rate_of_the_bottleneck_and_little_queues(rate: float, rtt: float) -> None:
    loop = Loop(rtt=rtt, rates=[(0, rate)], texts=[(0.0, 1_000.0)], paced=False, engine_speed=200.0)
    loop.run(25.0)
    assert loop.link.goodput == pytest.approx(rate, rel=0.15)
    used = loop.arrived_bytes / 25
    assert used >= 0.9 * rate
    settled = [delay for at, delay in loop.delays if at > 5]
    assert max(settled) < 0.4


def test_filling_the_lead_over_a_link_that_just_suffices_is_no_outage() -> None:
    loop = Loop(rtt=0.04, rates=[(0, 62_500)], texts=[(0.0, 60.0)])
    loop.run(60.0)
    assert loop.switches == []
    assert loop.stalls == 0
    assert max(delay for at, delay in loop.delays if at > 4) < 0.35


def test_a_long_fast_link_gets_the_whole_window_within_a_few_round_trips() -> None:
    loop = Loop(rtt=0.3, rates=[(0, FAST)], texts=[(0.0, 600.0)], paced=False, engine_speed=1_000.0)
    loop.run(20.0)
    assert next(at for at, window in loop.windows if window == MAX_UNACKED_BYTES) < 1.6
    assert loop.windows[-1][1] == MAX_UNACKED_BYTES
    assert loop.switches == []


def test_an_application_that_sends_little_keeps_the_window_that_was_proven() -> None:
    loop = Loop(rtt=0.3, rates=[(0, FAST)], texts=[(0.0, 40.0)])
    loop.run(30.0)
    assert loop.windows[-1][1] >= 65_536
    assert loop.link.goodput is None


def test_a_long_round_trip_returns_to_streaming() -> None:
    loop = Loop(rtt=0.3, rates=[(0, FAST)], texts=[(0.5, 60.0)])
    loop.link.attached(0.0, resumed=True)
    loop.run(60.0)
    assert loop.reasons == [("block", "resumed"), ("stream", "recovered")]
    assert 30 <= loop.switches[1][0] <= 36


def test_short_turns_return_to_streaming() -> None:
    texts = [(float(at), 1.5) for at in range(1, 60, 3)]
    loop = Loop(rtt=0.04, rates=[(0, FAST), (4.05, 0), (5, FAST)], texts=texts)
    loop.run(60.0)
    assert [mode for mode, _ in loop.reasons] == ["block", "stream"]
    assert loop.switches[1][0] < 40
