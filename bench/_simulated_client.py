"""The client in virtual time: the real `SessionState`, its effects executed on modelled connections."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench._simulated_clock import Alarm, Clock
from bench._simulated_player import Player
from bench._simulated_speech import packet_index
from bench._simulated_tcp import Endpoint, Handler
from client.effects import Adopt, Connect, Deliver, Drop, Effect, Failed, Finished, Notice, Send, SendOn
from client.errors import ClientError, ConnectFailed
from client.items import Audio
from client.outbox import Outbox
from client.playout import Playout
from client.session import SessionState
from protocol.client_messages import ClientMessage, Open, Start
from protocol.codec import decode_server, encode
from protocol.frames import decode_frame
from protocol.server_messages import Cancelled, Done, Event, Opened


class Connector(Protocol):
    """Makes connections to the server."""

    def __call__(self, client: Handler) -> Endpoint:
        """One more; `client.opened` follows."""


@dataclass(slots=True)
class Heard:
    """What came of one utterance: samples, or stand-in packets by index, and events in their order."""

    pcm: bytearray = field(default_factory=bytearray)
    packets: dict[int, bytes] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    next_sample: int = 0  # as frames count
    first_audio: float | None = None
    result: Done | Cancelled | None = None
    player: Player | None = None
    wrong: list[str] = field(default_factory=list)  # what was delivered twice, or not in order


class Client:
    """`started` is called when the session is open, `over` when it has failed."""

    def __init__(
        self,
        clock: Clock,
        connect: Connector,
        request: Open,
        *,
        started: Callable[["Client"], None],
        plays: bool = True,
        keep: bool = True,
        resume: bool = True,
        watchdog: bool = True,
    ) -> None:
        self.clock = clock
        self.heard: dict[int, Heard] = {}
        self.failure: ClientError | None = None
        self.notices: list[tuple[float, str]] = []
        self.connections = 0
        self.state: SessionState | None = None
        self._connect = connect
        self._request = request
        self._started = started
        self._plays = plays
        self._keep = keep
        self._resume = resume
        self._watchdog = watchdog
        self._ends: dict[int, Endpoint] = {}
        self._numbers: dict[Endpoint, int] = {}
        self._carrier = 0
        self._outboxes: dict[int, Outbox] = {}  # of the connections that are not over
        self._holds = False
        self._taken: deque[tuple[int, int, int]] = deque()  # (utterance, sample, cost) that the consumer did not take
        self._alarm = Alarm(clock, self._tick)
        self._due = 0.0
        self._opened_at = 0.0
        self._open_connection(0)

    # ---- what a program does ----

    def start(self, **overrides: Any) -> int:
        """Begin an utterance."""
        assert self.state is not None
        effects = self.state.start(Start(0, 1, **overrides), self.clock.now)
        number = self.state.newest
        self.heard[number] = Heard()
        self.do(effects)
        return number

    def do(self, effects: Sequence[Effect]) -> None:
        """Execute effects as the shell does, then set the timer."""
        assert self.state is not None
        taken: list[tuple[int, int, int]] = []
        for effect in effects:
            match effect:
                case Deliver(number, item, cost):
                    self._deliver(number, item)
                    taken.append((number, self._end_of(item), cost))
                case Send(message):
                    self._post(self._carrier, message)
                case Connect(connection):
                    self._open_connection(connection)
                case SendOn(connection, message):
                    self._post(connection, message)
                case Adopt(connection):
                    self._carrier = connection
                case Drop(connection):
                    self._outboxes.pop(connection, None)
                    self._ends[connection].abort()
                case Notice(text):
                    self.notices.append((self.clock.now, text))
                case Failed(error):
                    self.failure = error
                    self._outboxes.clear()
                    for end in self._ends.values():
                        end.abort()
                case Finished(_):
                    pass
                case _:
                    pass
        self._flush()
        self._taken += taken
        if not self._holds:
            self._take()
        self._arm()

    def hold(self, holds: bool) -> None:
        """A consumer that takes nothing, until it takes everything."""
        self._holds = holds
        if not holds:
            self._take()

    def _take(self) -> None:
        assert self.state is not None
        while self._taken:
            number, sample, cost = self._taken.popleft()
            if effects := self.state.consumed(number, sample, cost, self.clock.now):
                self.do(effects)

    # ---- connections ----

    def _open_connection(self, number: int) -> None:
        self.connections += 1
        end = self._ends[number] = self._connect(self)
        self._numbers[end] = number
        self._outboxes[number] = Outbox()

    def _post(self, connection: int, message: ClientMessage) -> None:
        if (outbox := self._outboxes.get(connection)) is not None:
            outbox.post(message)

    def opened(self, end: Endpoint) -> None:
        """See Handler."""
        if self.state is None:
            self._opened_at = self.clock.now
            end.write(encode(self._request))
        else:
            self.do(self.state.connected(self._numbers[end], self.clock.now))

    def received(self, end: Endpoint, message: str | bytes) -> None:
        """See Handler."""
        now = self.clock.now
        if self.state is None:
            opened = decode_server(message)
            assert isinstance(opened, Opened), opened
            self.state = SessionState(
                opened, now, rtt_s=now - self._opened_at, resume=self._resume, request=self._request
            )
            if not self._watchdog:
                self.state._watchdog = _Blind(self.state._watchdog)  # type: ignore[assignment]
            self._started(self)
            self._arm()
        elif isinstance(message, bytes):
            self.do(self.state.feed_frame(decode_frame(message), now, self._numbers[end]))
        else:
            self.do(self.state.feed_message(decode_server(message), now, self._numbers[end]))

    def writable(self, end: Endpoint) -> None:
        """See Handler."""
        self._flush()

    def closed(self, end: Endpoint, code: int | None, reason: str) -> None:
        """See Handler."""
        assert self.state is not None, "the session was never opened"
        number = self._numbers[end]
        self._outboxes.pop(number, None)
        if end.is_open:
            self.do(self.state.lost(code, reason, self.clock.now, number))
        else:
            self.do(self.state.refused(number, ConnectFailed("reset"), self.clock.now))

    def _flush(self) -> None:
        for number, outbox in list(self._outboxes.items()):
            end = self._ends[number]
            while end.is_writable and (message := outbox.next()) is not None:
                end.write(encode(message))

    # ---- time ----

    def _arm(self) -> None:
        assert self.state is not None
        due = self.state.deadline()
        if due is not None:
            self._due = due
        self._alarm.set(due)

    def _tick(self) -> None:
        assert self.state is not None
        self.do(self.state.tick(self.clock.now, self._due))

    # ---- what is heard ----

    def _end_of(self, item: Audio | Event) -> int:
        """The timeline sample up to which an item is audio; 0 for an event."""
        if not isinstance(item, Audio):
            return 0
        assert self.state is not None
        return max(0, item.end_sample - self.state.pre_skip) if item.packets else item.end_sample

    def _deliver(self, number: int, item: Audio | Event) -> None:
        heard = self.heard[number]
        if isinstance(item, Audio):
            self._hear(number, heard, item)
            return
        heard.events.append(item)
        if heard.player is not None:
            heard.player.told(item)
        if isinstance(item, Done | Cancelled):
            heard.result = item
            if heard.player is not None:
                if isinstance(item, Cancelled):
                    heard.player.stop()
                else:
                    self._play(heard, item.samples)
                    heard.player.complete()

    def _hear(self, number: int, heard: Heard, item: Audio) -> None:
        now = self.clock.now
        if heard.first_audio is None:
            heard.first_audio = now
        if item.packets:
            per = item.count // len(item.packets)
            for place, packet in enumerate(item.packets):
                index = item.first_sample // per + place
                if packet_index(packet) != index:
                    heard.wrong.append(f"packet {packet_index(packet)} came as {index}")
                if heard.packets.setdefault(index, packet) != packet:
                    heard.wrong.append(f"packet {index} came twice, and not the same")
            if item.first_sample > heard.next_sample or item.end_sample <= heard.next_sample:
                heard.wrong.append(f"coded [{item.first_sample}, {item.end_sample}) came at {heard.next_sample}")
        else:
            if item.first_sample != heard.next_sample:
                heard.wrong.append(f"[{item.first_sample}, {item.end_sample}) came at {heard.next_sample}")
            if self._keep:
                heard.pcm += item.pcm
        heard.next_sample = max(heard.next_sample, item.end_sample)
        if not self._plays:
            return
        if heard.player is None:
            state = self.state
            assert state is not None
            heard.player = Player(
                self.clock,
                Playout(state.sample_rate),
                lambda sample, ms, stalls: self.do(state.played(number, sample, ms, stalls, self.clock.now)),
            )
            heard.player.begin()
        if not item.packets:
            heard.player.hear(item.pcm)
        elif not item.last:  # how much of the last packet is padding only `done` tells
            self._play(heard, item.end_sample - self.state.pre_skip if self.state else 0)

    def _play(self, heard: Heard, end: int) -> None:
        """Push what a decoder would give up to timeline sample `end`."""
        assert heard.player is not None
        missing = end - heard.player.playout.pushed_samples
        if missing > 0:
            heard.player.hear(bytes(2 * missing))


class _Blind:
    """A watchdog that never barks, for the arms without one."""

    def __init__(self, watchdog: Any) -> None:
        self._watchdog = watchdog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watchdog, name)

    def deadline(self, **_: Any) -> float:
        """Never."""
        return float("inf")

    def silent(self, now: float) -> None:
        """All is well."""

    def stuck(self, now: float) -> None:
        """All is well."""
