"""The session machine: decides what one client hears and when, and does nothing itself.

A shell feeds it messages (`receive`), rendered audio (`place`, `complete`) and the time (`on_time`), and asks it what
to render (`next_work`) and what to send (`next_outgoing`). Times are seconds on the shell's monotonic clock. Every
method may raise ProtocolError: the session is then over, and the shell says so to the client and closes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.codec import encode
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import AudioFrame
from server.audio.wire import CodedAudio
from server.engines.base import Capabilities, EngineError, RenderPlan
from server.engines.rendering import RenderedChunk
from server.session.config import SessionConfig, configure
from server.session.flow import Flow
from server.session.outbox import Outbox
from server.session.states import State, check_allowed
from server.session.utterance import Utterance, speech_of
from server.session.work import FinishUtterance, SpeakSegment, Work
from server.text.segmenter import Segmenter, SegmentLimits

COLLECTING_SLACK_S: Final = 30.0  # urgency of a client without `max_lead_ms`: behind everyone who listens
SEND_ROOM_AFTER: Final = limits.TEXT_WINDOW_CHARS // 4  # tell a waiting writer once this much room came back


@dataclass(frozen=True, slots=True)
class Policy:
    """The server's side of a session. Times in seconds."""

    default_voice: str
    open_timeout_s: float = 10.0
    idle_timeout_s: float = 300.0
    stall_timeout_s: float = 60.0
    read_ahead_ms: int = 10_000  # audio rendered and not yet sent


