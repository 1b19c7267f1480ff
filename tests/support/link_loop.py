"""A closed loop around a link: a server that obeys it, an emulated line, a client with its ack schedule and player."""

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from random import Random

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
    """`rates`: (time, bytes/s) steps of the line, 0: nothing passes. `texts`: (time, seconds of audio written then).

    `jitter`: each message is late by up to so many seconds, and one in 300 by another such time; the order stays.
    """

    def __init__(
        self,
        *,
        rtt: float,
        rates: list[tuple[float, float]],
        texts: list[tuple[float, float]],
        paced: bool = True,
        engine_speed: float = 5.0,
        bytes_per_s: int = PCM,
        jitter: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.link = Link(0.0, pinned=None, paced=paced)
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
        self._line_free_at = self._last_down = self._last_up = 0.0
        self._jitter, self._random = jitter, Random(1)
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
        self._last_down = max(self._last_down, self._line_free_at + self._travel())
        self._at(self._last_down, lambda: self._arrive(end, size))

    def _travel(self) -> float:
        late = self._random.random() + (self._random.random() < 1 / 300)
        return self._rtt / 2 + self._jitter * late

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
        self._acks.arrived(1, end, size, 0)
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
        self._last_up = max(self._last_up, passes + self._travel())
        self._at(self._last_up, lambda: self._ack_came(*report))
