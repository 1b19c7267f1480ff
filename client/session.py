"""The client's side of a session, without I/O: messages, frames and the time go in, effects come out.

The shell (`client.shell`) executes the effects in order and calls `tick` when `deadline()` has passed. Nothing
here knows of sockets, tasks or clocks, so a test can play any schedule at once.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from client.acks import AckSchedule
from client.effects import Deliver, Effect, Failed, Finished, RoomGrew, Send
from client.errors import Busy, ClientError, ServerError, ServerLost, ServerMisbehaved
from client.items import Audio, Item, audio_item
from client.sending import SendWindow
from client.statistics import UtteranceStatistics
from client.timeline import Timeline
from client.tracking import Tracked
from client.watchdog import LATE_TICK_S, Watchdog
from protocol import limits
from protocol import server_messages as s
from protocol.client_messages import Ack, Cancel, End, Flush, Numbered, Pause, Ping, Silence, Start, Text, Unpause
from protocol.errors import ProtocolError
from protocol.frames import AudioFrame

SOFT_FLUSH_S: Final = 0.4  # a writer who pauses this long has probably finished a sentence (docs/protocol.md, "Text")
QUEUE_BYTES: Final = 1_048_576  # held for slow consumers, per session, before acks stop; 22 s of 24 kHz PCM
EVENT_COST: Final = 256  # bytes one event counts for in that queue
MAX_FRAME_S: Final = limits.MAX_SILENCE_MS // 1_000  # no frame is longer than the longest silence
REMEMBERED: Final = 64  # finished utterances whose consumers may still report


class SessionState:
    """State from `opened` on. Times are seconds of one monotonic clock."""

    def __init__(self, opened: s.Opened, now: float, *, rtt_s: float = 0.0, queue_bytes: int = QUEUE_BYTES) -> None:
        bounds = opened.limits
        self.opened = opened
        self.generation = opened.generation
        self.pre_skip = opened.pre_skip
        self.sample_rate = _positive(opened.config, "sample_rate", 24_000)
        self.window = SendWindow(_positive(bounds, "text_window_chars", limits.TEXT_WINDOW_CHARS))
        self.max_text_chars = _positive(bounds, "text_chars", limits.MAX_TEXT_CHARS)
        self.max_queued = _positive(bounds, "queued_utterances", limits.MAX_QUEUED_UTTERANCES)
        self.going_away: s.GoAway | None = None
        self.failure: ClientError | None = None
        self._last_event = 0
        self._live: dict[int, Tracked] = {}  # started and not finished, in order
        self._finished: deque[Tracked] = deque(maxlen=REMEMBERED)
        self._newest = 0  # highest utterance number started
        unacked_bytes = _positive(bounds, "unacked_bytes", limits.MAX_UNACKED_BYTES)
        self._acks = AckSchedule(queue_bytes, now, min(limits.ACK_BYTES, unacked_bytes // 4))
        self._watchdog = Watchdog(now, rtt_s)
        self._last_sent = now
        self._paused = False
        self._last_input: float | None = None  # when text came that no flush followed
        lead_ms = opened.config.get("max_lead_ms")
        self._max_lead = (
            None if lead_ms is None else _positive(opened.config, "max_lead_ms", 0) * self.sample_rate // 1_000
        )
        self._keep_alive = _positive(bounds, "idle_timeout_ms", 60_000) / 3_000

    # ---- sending ----

    @property
    def unfinished(self) -> int:
        """Utterances started and not finished."""
        return len(self._live)

    def start(self, message: Start, now: float) -> Send:
        """Begins the next utterance; `seq` and `utterance` of the message are filled in."""
        self._newest = number = self._newest + 1
        if not self._live:
            self._watchdog.begin(now)
        statistics = UtteranceStatistics(self.sample_rate, self.pre_skip, now)
        self._live[number] = Tracked(number, Timeline(number, self.pre_skip), statistics, self.pre_skip)
        return self._numbered(replace(message, utterance=number), now)

    def text(self, text: str, now: float) -> Send:
        """Text of the newest utterance, at most `window.room` and `max_text_chars` characters."""
        if (utterance := self._live.get(self._newest)) is not None:
            utterance.statistics.wrote(len(text), now)
        send = self._numbered(Text(0, text), now)
        self._last_input = now
        return send

    def flush(self, now: float, *, soft: bool = False) -> Send:
        """Speak what came so far."""
        return self._numbered(Flush(0, soft), now)

    def silence(self, ms: int, now: float) -> Send:
        """Speak what came so far, then `ms` of silence. Takes `SILENCE_CHARS` of `window.room`."""
        return self._numbered(Silence(0, ms), now)

    def end(self, now: float) -> Send:
        """No more text for the newest utterance."""
        if (utterance := self._live.get(self._newest)) is not None:
            utterance.ended = True
        return self._numbered(End(0), now)

    def cancel(self, utterance: int, played_sample: int | None, now: float) -> list[Effect]:
        """Stop an utterance. From here on no audio of it is delivered; `Finished` follows once the server confirms.

        `played_sample` None: as far as its player told, or its consumer took it. Without effects there is nothing to
        stop. One that is complete here but still being played is live again: the server too holds it unfinished.
        """
        entry = self._find(utterance)
        if entry is None or entry.cancelled:
            return []
        if utterance not in self._live:
            if self._max_lead is None or entry.heard_all:
                return []
            self._finished.remove(entry)
            if not self._live:
                self._watchdog.begin(now)
            self._live[utterance] = entry
        entry.cancelled = True
        pending = self._last_input if utterance != self._newest else None
        played = entry.played if played_sample is None else played_sample
        send = self._numbered(Cancel(0, utterance, played), now)
        self._last_input = pending
        return [send]

    def pause(self, paused: bool, now: float) -> Send:
        """Stop or go on sending audio."""
        self._paused = paused
        return self._numbered(Pause(0) if paused else Unpause(0), now)

    def _numbered(self, message: Numbered, now: float) -> Send:
        if not isinstance(message, Pause | Unpause):
            self._last_input = None
        self._last_sent = now
        self._watchdog.step(now)
        return Send(self.window.number(message))

    # ---- receiving ----

    def feed_message(self, message: s.ServerMessage, now: float) -> list[Effect]:
        """Takes one message of the server."""
        self._watchdog.heard(now)
        if not isinstance(message, s.Heartbeat | s.Pong):
            self._watchdog.step(now)
        try:
            return self._take(message, now)
        except ClientError as error:
            return self._fail(error)

    def feed_frame(self, frame: AudioFrame, now: float) -> list[Effect]:
        """Takes one audio frame."""
        self._watchdog.heard(now)
        self._watchdog.step(now)
        try:
            return self._take_audio(frame, now)
        except ClientError as error:
            return self._fail(error)

    def bad_message(self, error: ProtocolError) -> list[Effect]:
        """The server sent something that does not decode."""
        return self._fail(ServerMisbehaved(f"the server sent what this client does not understand: {error.message}"))

    def lost(self, close_code: int | None, reason: str) -> list[Effect]:
        """The connection is gone."""
        return self._fail(ServerLost.closed(close_code, reason, going_away=self.going_away is not None))

    def broken(self, error: BaseException) -> list[Effect]:
        """This client itself failed: a bug. Nobody may wait for ever because of it."""
        return self._fail(ClientError(f"the client failed: {error!r}; please report this"))

    def close(self) -> None:
        """The program closes the session."""
        self._fail(ServerLost("the session was closed"))

    def consumed(self, utterance: int, end_sample: int, cost: int, now: float) -> list[Effect]:
        """The consumer took an item of this cost: audio up to `end_sample`, or an event (0)."""
        heard_all_now = False
        if end_sample and (entry := self._find(utterance)) is not None:
            before = entry.heard_all
            entry.consumed_sample = max(entry.consumed_sample, end_sample)
            heard_all_now = entry.heard_all and not before and self._max_lead is not None
        self._watchdog.step(now)
        due = self._acks.taken(cost)
        return [self._ack(now)] if due or heard_all_now else []

    def played(self, utterance: int, sample: int, buffered_ms: int, stalls: int, now: float) -> list[Effect]:
        """What a player reports, in samples of the utterance's timeline; the next ack carries it, the last at once."""
        if (entry := self._find(utterance)) is None or self.failure is not None:
            return []
        if sample != entry.player_sample:
            self._watchdog.step(now)
        entry.player_sample, entry.buffered_ms, entry.stalls = sample, buffered_ms, stalls
        return [self._ack(now)] if entry.heard_all else []

    # ---- time ----

    def deadline(self) -> float | None:
        """When `tick` must be called; None once the session is over."""
        if self.failure is not None:
            return None
        due = self._last_sent + self._keep_alive
        if self._live:
            due = min(due, self._watchdog.deadline(awaits_speech=self._awaits_speech))
        if self._wants_acks:
            due = min(due, self._acks.timer)
        if self._last_input is not None:
            due = min(due, self._last_input + SOFT_FLUSH_S)
        return due

    def tick(self, now: float, due: float) -> list[Effect]:
        """Does what is due at `now`; `due` is the deadline that was waited for."""
        if self.failure is not None:
            return []
        if now - due > LATE_TICK_S:
            self._watchdog.slept(now)
        if self._live and (lost := self._watchdog.verdict(now, awaits_speech=self._awaits_speech)) is not None:
            return self._fail(lost)
        effects: list[Effect] = []
        if self._last_input is not None and now >= self._last_input + SOFT_FLUSH_S:
            effects.append(self.flush(now, soft=True))
        if self._wants_acks and now >= self._acks.timer:
            effects.append(self._ack(now))
        if now >= self._last_sent + self._keep_alive:
            self._last_sent = now
            effects.append(Send(Ping()))
        return effects

    @property
    def _wants_acks(self) -> bool:
        if self._live or self._acks.owed:
            return True
        if self._max_lead is None or not self._finished:
            return False
        last = self._finished[-1]  # the server wants to know until all of it was heard
        return not (last.cancelled or last.heard_all)

    @property
    def _awaits_speech(self) -> bool:
        """Whether the server has something to say, and nothing here keeps it from it."""
        if self._paused or self._acks.holds_back:
            return False
        first = next((entry for entry in self._live.values() if entry.ended or entry.cancelled), None)
        if first is None or first.cancelled or self._max_lead is None:
            return first is not None
        if self._being_heard(first.number) is not None:
            return False
        unheard = first.timeline.next_sample - first.played
        return 2 * unheard <= self._max_lead  # with more it may wait for the listener

    # ---- inside ----

    def _take(self, message: s.ServerMessage, now: float) -> list[Effect]:
        match message:
            case s.SeqAck():
                before = self.window.room
                self.window.ack(message)
                return [RoomGrew()] if self.window.room > before else []
            case s.Heartbeat() | s.Pong():
                return []
            case s.SegmentBegin() | s.Timing() | s.SegmentEnd() | s.ModeChange() | s.Cancelled() | s.Done():
                return self._take_event(message, now)
            case s.GoAway():
                self.going_away = message
                return []
            case s.Busy():
                raise Busy(message.retry_after_ms)
            case s.Error():
                raise ServerError(message.code, message.message, message.field, message.retryable)
            case _:
                raise ServerMisbehaved(f"the server sent `{message.type}` where it is not allowed")

    def _take_event(self, event: s.Event, now: float) -> list[Effect]:
        if event.event <= self._last_event:
            return []
        if event.event != self._last_event + 1:
            raise ServerMisbehaved(f"event {event.event} came after event {self._last_event}: one is missing")
        self._last_event = event.event
        entry = self._live.get(event.utterance)
        if entry is None:
            if not 1 <= event.utterance <= self._newest:
                raise ServerMisbehaved(f"an event names utterance {event.utterance}, which was never started")
            return []
        match event:
            case s.SegmentBegin():
                entry.timeline.begin(event)
                entry.statistics.segment_begin(event)
            case s.SegmentEnd():
                entry.timeline.end(event)
            case s.Done():
                entry.timeline.done(event)
                if entry.cancelled and self._max_lead is not None and entry.played < event.samples:
                    return []  # it crossed the cancel; the server too holds it unheard and goes on with `cancelled`
                return self._finish(entry, event, event.samples, now)
            case s.Cancelled():
                entry.cancelled = True
                return self._finish(entry, event, event.sample, now)
            case _:
                pass
        if entry.cancelled:
            return []
        self._acks.arrived(entry.number, entry.timeline.next_sample, EVENT_COST)
        return [Deliver(entry.number, event, EVENT_COST)]

    def _take_audio(self, frame: AudioFrame, now: float) -> list[Effect]:
        if frame.generation < self.generation:
            return []  # an old connection's last words
        if frame.generation > self.generation or not 1 <= frame.utterance <= self._newest:
            name = f"generation {frame.generation}, utterance {frame.utterance}"
            raise ServerMisbehaved(f"a frame names {name}, which never began")
        entry = self._live.get(frame.utterance)
        if entry is None:
            return []  # late audio of a cancelled utterance
        if frame.count > MAX_FRAME_S * self.sample_rate:
            raise ServerMisbehaved(f"one frame has {frame.count} samples: more than {MAX_FRAME_S} s")
        skip = entry.timeline.audio(frame)
        if skip >= frame.count:
            return []
        entry.statistics.audio(frame, now)
        effects: list[Effect] = []
        item = audio_item(frame, skip)
        cost = len(item.pcm) or len(frame.payload)
        self._acks.arrived(entry.number, frame.end_sample, cost)
        if entry.cancelled:
            self._acks.taken(cost)
        else:
            effects.append(Deliver(entry.number, item, cost))
        if self._acks.due_on_arrival(now):
            effects.append(self._ack(now))
        return effects

    def _finish(self, entry: Tracked, event: Item, samples: int, now: float) -> list[Effect]:
        assert not isinstance(event, Audio)
        del self._live[entry.number]
        self._finished.append(entry)
        entry.statistics.finish(event, samples, entry.timeline, now)
        self._acks.arrived(entry.number, entry.timeline.next_sample, EVENT_COST)
        return [Deliver(entry.number, event, EVENT_COST), Finished(entry.number), self._ack(now)]

    def _ack(self, now: float) -> Send:
        at = self._acks.position
        self._acks.sent(now)
        self._last_sent = now
        entry, sample = self._find(at.utterance), at.sample
        if self._max_lead is not None and (heard := self._being_heard(at.utterance)) is not None:
            entry, sample = heard, heard.timeline.next_sample  # the server paces itself by what is played
        if entry is None:
            return Send(Ack(self.generation, next(iter(self._live), at.utterance), 0, event=self._last_event))
        played = min(entry.played, sample)
        ahead_ms = (sample - played) * 1_000 // self.sample_rate
        buffered_ms = ahead_ms if entry.buffered_ms is None else entry.buffered_ms
        return Send(Ack(self.generation, entry.number, sample, played, buffered_ms, entry.stalls, self._last_event))

    def _being_heard(self, before: int) -> Tracked | None:
        """The first utterance before this one that was not played to its end."""
        for entry in self._finished:
            if entry.number < before and not (entry.cancelled or entry.heard_all):
                return entry
        return None

    def _find(self, utterance: int) -> Tracked | None:
        entry = self._live.get(utterance)
        return entry or next((old for old in self._finished if old.number == utterance), None)

    def statistics(self, utterance: int) -> UtteranceStatistics | None:
        """Measurements of an utterance that is unfinished or finished lately."""
        entry = self._find(utterance)
        return entry.statistics if entry else None

    def _fail(self, error: ClientError) -> list[Effect]:
        if self.failure is not None:
            return []
        self.failure = error
        return [Failed(error)]


def _positive(values: Mapping[str, Any], name: str, default: int) -> int:
    """A bound that the server states. Raises ServerMisbehaved where it is no positive whole number."""
    value = values.get(name, default)
    if not isinstance(value, int) or value <= 0:
        raise ServerMisbehaved(f"the server's {name} must be a positive whole number, not {value!r}")
    return value