class Session:
    """See the module text."""

    def __init__(self, policy: Policy, capabilities: Capabilities, *, session_id: str, token: str, now: float) -> None:
        self.id = session_id
        self.state = State.AWAITING_OPEN
        self.generation = 1
        self.config: SessionConfig | None = None
        self.utterances = 0  # finished or cancelled
        self.samples_sent = 0
        self.chars = 0
        self.first_audio_ms: float | None = None  # of the session's first utterance, see `pop_first_audio`
        self._first_audio: float | None = None
        self._policy = policy
        self._capabilities = capabilities
        self._token = token
        self._now = now
        self._opened_at = now
        self._heard_from_at = now
        self._sent_at = now
        self._acked_at = now
        self._seq = 0
        self._seq_acked = 0
        self._room_told = limits.TEXT_WINDOW_CHARS
        self._utterance_seen = 0
        self._event = 0
        self._paused = False
        self._writing: Utterance | None = None
        self._speaking: deque[Utterance] = deque()  # not fully rendered; the first is in hand
        self._sending: dict[int, Utterance] = {}  # not fully sent or not fully heard
        self._work: Work | None = None
        self._outbox = Outbox()
        self._flow = Flow(None)

    # ---- messages in ----

    def receive(self, message: c.ClientMessage, now: float) -> None:
        """Take a client's message."""
        self._now = self._heard_from_at = now
        if isinstance(message, c.NUMBERED):
            if message.seq <= self._seq:
                self._seq_acked = min(self._seq_acked, message.seq - 1)  # a repeat: ack it again
                return
            if message.seq != self._seq + 1:
                raise ProtocolError(
                    ErrorCode.SEQUENCE,
                    f"seq {message.seq} follows {self._seq}: it must grow by one",
                    f"{message.type}.seq",
                )
        check_allowed(self.state, message)
        match message:
            case c.Ping():
                self._outbox.answer(s.Pong(message.id))
            case c.Open():
                self._open(message)
            case c.Resume():
                self._outbox.answer(s.ResumeFailed("unknown"))
            case c.Ack():
                self._ack(message)
            case _:
                self._numbered(message)
                self._seq = message.seq

    def _open(self, message: c.Open) -> None:
        self.config = configure(message, self._capabilities, self._policy.default_voice)
        lead = message.max_lead_ms
        self._flow = Flow(None if lead is None else lead * message.sample_rate // 1000)
        self.state = State.IDLE
        self._acked_at = self._now
        self._outbox.answer(
            s.Opened(
                self.id,
                self._token,
                epoch=0,
                generation=self.generation,
                config=self.config.echo(),
                limits=self._limits(),
                pre_skip=self.config.pre_skip,
            )
        )

    def _limits(self) -> dict[str, Any]:
        return {
            "message_bytes": limits.MAX_MESSAGE_BYTES,
            "text_chars": limits.MAX_TEXT_CHARS,
            "utterance_chars": limits.MAX_UTTERANCE_CHARS,
            "text_window_chars": limits.TEXT_WINDOW_CHARS,
            "queued_utterances": limits.MAX_QUEUED_UTTERANCES,
            "silence_ms": limits.MAX_SILENCE_MS,
            "unacked_bytes": limits.MAX_UNACKED_BYTES,
            "idle_timeout_ms": round(self._policy.idle_timeout_s * 1000),
            "stall_timeout_ms": round(self._policy.stall_timeout_s * 1000),
            "resume_ttl_ms": 0,  # a dropped session cannot be resumed
        }

    def _numbered(self, message: c.Numbered) -> None:
        match message:
            case c.Start():
                self._start(message)
            case c.Text():
                self._text(message)
            case c.Silence():
                self._need_room(1, "silence")
                self._written().add_silence(message.ms)
            case c.Flush():
                self._written().segmenter.flush(soft=message.soft)
            case c.End():
                self._written().end()
                self._writing = None
                self.state = State.IDLE
            case c.Cancel():
                self._cancel(message)
            case c.Pause():
                self._paused = True
            case c.Unpause():
                self._paused = False
                self._acked_at = self._now

    def _start(self, message: c.Start) -> None:
        assert self.config is not None
        if message.utterance <= self._utterance_seen:
            raise ProtocolError(
                ErrorCode.BAD_MESSAGE,
                f"start.utterance must be greater than {self._utterance_seen}, the one before",
                "start.utterance",
            )
        if len(self._sending) >= limits.MAX_QUEUED_UTTERANCES:
            self._settle()
        if len(self._sending) >= limits.MAX_QUEUED_UTTERANCES:
            raise ProtocolError(
                ErrorCode.QUEUE_FULL, f"at most {limits.MAX_QUEUED_UTTERANCES} utterances may be unfinished", "start"
            )
        config = self.config
        config.check_overrides(message, self._capabilities)
        plan = RenderPlan(mode="block" if config.mode == "block" else "stream")
        speech = speech_of(config.open, message, config.voice, plan)
        language = None if config.open.language == "auto" else config.open.language
        segmenter = Segmenter(
            language=language,
            limits=SegmentLimits(
                max_tokens=self._capabilities.max_tokens, count_tokens=self._capabilities.count_tokens
            ),
        )
        utterance = Utterance(message.utterance, speech, segmenter, self._now)
        self._utterance_seen = message.utterance
        self._writing = utterance
        self._speaking.append(utterance)
        self._sending[utterance.id] = utterance
        self.state = State.WRITING

    def _text(self, message: c.Text) -> None:
        utterance = self._written()
        size = len(message.text)
        if utterance.chars + size > limits.MAX_UTTERANCE_CHARS:
            raise ProtocolError(
                ErrorCode.TEXT_LIMIT, f"an utterance has at most {limits.MAX_UTTERANCE_CHARS} characters", "text.text"
            )
        self._need_room(size, "text.text")
        utterance.add(message.text, self._now)
        self.chars += size

    def _need_room(self, size: int, field: str) -> None:
        """A silence takes the room of one character."""
        if size > self.room:
            raise ProtocolError(
                ErrorCode.TEXT_WINDOW,
                f"{size} characters came, there is room for {self.room}: wait for `seq_ack.room`",
                field,
            )

    def _written(self) -> Utterance:
        if self._writing is None:
            raise RuntimeError("the state table let a text message through")
        return self._writing

    @property
    def room(self) -> int:
        """Characters (a silence counts as one) that may still be sent before some are spoken."""
        return limits.TEXT_WINDOW_CHARS - sum(utterance.unspoken for utterance in self._speaking)

    def _cancel(self, message: c.Cancel) -> None:
        assert self.config is not None
        pre_skip = self.config.pre_skip
        targets = [u for u in self._sending.values() if message.utterance in (None, u.id)]
        played = message.played_sample
        answers: list[s.Cancelled] = []
        for utterance in targets:
            self._drop(utterance)
            sample = max(0, min(utterance.sent - pre_skip, utterance.samples))
            if played is None:  # then the acks say what was heard, and a client that only collects heard all it got
                played = sample if self._flow.max_lead is None else utterance.heard
            answers.append(s.Cancelled(0, utterance.id, sample, utterance.heard_text_end(min(played, sample))))
            played = 0  # what is queued behind it was not heard at all
        self._outbox.tell_cancelled(answers)

    def _drop(self, utterance: Utterance) -> None:
        """Forget everything about an utterance that is not sent yet."""
        if self._work is not None and self._work.utterance == utterance.id:
            self._work = None
        if utterance is self._writing:
            self._writing = None
            self.state = State.IDLE
        if utterance in self._speaking:
            self._speaking.remove(utterance)
        del self._sending[utterance.id]
        self._outbox.cancel(utterance.id)
        self._flow.drop(utterance.id)
        self.utterances += not utterance.done_sent

    def _ack(self, ack: c.Ack) -> None:
        if ack.generation != self.generation:
            return  # of a connection that is gone
        if ack.event > self._event:
            raise ProtocolError(
                ErrorCode.BAD_ACK, f"event {ack.event} was not sent, the last is {self._event}", "ack.event"
            )
        if ack.utterance > self._utterance_seen:
            raise ProtocolError(ErrorCode.BAD_ACK, f"utterance {ack.utterance} was not started", "ack.utterance")
        utterance = self._sending.get(ack.utterance)
        if utterance is None:
            return  # cancelled meanwhile, or heard before
        if ack.next_sample > utterance.sent:
            raise ProtocolError(
                ErrorCode.BAD_ACK,
                f"sample {ack.next_sample} was not sent, the end is {utterance.sent}",
                "ack.next_sample",
            )
        if ack.played_sample > ack.next_sample:
            raise ProtocolError(ErrorCode.BAD_ACK, "more was played than received", "ack.played_sample")
        self._acked_at = self._now
        self._flow.acked(ack.utterance, ack.next_sample, ack.played_sample)
        utterance.played(ack.played_sample)
        utterance.acked = max(utterance.acked, ack.next_sample)
        utterance.heard = max(utterance.heard, ack.played_sample)
        collects = self._flow.max_lead is None
        self._settle(before=ack.utterance if ack.played_sample or collects else 0)

    def _settle(self, before: int = 0) -> None:
        """Forget utterances that are sent and heard, or followed by one that is being heard."""
        follows_play = self._flow.max_lead is not None
        for utterance in list(self._sending.values()):
            if not utterance.done_sent:
                break
            heard = utterance.heard >= utterance.samples if follows_play else utterance.acked >= utterance.sent
            if heard or utterance.id < before:
                del self._sending[utterance.id]
                self._flow.heard(utterance.id)

    # ---- rendering ----

    def next_work(self, now: float) -> Work | None:
        """What to render next; None while there is nothing to say, no room, or work in hand already."""
        self._now = now
        if self._work is not None or not self._speaking or not self.wants_audio:
            return None
        utterance = self._speaking[0]
        self._work = utterance.next_work()
        if utterance.first_work_at is None and isinstance(self._work, SpeakSegment):
            utterance.first_work_at = now
        return self._work

    @property
    def wants_audio(self) -> bool:
        """Whether rendered audio may be added: the rest waits in the engine, not in memory."""
        if self.config is None or self._outbox.full_of_events:
            return False
        return self._outbox.samples * 1000 < self._policy.read_ahead_ms * self.config.open.sample_rate

    @property
    def slack_s(self) -> float:
        """Seconds until the listener runs dry, as far as known; a client that only collects audio is in no hurry."""
        if self.config is None:
            return 0.0
        if self._flow.max_lead is None:
            return COLLECTING_SLACK_S
        return max(0, self._outbox.samples + self._flow.lead) / self.config.open.sample_rate

    def is_current(self, work: Work) -> bool:
        """Whether this work is still wanted; False after a cancel."""
        return work is self._work

    def place(self, work: Work, chunk: RenderedChunk, coded: Sequence[CodedAudio], now: float) -> None:
        """Put rendered audio on the timeline, with the frames it was coded into (later audio may complete a frame)."""
        if not self.is_current(work):
            return
        self._now = now
        utterance = self._speaking[0]
        self._begin_segment(utterance)
        record_id = utterance.segments
        words = utterance.place(chunk)
        if words and self.config is not None and self.config.open.timings:
            self._outbox.add(s.Timing(0, utterance.id, record_id, words))
        self._add_frames(utterance, coded)

    def complete(self, work: Work, coded: Sequence[CodedAudio], now: float) -> None:
        """The work is finished."""
        if not self.is_current(work):
            return
        self._now = now
        self._work = None
        utterance = self._speaking[0]
        self._add_frames(utterance, coded)
        if isinstance(work, FinishUtterance):
            self._speaking.popleft()
            self._outbox.add(s.Done(0, utterance.id, utterance.samples, utterance.digest, "", {}))
            return
        self._begin_segment(utterance)
        record = utterance.close_segment()
        self._outbox.add(s.SegmentEnd(0, utterance.id, record.id, record.samples, record.digest.hexdigest()))

    @property
    def answers_full(self) -> bool:
        """Whether so many answers wait to be sent that no more messages should be read."""
        return self._outbox.full_of_answers

    def failed(self, work: Work, error: Exception) -> ProtocolError:
        """The error that ends the session because `work` could not be done."""
        record = self._speaking[0].record if self.is_current(work) and self._speaking else None
        where = f"text [{record.start}, {record.end}) of utterance {work.utterance}: " if record else ""
        retryable = error.transient if isinstance(error, EngineError) else True
        return ProtocolError(ErrorCode.ENGINE_FAILED, f"{where}{error}"[:2_000], retryable=retryable)

    def _begin_segment(self, utterance: Utterance) -> None:
        record = utterance.record
        if record is not None and not record.begun:
            record.begun = True
            self._outbox.add(
                s.SegmentBegin(
                    0, utterance.id, record.id, record.start, record.end, record.first_sample, record.cause, record.kind
                )
            )

    def _add_frames(self, utterance: Utterance, coded: Sequence[CodedAudio]) -> None:
        assert self.config is not None
        for audio in coded:
            self._outbox.add(
                AudioFrame(self.config.codec, utterance.id, utterance.coded, audio.count, audio.payload, audio.flags)
            )
            utterance.coded += audio.count

    # ---- messages out ----

    def next_outgoing(self, now: float) -> str | bytes | None:
        """The next message to write, or None while nothing may be sent."""
        self._now = now
        outgoing = self._next_outgoing()
        if outgoing is not None:
            self._sent_at = now
        return outgoing

    def _next_outgoing(self) -> str | bytes | None:
        answer = self._outbox.next_answer()
        if answer is not None:
            return encode(answer)
        room = self.room if self._speaking else limits.TEXT_WINDOW_CHARS
        if self._seq > self._seq_acked or room - self._room_told >= SEND_ROOM_AFTER:
            self._seq_acked, self._room_told = self._seq, room
            return encode(s.SeqAck(self._seq, room))
        head = self._outbox.head
        if head is None:
            return None
        if isinstance(head, AudioFrame) and (self._paused or not self._flow.may_send(head.count, len(head.payload))):
            return None
        self._outbox.take()
        return self._send_frame(head) if isinstance(head, AudioFrame) else self._send_event(head)

    def _send_frame(self, frame: AudioFrame) -> bytes:
        utterance = self._sending[frame.utterance]
        if self._flow.idle:
            self._acked_at = self._now  # an ack is awaited from here on
        if not utterance.sent:
            self._first_audio = self._now - (utterance.first_work_at or self._now)
            if self.first_audio_ms is None:
                self.first_audio_ms = round(self._first_audio * 1000, 1)
        utterance.sent = frame.end_sample
        utterance.wire.update(frame.payload)
        self.samples_sent += frame.count
        self._flow.sent(utterance.id, frame.end_sample, frame.count, len(frame.payload))
        return frame.encode(self.generation)

    def _send_event(self, event: s.Event) -> str:
        self._event += 1
        if isinstance(event, s.Done):
            utterance = self._sending[event.utterance]
            utterance.done_sent = True
            self.utterances += 1
            event = replace(event, wire_digest=utterance.wire.hexdigest(), statistics=utterance.statistics(self._now))
            if utterance.sent == 0:
                del self._sending[utterance.id]  # nothing to hear
        return encode(replace(event, event=self._event))

    def pop_first_audio(self) -> float | None:
        """Once per utterance: seconds from the moment its first cut was certain to its first audio handed out."""
        seconds, self._first_audio = self._first_audio, None
        return seconds

    # ---- time ----

    @property
    def unfinished(self) -> bool:
        """Whether an utterance is being written, rendered, sent or acked: only then heartbeats are frequent."""
        return bool(self._speaking) or not self._outbox.empty or not self._flow.idle

    def deadline(self) -> float:
        """When `on_time` must be called next."""
        if self.state is State.AWAITING_OPEN:
            return self._opened_at + self._policy.open_timeout_s
        beat = limits.HEARTBEAT_S if self.unfinished else limits.IDLE_HEARTBEAT_S
        times = [self._sent_at + beat, self._heard_from_at + self._policy.idle_timeout_s]
        if self._stalled():
            times.append(self._acked_at + self._policy.stall_timeout_s)
        flush_at = self._flush_at()
        if flush_at is not None:
            times.append(flush_at)
        return min(times)

    def _stalled(self) -> bool:
        return not (self._flow.idle or self._paused)

    def _flush_at(self) -> float | None:
        """When text that looks complete is spoken although nothing followed; None where a client flushes itself."""
        utterance = self._writing
        delay = self.config.open.max_buffer_delay_ms if self.config else None
        if utterance is None or delay is None or not utterance.segmenter.pending or utterance.clock_flushed:
            return None
        return utterance.last_text_at + delay / 1000

    def on_time(self, now: float) -> None:
        """Do what is due."""
        self._now = now
        if self.state is State.AWAITING_OPEN:
            if now >= self._opened_at + self._policy.open_timeout_s:
                raise ProtocolError(
                    ErrorCode.OPEN_TIMEOUT, f"no `open` within {self._policy.open_timeout_s:g} s of connecting", "open"
                )
            return
        flush_at = self._flush_at()
        if flush_at is not None and now >= flush_at:
            utterance = self._written()
            utterance.segmenter.flush(soft=True)
            utterance.clock_flushed = True  # until more text comes
        if now >= self._heard_from_at + self._policy.idle_timeout_s:
            raise ProtocolError(
                ErrorCode.IDLE_TIMEOUT,
                f"nothing came for {self._policy.idle_timeout_s:g} s; a client that waits sends `ping`",
            )
        if self._stalled() and now >= self._acked_at + self._policy.stall_timeout_s:
            raise ProtocolError(
                ErrorCode.CLIENT_STALLED, f"audio stayed unacked for {self._policy.stall_timeout_s:g} s", "ack"
            )
        beat = limits.HEARTBEAT_S if self.unfinished else limits.IDLE_HEARTBEAT_S
        if now >= self._sent_at + beat and not self._outbox.answers_wait:
            self._outbox.answer(s.Heartbeat(self._event))
