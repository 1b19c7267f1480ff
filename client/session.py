"""The client's side of a session, without I/O: messages, frames and the time go in, effects come out.

The shell (`client.shell`) executes the effects in order and calls `tick` when `deadline()` has passed. Nothing here
knows of sockets, tasks or clocks, so a test can play any schedule at once. The class grows in three steps: `Writing`
speaks to the server, `Continuing` moves between connections, and `SessionState` takes what comes in.
"""

from random import Random
from typing import Final

from client.continuing import FINAL_CLOSES, Continuing
from client.effects import Drop, Effect, RoomGrew, Send
from client.errors import Busy, ClientError, Gap, ServerError, ServerLost, ServerMisbehaved
from client.watchdog import LATE_TICK_S
from client.writing import SOFT_FLUSH_S
from protocol import server_messages as s
from protocol.client_messages import Ack, Open, Ping
from protocol.errors import ProtocolError
from protocol.frames import AudioFrame

QUEUE_BYTES: Final = 1_048_576  # held for slow consumers, per session, before acks stop; 22 s of 24 kHz PCM
FILES: Final = Open(max_lead_ms=None, max_buffer_delay_ms=None)


class SessionState(Continuing):
    """State from `opened` on. Times are seconds of one monotonic clock; connections are numbered (`client.effects`).

    `resume`: come back after a lost connection, where the server keeps sessions. `reconnect_s`: for how long that is
    tried (None: as long as the server keeps them, at least 30 s). `request`: the `open` that a new session needs where
    the old one cannot be resumed (`restart` False: SessionGone then). `random`: jitter of the attempts.
    """

    def __init__(
        self,
        opened: s.Opened,
        now: float,
        *,
        rtt_s: float = 0.0,
        queue_bytes: int = QUEUE_BYTES,
        resume: bool = True,
        reconnect_s: float | None = None,
        restart: bool = True,
        request: Open = FILES,
        random: Random | None = None,
    ) -> None:
        super().__init__(
            opened, now, rtt_s=rtt_s, queue_bytes=queue_bytes, resume=resume, reconnect_s=reconnect_s,
            restart=restart, request=request, random=random or Random(0),
        )  # fmt: skip

    # ---- the server ----

    def feed_message(self, message: s.ServerMessage, now: float, connection: int = 0) -> list[Effect]:
        """Takes one message of the server."""
        if self.failure is not None or not self._reconnecting.is_open(connection):
            return []
        if connection != self._reconnecting.carrier:
            try:
                return self._answer(message, connection, now)
            except ClientError as error:
                self.line.outage_ends(now)
                return self._fail(error)
        effects = self._heard(now, message)
        if not isinstance(message, s.Heartbeat | s.Pong):
            self._watchdog.step(now)
        try:
            return effects + self._with_acks(self._take(message, now))
        except Gap as gap:
            return effects + self._gap(gap, now)
        except ClientError as error:
            return effects + self._fail(error)

    def feed_frame(self, frame: AudioFrame, now: float, connection: int = 0) -> list[Effect]:
        """Takes one audio frame."""
        if self.failure is not None or connection != self._reconnecting.carrier:
            return []
        effects = self._heard(now)
        self._watchdog.step(now)
        try:
            taken = self._receiver.audio(frame, now)
        except Gap as gap:
            return effects + self._gap(gap, now)
        except ClientError as error:
            return effects + self._fail(error)
        if taken:
            self._progress()
        return effects + self._with_acks(taken or [])

    def bad_message(self, error: ProtocolError, now: float, connection: int = 0) -> list[Effect]:
        """The server sent something that does not decode."""
        text = f"the server sent what this client does not understand: {error.message}"
        if connection == self._reconnecting.carrier:
            return self._fail(ServerMisbehaved(text))
        if not self._reconnecting.is_open(connection):
            return []
        return [Drop(connection), *self._reconnecting.failed(connection, text, now)]

    def heard(self, now: float) -> None:
        """Bytes came on the connection that carries the session, though no whole message yet."""
        if not self.is_out:
            self._watchdog.heard(now)

    def lost(self, close_code: int | None, reason: str, now: float, connection: int = 0) -> list[Effect]:
        """A connection is gone. `close_code` None: without a close frame."""
        if self.failure is not None or not self._reconnecting.is_open(connection):
            return []
        error = ServerLost.closed(close_code, reason, going_away=self.going_away)
        if connection != self._reconnecting.carrier:
            why = f"the server closed the last one{f' ({reason})' if reason else ''}: see its log"
            return self._reconnecting.failed(connection, why, now)
        if close_code in FINAL_CLOSES:
            return self._fail(error)
        return self._lose(error, ServerLost.briefly(close_code), now, now, gone=True)

    def broken(self, error: BaseException) -> list[Effect]:
        """This client itself failed: a bug. Nobody may wait for ever because of it."""
        return self._fail(ClientError(f"the client failed: {error!r}; please report this"))

    def close(self) -> None:
        """The program closes the session."""
        self._fail(ServerLost("the session was closed"))

    # ---- consumers ----

    def consumed(self, utterance: int, end_sample: int, cost: int, now: float) -> list[Effect]:
        """The consumer took an item of this cost: audio up to `end_sample` of the timeline, or an event (0)."""
        effects: list[Effect] = []
        self._watchdog.step(now)
        due = self._acks.taken(cost)
        if self.failure is not None:
            return []
        if end_sample and (entry := self._utterances.find(utterance)) is not None:
            before = entry.heard_all
            entry.consumed_sample = max(entry.consumed_sample, end_sample)
            if entry.heard_all and not before and self._max_lead is not None:
                effects += self._give(self._receiver.ack_end(entry, now).message, now)
        return effects + self._ack(now) if due else effects

    def played(self, utterance: int, sample: int, buffered_ms: int, stalls: int, now: float) -> list[Effect]:
        """What a player reports, in samples of the utterance's timeline; the next ack carries it, the last at once."""
        if (entry := self._utterances.find(utterance)) is None or self.failure is not None:
            return []
        if sample != entry.player_sample:
            self._watchdog.step(now)
        entry.player_sample, entry.buffered_ms, entry.stalls = sample, buffered_ms, stalls
        return self._give(self._receiver.ack_end(entry, now).message, now) if entry.heard_all else []

    # ---- time ----

    def deadline(self) -> float | None:
        """When `tick` must be called; None once the session is over."""
        if self.failure is not None:
            return None
        times = []
        if (attempts := self._reconnecting.deadline()) is not None:
            times.append(attempts)
        if self._last_input is not None and not self._backlog:
            times.append(self._last_input + SOFT_FLUSH_S)
        if not self.is_out:
            times.append(self._last_sent + self._keep_alive)
            if self._utterances.live:
                times.append(self._watchdog.deadline(awaits_speech=self._awaits_speech))
            if self._wants_acks:
                times.append(self._acks.timer)
        return min(times)

    def tick(self, now: float, due: float) -> list[Effect]:
        """Does what is due at `now`; `due` is the deadline that was waited for."""
        if self.failure is not None:
            return []
        if now - due > LATE_TICK_S:
            self._watchdog.slept(now)
            self._reconnecting.slept(now)
        if self._reconnecting.gave_up(now):
            return self._give_up(now)
        effects = self._reconnecting.tick(now)
        if not self.is_out and self._utterances.live:
            if (lost := self._watchdog.silent(now)) is not None:
                effects += self._lose(lost, str(lost), now, self._watchdog.heard_at, gone=False)
            elif self._awaits_speech and (lost := self._watchdog.stuck(now)) is not None:
                return self._fail(lost)
        if self._last_input is not None and not self._backlog and now >= self._last_input + SOFT_FLUSH_S:
            effects += self.flush(now, soft=True)
        if self.is_out or self.deadline() is None:
            return effects
        if self._wants_acks and now >= self._acks.timer:
            effects += self._ack(now)
        if now >= self._last_sent + self._keep_alive:
            effects += self._give(Ping(), now)
        return effects

    @property
    def _wants_acks(self) -> bool:
        if self._utterances.live or self._acks.owed:
            return True
        if self._max_lead is None or not self._utterances.finished:
            return False
        last = self._utterances.finished[-1]  # the server wants to know until all of it was heard
        return not (last.cancelled or last.heard_all or last.is_past)

    @property
    def _awaits_speech(self) -> bool:
        """Whether the server has something to say, and nothing here keeps it from it."""
        if self._paused or self._acks.holds_back:
            return False
        first = next((entry for entry in self._utterances.live.values() if entry.ended or entry.cancelled), None)
        if first is None or first.cancelled or self._max_lead is None:
            return first is not None
        if self._utterances.being_heard(first.number) is not None:
            return False
        return 2 * (first.received - first.played) <= self._max_lead  # with more it may wait for the listener

    # ---- inside ----

    def _heard(self, now: float, message: s.ServerMessage | None = None) -> list[Effect]:
        """The connection that carries the session spoke. After an outage that alone proves one direction: what was on
        its way comes, while nothing gets through from here yet. So it is asked, and another one may still be quicker.
        """
        self._watchdog.heard(now)
        if not self.is_out:
            return []
        if isinstance(message, s.Pong) and message.id == self._probe:
            return self._wake(now)
        if self._probed:
            return []
        self._probed = True
        self._probe += 1
        return [Send(Ping(self._probe))]

    def _with_acks(self, effects: list[Effect]) -> list[Effect]:
        """Nothing is acked on a connection that may not hear, while another one asks to go on from less."""
        if not self.is_out:
            return effects
        return [each for each in effects if not (isinstance(each, Send) and isinstance(each.message, Ack))]

    def _progress(self) -> None:
        """Something new came."""
        self._fresh = False
        self._reconnecting.progress()

    def _take(self, message: s.ServerMessage, now: float) -> list[Effect]:
        match message:
            case s.SeqAck():
                before = self.room
                self.window.ack(message)
                effects = self._give_backlog(now)
                return [*effects, RoomGrew()] if self.room > before else effects
            case s.Heartbeat() | s.Pong():
                return []
            case s.SegmentBegin() | s.Timing() | s.SegmentEnd() | s.ModeChange() | s.Cancelled() | s.Done():
                taken = self._receiver.event(message, now)
                if taken:
                    self._progress()
                    if isinstance(message, s.SegmentEnd | s.Done):
                        self._futile = 0
                return taken or []
            case s.GoAway():
                self.going_away = True
                return []
            case s.Busy():
                raise Busy(message.retry_after_ms, message.reason, message.message)
            case s.Error():
                raise ServerError(message.code, message.message, message.field, message.retryable)
            case _:
                raise ServerMisbehaved(f"the server sent `{message.type}` where it is not allowed")
