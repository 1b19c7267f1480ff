"""A session, an emulated line and a client that plays, in virtual time."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server
from protocol.frames import AudioFrame, decode_frame
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.session import Policy
from tests.support.session_driver import Driver

FAST = 12_500_000.0  # bytes/s
PREROLL_S = 0.12


@dataclass(frozen=True, slots=True)
class Report:
    """What an ack says besides positions."""

    buffered_ms: int
    stalls: int


@dataclass
class SessionLine:
    """`rates`: (time, bytes/s) steps of the line down; 0: nothing passes, in either direction. Times from 0.

    `report(now, report)`: what the client says instead of the truth; `late(number)`: how much later ack `number` comes.
    """

    rtt: float = 0.04
    rates: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, FAST)])
    policy: Policy = field(default_factory=lambda: Policy("tone-low"))
    report: Callable[[float, Report], Report] = lambda now, report: report
    late: Callable[[int], float] = lambda number: 0.0
    chunk_samples: int = 2_400

    def __post_init__(self) -> None:
        self.driver = Driver(self.policy, now=0.0)
        self.sent: list[tuple[float, AudioFrame, int]] = []  # when, what, and how large a message might be then
        self.events: list[tuple[float, s.Event]] = []  # as they arrived
        self.aborted_at: float | None = None
        self.plans: list[tuple[float, str]] = []
        self.place = (0, 0)
        self.stalls = self.acks = 0
        self._event = 0
        self._received = 0.0  # seconds, of all utterances
        self._base = 0  # samples of utterances before this one
        self._played = 0.0
        self._playing_since: float | None = None
        self._acked_at, self._owed, self._owed_bytes = -1.0, False, 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._free_at = self._last_up = 0.0
        self._done = False

    @property
    def now(self) -> float:
        return self.driver.now

    @property
    def modes(self) -> list[tuple[str, str]]:
        """(mode, reason) of each change, as the client heard them."""
        return [(event.mode, event.reason) for _, event in self.events if isinstance(event, s.ModeChange)]

    def open(self, **fields: object) -> None:
        self.driver.open(**fields)
        render = self.driver.render

        def noted(request: SegmentRequest) -> RenderedChunk:
            self.plans.append((self.now, request.plan.mode))
            return render(request)

        self.driver.render = noted
        self._at(0.0, self._timer)

    def run(self, until: float) -> None:
        """Let time pass."""
        session = self.driver.session
        self._pump()
        while self.aborted_at is None:
            due = min(self._heap[0][0], session.deadline())
            if due > until:
                break
            self.driver.now = max(self.now, due)
            if session.deadline() <= self.now:
                session.on_time(self.now)
                if session.dead:
                    self.aborted_at = self.now
                    return
            while self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            self._pump()
        self.driver.now = max(self.now, until)

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time, next(self._order), event))

    # ---- server ----

    def _pump(self) -> None:
        session, driver = self.driver.session, self.driver
        while True:
            work = driver.take_work()
            if work is not None:
                if driver.coder is not None and driver.coder_of == work.utterance:
                    bitrate, opus = session.coder_wish()
                    driver.coder.adapt(bitrate, opus=opus)
                driver.do(work, self.chunk_samples)
            most = session.delivery.link.message_bytes
            data = session.next_outgoing(self.now)
            if data is not None:
                self._send(data, most)
            elif work is None:
                return

    def _send(self, data: str | bytes, most: int) -> None:
        if isinstance(data, bytes):
            self.sent.append((self.now, decode_frame(data), most))
        self._free_at = self._passed(max(self.now, self._free_at), len(data))
        self._at(self._free_at + self.rtt / 2, lambda: self._arrived(data))

    def _passed(self, start: float, size: float) -> float:
        """When `size` bytes have left the line that begin to do so at `start`."""
        ends = [*(time for time, _ in self.rates[1:]), float("inf")]
        for (begin, rate), end in zip(self.rates, ends, strict=True):
            at = max(begin, start)
            if end <= at or not rate:
                continue
            if at + size / rate <= end:
                return at + size / rate
            size -= rate * (end - at)
        raise AssertionError("the line never opens again")

    # ---- client ----

    def _seconds(self) -> float:
        """Played by now; where the buffer ran dry, playing waits for the pre-roll."""
        if self._playing_since is None:
            return self._played
        played = self._played + self.now - self._playing_since
        if played >= self._received:
            self.stalls += not self._done
            self._played, self._playing_since = self._received, None
            return self._played
        return played

    def _arrived(self, data: str | bytes) -> None:
        if isinstance(data, str):
            message = decode_server(data)
            if isinstance(message, s.EVENTS):
                self._event = message.event
                self.events.append((self.now, message))
                self._done = isinstance(message, s.Done)
            return
        frame = decode_frame(data)
        played = self._seconds()
        rate = self.driver.session.config.open.sample_rate  # type: ignore[union-attr]  # it is open
        if frame.utterance != self.place[0]:
            self._base += self.place[1]
        self.place = (frame.utterance, frame.end_sample)
        self._received = (self._base + frame.end_sample) / rate
        self._done = False
        if self._playing_since is None and self._received - played >= PREROLL_S:
            self._playing_since = self.now
        self._owed, self._owed_bytes = True, self._owed_bytes + len(frame.payload)
        if self.now - self._acked_at >= 0.1 or self._owed_bytes >= 32_768:
            self._ack()

    def _timer(self) -> None:
        if self.place[0] and (self._owed or self._seconds() < self._received) and self.now - self._acked_at >= 0.19:
            self._ack()
        self._at(self.now + 0.2, self._timer)

    def _ack(self) -> None:
        played = self._seconds()
        rate = self.driver.session.config.open.sample_rate  # type: ignore[union-attr]  # it is open
        told = self.report(self.now, Report(round(1_000 * (self._received - played)), self.stalls))
        here = max(0, min(self.place[1], round(played * rate) - self._base))
        message = c.Ack(1, *self.place, here, told.buffered_ms, told.stalls, self._event)
        self._acked_at, self._owed, self._owed_bytes = self.now, False, 0
        self.acks += 1
        passes = self._passed(self.now, 1)
        self._last_up = max(self._last_up, passes + self.rtt / 2 + self.late(self.acks))
        self._at(self._last_up, lambda: self.driver.send(message))
