"""The part of a session that speaks to the server: utterances, text, cancels. Pure; see `client.session`."""

from typing import Any, Final

from client.acks import AckSchedule
from client.effects import Effect, Failed, Send
from client.errors import ClientError, ServerMisbehaved
from client.line import LineStatistics
from client.receiving import Receiver
from client.reconnecting import Reconnecting
from client.sending import Backlog, SendWindow
from client.statistics import UtteranceStatistics
from client.tracking import Utterances
from client.watchdog import Watchdog
from protocol import limits
from protocol import server_messages as s
from protocol.client_messages import Cancel, ClientMessage, End, Flush, Numbered, Pause, Silence, Start, Text, Unpause

SOFT_FLUSH_S: Final = 0.4  # a writer who pauses this long has probably finished a sentence (docs/protocol.md, "Text")


class Writing:
    """Every method returns what is to be done. While no connection carries the session that is nothing: what was said
    waits in `window.unacked`.
    """

    def __init__(
        self, opened: s.Opened, reconnecting: Reconnecting, now: float, rtt_s: float, queue_bytes: int
    ) -> None:
        self.opened = opened
        self.sample_rate = _positive(opened, "config", "sample_rate", 24_000)
        self.window = SendWindow(0)
        self.failure: ClientError | None = None
        mode = opened.config.get("mode")
        self.line = LineStatistics("block" if mode == "block" else "stream", now)
        self._reconnecting = reconnecting
        self._backlog = Backlog()
        self._utterances = Utterances()
        unacked_bytes = _positive(opened, "limits", "unacked_bytes", limits.MAX_UNACKED_BYTES)
        self._acks = AckSchedule(queue_bytes, now, min(limits.ACK_BYTES, unacked_bytes // 4))
        lead_ms = opened.config.get("max_lead_ms")
        self._max_lead = (
            None if lead_ms is None else _positive(opened, "config", "max_lead_ms", 0) * self.sample_rate // 1_000
        )
        self._receiver = Receiver(self._utterances, self._acks, self.line, self.sample_rate, self._max_lead)
        self._watchdog = Watchdog(now, rtt_s)
        self._last_sent = now
        self._sent_seq = 0  # numbered messages up to here were given to the connection that carries the session
        self._paused = False
        self._last_input: float | None = None  # when text came that no flush followed
        self._enter(opened)

    def _enter(self, opened: s.Opened) -> None:
        """From here on this session holds. Raises ServerMisbehaved where its bounds make no sense."""
        window_chars = _positive(opened, "limits", "text_window_chars", limits.TEXT_WINDOW_CHARS)
        self.max_text_chars = _positive(opened, "limits", "text_chars", limits.MAX_TEXT_CHARS)
        self.max_queued = _positive(opened, "limits", "queued_utterances", limits.MAX_QUEUED_UTTERANCES)
        self._keep_alive = _positive(opened, "limits", "idle_timeout_ms", 60_000) / 3_000
        ttl_ms = opened.limits.get("resume_ttl_ms", 0)
        self.resume_ttl_s = ttl_ms / 1_000 if isinstance(ttl_ms, int) else 0.0
        self.opened = opened
        self.pre_skip = self._receiver.pre_skip = opened.pre_skip
        self._receiver.generation = opened.generation
        self._token, self._epoch = opened.token, opened.epoch
        self.window = SendWindow(window_chars)
        self._sent_seq = 0

    @property
    def credentials(self) -> tuple[str, str, int, int]:
        """What asks for the session: its name, the token, epoch, generation."""
        return self.opened.session, self._token, self._epoch, self.generation

    @property
    def generation(self) -> int:
        """Of the connection that carries the session."""
        return self._receiver.generation

    @property
    def room(self) -> int:
        """Characters of text that may be written now."""
        return 0 if self._backlog else self.window.room

    @property
    def newest(self) -> int:
        """The number of the utterance begun last; 0: none."""
        return self._utterances.newest

    @property
    def unfinished(self) -> int:
        """Utterances started and not finished."""
        return len(self._utterances.live)

    def statistics(self, utterance: int) -> UtteranceStatistics | None:
        """Measurements of an utterance that is unfinished or finished lately."""
        entry = self._utterances.find(utterance)
        return entry.statistics if entry else None

    def start(self, message: Start, now: float) -> list[Effect]:
        """Begins the next utterance, `newest` from then on; `seq` and `utterance` of the message are filled in."""
        if not self._utterances.live:
            self._watchdog.begin(now)
        statistics = UtteranceStatistics(self.sample_rate, now)
        return self._say(self._utterances.begin(message, statistics, self.pre_skip), now)

    def text(self, text: str, now: float, *, more: bool = False) -> list[Effect]:
        """Text of the newest utterance, at most `room` (ValueError) and `max_text_chars` characters. `more`: the rest
        of it is at hand, so that a pause is none of the writer's.
        """
        if len(text) > self.room:
            raise ValueError(f"{len(text)} characters do not fit in a window of {self.room}")
        if (entry := self._utterances.writing) is not None:
            entry.statistics.wrote(len(text), now)
            entry.transcript.write(text)
        effects = self._say(Text(0, text), now)
        self._last_input = None if more else now
        return effects

    def flush(self, now: float, *, soft: bool = False) -> list[Effect]:
        """Speak what came so far."""
        if (entry := self._utterances.writing) is not None:
            entry.transcript.flush(soft)
        return self._say(Flush(0, soft), now)

    def silence(self, ms: int, now: float) -> list[Effect]:
        """Speak what came so far, then `ms` of silence. Takes `SILENCE_CHARS` of `room` (ValueError)."""
        if (entry := self._utterances.writing) is not None:
            entry.transcript.silence(ms)
        return self._say(Silence(0, ms), now)

    def end(self, now: float) -> list[Effect]:
        """No more text for the newest utterance."""
        if (entry := self._utterances.writing) is not None:
            entry.transcript.ended = True
        return self._say(End(0), now)

    def cancel(self, utterance: int, played_sample: int | None, now: float) -> list[Effect] | None:
        """Stop an utterance. From here on no audio of it is delivered; `Finished` follows once the server confirms.

        `played_sample` None: as far as its player told, or its consumer took it. None: there is nothing to stop. One
        that is complete here but still being played is live again: the server too holds it unfinished.
        """
        entry = self._utterances.find(utterance)
        if entry is None or entry.cancelled:
            return None
        if utterance not in self._utterances.live:
            if self._max_lead is None or entry.heard_all or entry.is_past:
                return None
            self._utterances.revive(entry)
            if self.unfinished == 1:
                self._watchdog.begin(now)
        entry.cancelled = True
        entry.cancel_sample = entry.played if played_sample is None else played_sample
        if utterance == self.newest:
            self._last_input = None
        if self._backlog.drop(utterance):
            return self._receiver.cancelled_here(entry, now)
        played_here = max(0, entry.cancel_sample - entry.base_samples)
        return self._number(Cancel(0, utterance, played_here), now)

    def pause(self, paused: bool, now: float) -> list[Effect]:
        """Stop or go on sending audio."""
        self._paused = paused
        return self._number(Pause(0) if paused else Unpause(0), now)

    # ---- inside ----

    def _say(self, message: Numbered, now: float) -> list[Effect]:
        """What keeps its place among all that is said."""
        self._last_input = None
        if self._backlog:
            self._backlog.add(self.newest, [message])
            return []
        return self._number(message, now)

    def _number(self, message: Numbered, now: float) -> list[Effect]:
        self._watchdog.step(now)
        return self._give(self.window.number(message), now)

    def _give(self, message: ClientMessage, now: float) -> list[Effect]:
        if self._reconnecting.searching:
            return []
        self._last_sent = now
        if isinstance(message, Numbered):
            self._sent_seq = message.seq
        return [Send(message)]

    def _give_waiting(self, now: float) -> list[Effect]:
        """Numbered messages that no connection was given yet."""
        waiting = [message for message in self.window.unacked if message.seq > self._sent_seq]
        return [effect for message in waiting for effect in self._give(message, now)]

    def _give_backlog(self, now: float) -> list[Effect]:
        """As much of the backlog as there is room for."""
        return [effect for message in self._backlog.take(self.window) for effect in self._give(message, now)]

    def _ack(self, now: float) -> list[Effect]:
        return self._give(self._receiver.ack(now).message, now)

    def _fail(self, error: ClientError) -> list[Effect]:
        if self.failure is not None:
            return []
        self.failure = error
        return [Failed(error)]


def _positive(opened: s.Opened, part: str, name: str, default: int) -> int:
    """A bound that the server states. Raises ServerMisbehaved where it is no positive whole number."""
    value: Any = (opened.config if part == "config" else opened.limits).get(name, default)
    if not isinstance(value, int) or value <= 0:
        raise ServerMisbehaved(f"the server's {name} must be a positive whole number, not {value!r}")
    return value
