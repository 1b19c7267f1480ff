"""The session machine: decides what one client hears and when, and does nothing itself.

A shell feeds it messages (`receive`), rendered audio (`place`, `complete`) and the time (`on_time`), and asks it what
to render (`next_work`) and what to send (`next_outgoing`). Times are seconds on the shell's monotonic clock. Every
method may raise ProtocolError: the session is then over, and the shell says so to the client and closes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final
from zlib import crc32

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.codec import encode
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import AudioFrame, Codec
from server.audio.wire import CodedAudio, WireCoder
from server.engines.base import Capabilities, EngineError, RenderPlan
from server.engines.rendering import RenderedChunk
from server.link import Mode, Switch
from server.session import journal
from server.session.answers import MAX_ANSWERS, Answers
from server.session.config import SessionConfig, configure
from server.session.delivery import Delivery
from server.session.journal import SessionLog
from server.session.resuming import Restored, ResumeRefused
from server.session.ring import RangeError, Ring
from server.session.states import State, check_allowed
from server.session.utterance import Utterance, speech_of
from server.session.work import FinishUtterance, SpeakSegment, Work
from server.text.segmenter import Segmenter, SegmentLimits

COLLECTING_SLACK_S: Final = 30.0  # urgency of a client without `max_lead_ms`: behind everyone who listens
BITRATE_HEADROOM: Final = 2.0  # in block mode Opus gets smaller where the link carries less than this times its rate
PCM_HEADROOM: Final = 1.3  # format auto falls to Opus where the link carries less than this times PCM
SEND_ROOM_AFTER: Final = limits.TEXT_WINDOW_CHARS // 4  # tell a waiting writer once this much room came back


@dataclass(frozen=True, slots=True)
class Policy:
    """The server's side of a session. Times in seconds."""

    default_voice: str
    open_timeout_s: float = 10.0
    idle_timeout_s: float = 300.0
    stall_timeout_s: float = 60.0
    read_ahead_ms: int = 10_000  # audio rendered and not yet sent
    ring_ms: int = 30_000  # audio rendered and not yet confirmed
    detach_after_s: float = 4.0  # audio unacked and nothing heard for so long: the connection is dead
    resume_ttl_s: float = 120.0  # how long a session without connection is kept; 0: not at all
    resume_idle_ttl_s: float = 10.0  # the same where the client has everything


class Session:
    """See the module text."""

    def __init__(
        self,
        policy: Policy,
        capabilities: Capabilities,
        *,
        session_id: str,
        token: str,
        now: float,
        recorded: bool = False,
        principal: str = "",
    ) -> None:
        self.id = session_id
        self.principal = principal  # whose it is, once that is known
        self.state = State.AWAITING_OPEN
        self.generation = 1
        self.epoch = 0
        self.config: SessionConfig | None = None
        self.attached = True
        self.dead = False  # the connection takes nothing and says nothing: the shell should abort it
        self.utterances = 0  # finished or cancelled
        self.resumes = 0
        self.chars = 0
        self.first_audio_ms: float | None = None  # of the session's first utterance, see `pop_first_audio`
        self.log = SessionLog(recorded)
        self.on_switch: Callable[[Switch], None] | None = None  # told of each change of the mode
        self._first_audio: float | None = None
        self._policy = policy
        self._capabilities = capabilities
        self._token = token
        self._token_hashes = [_hashed(token)]  # the newest, then the one it was given for until the newest was used
        self._now = now
        self._opened_at = now
        self._heard_from_at = now
        self._sent_at = now
        self._acked_at = now
        self._detached_at = now
        self._ack_recorded_at = now
        self._seq = 0
        self._seq_acked = 0
        self._seq_record = 0
        self._answers_after = 0  # `opened` and `resumed` wait for their record, too
        self._room_told = limits.TEXT_WINDOW_CHARS
        self._utterance_seen = 0
        self._paused = False
        self._writing: Utterance | None = None
        self._speaking: deque[Utterance] = deque()  # not fully rendered; the first is in hand
        self._sending: dict[int, Utterance] = {}  # not fully sent or not fully heard
        self._work: Work | None = None
        self._answers = Answers()
        self._delivery = Delivery(now, pinned="stream", max_lead=None, sample_rate=1)
        self._restored: Restored | None = None  # made from a journal, and not yet continued

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
                self._answers.add(s.Pong(message.id))
            case c.Open():
                self._open(message)
            case c.Resume():
                self._answers.add(s.ResumeFailed("unknown"))
            case c.Ack():
                self._ack(message)
            case _:
                self._seq_record = self.log.message(message)
                self._numbered(message)
                self._seq = message.seq

    def refuse(self, refusal: ResumeRefused) -> None:
        """Tell a client, who may still `open`, that another session cannot be resumed."""
        self._answers.add(s.ResumeFailed(refusal.reason, refusal.utterance, refusal.position))

    def _open(self, message: c.Open) -> None:
        self._begin(message)
        assert self.config is not None
        self._answers.add(
            s.Opened(
                self.id,
                self._token,
                epoch=self.epoch,
                generation=self.generation,
                config=self.config.echo(),
                limits=self._limits(),
                pre_skip=self.config.pre_skip,
            )
        )
        self._answers_after = self.log.add(
            journal.OPEN, self.id, self.principal, encode(replace(message, api_key=None)), self._token_hashes[0]
        )

    def _begin(self, message: c.Open) -> None:
        self.config = configure(message, self._capabilities, self._policy.default_voice)
        lead = message.max_lead_ms
        self._delivery = Delivery(
            self._now,
            pinned=None if message.mode == "auto" else message.mode,
            max_lead=None if lead is None else lead * message.sample_rate // 1000,
            sample_rate=message.sample_rate,
        )
        self._delivery.on_switch = self.on_switch
        self.state = State.IDLE
        self._acked_at = self._now

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
            "resume_ttl_ms": round(self._policy.resume_ttl_s * 1000),
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
        speech = speech_of(config.open, message, config.voice)
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
        targets = [u for u in self._sending.values() if message.utterance in (None, u.id)]
        played = message.played_sample
        answers: list[s.Cancelled] = []
        for utterance in targets:
            self._drop(utterance)
            sample = min(self._timeline_sample(utterance, utterance.sent), utterance.samples)
            if played is None:  # then the acks say what was heard, and a client that only collects heard all it got
                played = sample if self._delivery.flow.max_lead is None else utterance.heard
            answers.append(s.Cancelled(0, utterance.id, sample, utterance.heard_text_end(min(played, sample))))
            played = 0  # what is queued behind it was not heard at all
        self._delivery.ring.insert(answers, self.log.made)

    def _timeline_sample(self, utterance: Utterance, position: int) -> int:
        """The timeline sample at a frame's position."""
        assert self.config is not None
        coded = self.config.codec is Codec.OPUS or (utterance.opus_from is not None and position > utterance.opus_from)
        return max(0, position - self.config.pre_skip) if coded else position

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
        self._delivery.cancel(utterance.id)
        self.utterances += not utterance.done_sent

    def _ack(self, ack: c.Ack) -> None:
        if ack.generation != self.generation:
            return  # of a connection that is gone
        if ack.event > self._delivery.event:
            raise ProtocolError(
                ErrorCode.BAD_ACK, f"event {ack.event} was not sent, the last is {self._delivery.event}", "ack.event"
            )
        if ack.utterance > self._utterance_seen:
            raise ProtocolError(ErrorCode.BAD_ACK, f"utterance {ack.utterance} was not started", "ack.utterance")
        del self._token_hashes[1:]  # the client has the newest
        utterance = self._sending.get(ack.utterance)
        if utterance is None:  # cancelled meanwhile, or heard before
            self._delivery.confirm((0, 0), ack.event)
            return
        if ack.next_sample > utterance.sent:
            raise ProtocolError(
                ErrorCode.BAD_ACK,
                f"sample {ack.next_sample} was not sent, the end is {utterance.sent}",
                "ack.next_sample",
            )
        if ack.played_sample > ack.next_sample:
            raise ProtocolError(ErrorCode.BAD_ACK, "more was played than received", "ack.played_sample")
        self._acked_at = self._now
        self._delivery.acked(ack, self._now)
        self._delivery.confirm((ack.utterance, ack.next_sample), ack.event)
        utterance.played(ack.played_sample)
        utterance.acked = max(utterance.acked, ack.next_sample)
        utterance.heard = max(utterance.heard, ack.played_sample)
        self._record_ack(ack)
        collects = self._delivery.flow.max_lead is None
        self._settle(before=ack.utterance if ack.played_sample or collects else 0)
        self._consider_mode()

    def _record_ack(self, ack: c.Ack) -> None:
        complete = self._delivery.ring.all_confirmed
        if self.log.enabled and (complete or self._now >= self._ack_recorded_at + journal.ACK_EVERY_S):
            self._ack_recorded_at = self._now
            self.log.add(journal.ACK, ack.utterance, ack.next_sample, ack.played_sample, complete)

    def _settle(self, before: int = 0) -> None:
        """Forget utterances that are sent and heard, or followed by one that is being heard."""
        follows_play = self._delivery.flow.max_lead is not None
        for utterance in list(self._sending.values()):
            if not utterance.done_sent:
                break
            if utterance.heard_all(follows_play) or utterance.id < before:
                del self._sending[utterance.id]
                self._delivery.flow.heard(utterance.id)
                self.log.add(journal.GONE, utterance.id)

    # ---- rendering ----

    def next_work(self, now: float) -> Work | None:
        """What to render next; None while there is nothing to say, no room, or work in hand already."""
        self._now = now
        if self._work is not None or not self._speaking or not self.wants_audio:
            return None
        utterance = self._speaking[0]
        self._work = utterance.next_work(RenderPlan(mode=self.mode))
        if self._work is None or isinstance(self._work, FinishUtterance):
            return self._work
        record = utterance.record
        assert record is not None
        if not record.planned:
            self.log.add(
                journal.SEGMENT, utterance.id, record.id, record.start, record.end, record.first_sample,
                record.plan.mode, record.plan.chunk_ms,
            )  # fmt: skip
        if utterance.first_work_at is None and isinstance(self._work, SpeakSegment):
            utterance.first_work_at = now
        return self._work

    @property
    def mode(self) -> Mode:
        """How audio is rendered and sent now."""
        return self._delivery.mode

    @property
    def wants_audio(self) -> bool:
        """Whether rendered audio may be added: the rest waits in the engine, not in memory."""
        ring = self._delivery.ring
        if self.config is None or ring.full_of_events or (self._restored is not None and not self._restored.continued):
            return False
        rate = self.config.open.sample_rate
        if (ring.samples + ring.kept_samples) * 1000 >= self._policy.ring_ms * rate:
            return False
        return ring.samples * 1000 < self._policy.read_ahead_ms * rate

    @property
    def slack_s(self) -> float:
        """Seconds until the listener runs dry, as far as known; a client that only collects audio is in no hurry."""
        if self.config is None:
            return 0.0
        if self._delivery.flow.max_lead is None:
            return COLLECTING_SLACK_S
        return max(0, self._delivery.ring.samples + self._delivery.flow.lead) / self.config.open.sample_rate

    def is_current(self, work: Work) -> bool:
        """Whether this work is still wanted; False after a cancel."""
        return work is self._work

    def coder(self, work: Work) -> WireCoder:
        """A coder for the utterance of this work. Raises OpusUnavailableError."""
        assert self.config is not None
        utterance = self._sending.get(work.utterance)
        if utterance is None:  # cancelled meanwhile
            return self.config.coder.make()
        return self.config.coder.make(start=utterance.coded, opus=utterance.opus_from is not None)

    def coder_wish(self) -> tuple[int, bool]:
        """Bit/s of Opus that suit the link, and whether PCM that may should become Opus."""
        assert self.config is not None
        rate, goodput = self.config.open.sample_rate, self._delivery.link.goodput
        bitrate = self.config.bitrate
        if self.mode != "block":
            return bitrate, False
        if self.config.open.bitrate is None and goodput is not None and goodput < BITRATE_HEADROOM * bitrate / 8:
            bitrate = limits.LOW_BITRATE
        max_lead = self._delivery.flow.max_lead
        starved = max_lead is None or self._delivery.flow.lead < max_lead // 2
        too_slow = goodput is not None and goodput < PCM_HEADROOM * 2 * rate
        return bitrate, self.config.auto and starved and too_slow and self._delivery.ring.audio_waits

    def fresh(self, work: Work, pcm: bytes) -> bytes | memoryview:
        """The part of the next rendered samples that is to be coded: all, but after a restart."""
        if not self.is_current(work):
            return pcm
        utterance = self._speaking[0]
        known = utterance.code_from - utterance.samples
        return pcm if known <= 0 else memoryview(pcm)[2 * known :]

    def place(self, work: Work, chunk: RenderedChunk, coded: Sequence[CodedAudio], now: float) -> None:
        """Put rendered audio on the timeline, with the frames it was coded into (later audio may complete a frame)."""
        if not self.is_current(work):
            return
        self._now = now
        utterance = self._speaking[0]
        self._begin_segment(utterance)
        record_id = utterance.segments
        first = utterance.samples
        words = utterance.place(chunk)
        record = self.log.made
        if self.log.enabled and not self._recorded_before(utterance, first, chunk.pcm):
            record = self.log.add(journal.CRC, utterance.id, utterance.samples, crc32(chunk.pcm))
        if words and self.config is not None and self.config.open.timings:
            self._delivery.ring.add(s.Timing(0, utterance.id, record_id, words), record)
        self._add_frames(utterance, coded, record)

    def _recorded_before(self, utterance: Utterance, first_sample: int, pcm: bytes) -> bool:
        """Whether another process rendered this already. Raises ResumeRefused where it came out differently."""
        restored = self._restored
        if restored is None:
            return False
        if not restored.verified:
            restored.rendered(utterance.id, first_sample, pcm)
            if self.verified and self.attached:
                self._tell_resumed()
        return restored.knows(utterance.id, utterance.samples)

    def complete(self, work: Work, coded: Sequence[CodedAudio], now: float) -> None:
        """The work is finished."""
        if not self.is_current(work):
            return
        self._now = now
        self._work = None
        utterance = self._speaking[0]
        if isinstance(work, FinishUtterance):
            self._add_frames(utterance, coded, self.log.made)
            self._speaking.popleft()
            done = s.Done(0, utterance.id, utterance.samples, utterance.digest, "", utterance.statistics(now))
            record = self.log.add(journal.DONE, utterance.id, done.samples, done.digest, done.statistics)
            self._delivery.ring.add(done, record)
            return
        self._begin_segment(utterance)
        segment = utterance.close_segment()
        digest = segment.digest.hexdigest()
        record = self.log.made
        if not segment.recorded:
            record = self.log.add(journal.END, utterance.id, segment.id, segment.samples, digest)
        self._add_frames(utterance, coded, record)
        self._delivery.ring.add(s.SegmentEnd(0, utterance.id, segment.id, segment.samples, digest), record)

    @property
    def answers_full(self) -> bool:
        """Whether so many answers wait to be sent that no more messages should be read."""
        return len(self._answers) + self._delivery.ring.cancelled_wait >= MAX_ANSWERS

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
            begin = s.SegmentBegin(
                0, utterance.id, record.id, record.start, record.end, record.first_sample, record.cause, record.kind
            )
            self._delivery.ring.add(begin, self.log.made)

    def _add_frames(self, utterance: Utterance, coded: Sequence[CodedAudio], record: int) -> None:
        assert self.config is not None
        for audio in coded:
            first = utterance.coded if audio.first_sample is None else audio.first_sample
            if audio.codec is Codec.OPUS and self.config.codec is Codec.PCM and utterance.opus_from is None:
                utterance.opus_from = utterance.coded
                record = self.log.add(journal.CODEC, utterance.id, utterance.coded)
            frame = AudioFrame(audio.codec, utterance.id, first, audio.count, audio.payload, audio.flags)
            self._delivery.ring.add(frame, record)
            utterance.coded = first + audio.count

    # ---- messages out ----

    def next_outgoing(self, now: float) -> str | bytes | None:
        """The next message to write, or None while nothing may be sent."""
        self._now = now
        outgoing = self._next_outgoing()
        if outgoing is None and self._consider_mode():
            outgoing = self._next_outgoing()
        if outgoing is not None:
            self._sent_at = now
        return outgoing

    def _next_outgoing(self) -> str | bytes | None:
        if not self.attached or self.log.written < self._answers_after:
            return None
        answer = self._answers.next()
        if answer is not None:
            return encode(answer)
        if self.config is None or not self.verified:
            return None
        room = self.room if self._speaking else limits.TEXT_WINDOW_CHARS
        news = self._seq > self._seq_acked or room - self._room_told >= SEND_ROOM_AFTER
        if news and self.log.written >= self._seq_record:
            self._seq_acked, self._room_told = self._seq, room
            return encode(s.SeqAck(self._seq, room))
        item = self._delivery.take(self._now, paused=self._paused, written=self.log.written)
        if isinstance(item, AudioFrame):
            self._frame_went(item)
            return item.encode(self.generation)
        return None if item is None else encode(self._event_went(item))

    def _frame_went(self, frame: AudioFrame) -> None:
        if self._delivery.flow.oldest_sent_at == self._now:
            self._acked_at = self._now  # an ack is awaited from here on
        utterance = self._sending.get(frame.utterance)
        if utterance is None:
            return  # it was heard, but a new connection may lack its last frame
        if not utterance.was_sent:
            utterance.was_sent = True
            self._first_audio = self._now - (utterance.first_work_at or self._now)
            if self.first_audio_ms is None:
                self.first_audio_ms = round(self._first_audio * 1000, 1)
        utterance.sent = max(utterance.sent, frame.end_sample)

    def _event_went(self, event: s.Event) -> s.Event:
        if not isinstance(event, s.Done):
            return event
        utterance = self._sending.get(event.utterance)
        if utterance is not None and not utterance.done_sent:
            utterance.done_sent = True
            self.utterances += 1
            if utterance.sent == 0:
                del self._sending[utterance.id]  # nothing to hear
                self.log.add(journal.GONE, utterance.id)
        return replace(event, wire_digest=self._delivery.wire_digest(event.utterance))

    def pop_first_audio(self) -> float | None:
        """Once per utterance: seconds from the moment its first cut was certain to its first audio handed out."""
        seconds, self._first_audio = self._first_audio, None
        return seconds

    @property
    def delivery(self) -> Delivery:
        """What is sent and how, to look at."""
        return self._delivery

    def _consider_mode(self) -> bool:
        """Whether the mode changed."""
        if self.config is None or not self.attached or not self.verified:
            return False
        number = self._delivery.ring.last_sent[0]
        utterance = self._sending.get(number) or next(iter(self._sending.values()), None)
        if utterance is None:
            return self._delivery.consider(self._now, self._paused, max(1, number), 0) if number else False
        return self._delivery.consider(
            self._now, self._paused, utterance.id, self._timeline_sample(utterance, utterance.sent)
        )

    # ---- connections ----

    def accepts(self, token: str) -> bool:
        """Whether this is the session's token, in constant time."""
        hashed = _hashed(token)
        matches = [compare_digest(hashed, known) for known in self._token_hashes]
        return any(matches)

    def detach(self, now: float) -> None:
        """The connection is gone; what is made waits for another one."""
        self._now = self._detached_at = now
        self.attached = self.dead = False
        self._answers.clear()

    def resume(self, message: c.Resume, new_token: str, now: float) -> None:
        """Go on, on a new connection, from what the client has. Raises ResumeRefused, and then nothing has changed.

        A session from a journal first renders again what was cut short: `verified` tells when that agrees.
        """
        self._now = now
        assert self.config is not None
        if message.epoch > self.epoch:
            raise ResumeRefused("epoch")
        if message.generation_seen > self.generation or message.played_sample > message.next_sample:
            raise ResumeRefused("range")
        if self._restored is not None and not self._restored.continued:
            self._continue(message, self._restored)
        else:
            self._rewind(message)
        self._delivery.attached(now, self._paused)
        self.generation = max(self.generation, message.generation_seen) + 1
        self._token_hashes = [_hashed(new_token), _hashed(message.token)]  # the answer may be lost: then it comes again
        self._answers_after = self.log.add(journal.TOKEN, *self._token_hashes, self.generation)
        self._new_token = new_token
        self._resumed_from = message
        self.attached, self.dead = True, False
        self.resumes += 1
        self._heard_from_at = self._acked_at = self._sent_at = now
        self._answers.clear()
        if self._writing is not None:
            self._writing.last_text_at = now  # the pause was the network's
        if self.verified:
            self._tell_resumed()

    @property
    def verified(self) -> bool:
        """False while a session from a journal has still to prove that it goes on with the same audio."""
        return self._restored is None or self._restored.verified

    def _rewind(self, message: c.Resume) -> None:
        assert self.config is not None
        place = (message.utterance, message.next_sample)
        current = self._sending.get(message.utterance)
        opus = self.config.codec is Codec.OPUS or (current is not None and current.opus_from is not None)
        preroll = self.config.open.sample_rate * limits.OPUS_PREROLL_MS // 1000
        lost_decoder = opus and not message.have_decoder and message.next_sample > 0
        try:
            self._delivery.rewind(place, message.events_seen, preroll if lost_decoder else None)
        except RangeError:
            raise ResumeRefused("range") from None
        waiting = {each.item.utterance for each in self._delivery.ring.following() if isinstance(each.item, s.Done)}
        for utterance in self._sending.values():
            if utterance.id == message.utterance:
                utterance.sent = message.next_sample
                utterance.played(message.played_sample)
                utterance.acked = max(utterance.acked, message.next_sample)
                utterance.heard = max(utterance.heard, message.played_sample)
            elif utterance.id > message.utterance:
                utterance.sent = utterance.acked = 0
            if utterance.done_sent and utterance.id in waiting:
                utterance.done_sent = False
                self.utterances -= 1

    def _continue(self, message: c.Resume, restored: Restored) -> None:
        """Find what to render again so that the audio goes on at the client's next sample."""
        assert self.config is not None
        number, position = message.utterance, message.next_sample
        if number > self._utterance_seen:
            raise ResumeRefused("range")
        current = self._sending.get(number)
        heard = 0 if current is None else self._timeline_sample(current, position)
        known = restored.utterances.get(number)
        if current is not None and heard > (known.end if known else 0):
            raise ResumeRefused("epoch", number, known.text_position(heard) if known else 0)
        for earlier in [each for each in self._sending.values() if each.id < number]:
            self._drop(earlier)
        start = 0 if current is None else self._code_from(current, position)
        for utterance in self._sending.values():
            before = restored.utterances.get(utterance.id)
            if before is not None:
                begin = before.prepare(utterance, start if utterance is current else 0)
                start = begin if utterance is current else start
        for settled, before in restored.utterances.items():  # the client may lack their `done`
            if before.done is not None and settled >= number and settled not in self._sending:
                self._delivery.ring.add(before.done)
        self._speaking = deque(self._sending.values())
        if current is not None:
            current.sent = current.acked = position
            current.heard = message.played_sample
        self._delivery.event = message.events_seen
        self._delivery.ring.begin((number, position), message.events_seen)
        self._delivery.flow.restart(number, position)
        restored.expect(number, start, heard)

    def _code_from(self, utterance: Utterance, position: int) -> int:
        """Let the coder begin so that the client can go on at `position`. Returns the first sample it needs."""
        assert self.config is not None
        if utterance.opus_from is not None and position <= utterance.opus_from:
            utterance.opus_from = None  # the client got no Opus yet
        if self.config.codec is Codec.OPUS or utterance.opus_from is not None:
            packet = self.config.coder.samples_per_packet
            preroll = self.config.open.sample_rate * limits.OPUS_PREROLL_MS // 1000
            position = max(0, position // packet - -(-preroll // packet)) * packet
        utterance.coded = utterance.code_from = position
        return position

    # ---- from a journal, see `restore` ----

    def begin_restored(self, message: c.ClientMessage, restored: Restored, hashes: list[str], epoch: int) -> None:
        """What `open` did."""
        assert isinstance(message, c.Open)
        self._begin(message)
        self._restored, self._token_hashes, self.epoch = restored, hashes, epoch
        self.attached = False

    def take_again(self, message: c.ClientMessage) -> None:
        """A numbered message that was taken before."""
        assert isinstance(message, c.NUMBERED)
        self._numbered(message)
        self._seq = self._seq_acked = message.seq

    def unfinished_utterance(self, number: int) -> Utterance | None:
        """One that was neither cancelled nor heard to its end."""
        return self._sending.get(number)

    def rendered_before(self, number: int) -> None:
        """All of an utterance was rendered."""
        self._speaking = deque(each for each in self._speaking if each.id != number)

    def acked_before(self, number: int, next_sample: int, played_sample: int, *, complete: bool) -> None:
        """What the client had; `complete`: nothing was on the way."""
        if (utterance := self._sending.get(number)) is not None:
            utterance.acked, utterance.heard = next_sample, played_sample
        if complete:  # so every `cancelled`, too
            self._delivery.ring = Ring()

    def gone_before(self, number: int) -> None:
        """An utterance was settled."""
        self._sending.pop(number, None)

    def token_before(self, hashes: list[str], generation: int) -> None:
        """A client had come back."""
        self._token_hashes, self.generation = hashes, generation

    def _tell_resumed(self) -> None:
        message = self._resumed_from
        place = (message.utterance, message.next_sample)
        frames = (each.item for each in self._delivery.ring.following() if isinstance(each.item, AudioFrame))
        first = next(frames, None)
        utterance, sample = place if first is None else (first.utterance, first.first_sample)
        last = self._sending.get(utterance)
        room = self.room
        self._seq_acked, self._room_told = self._seq, room
        self._answers.add(
            s.Resumed(
                self.generation, self.epoch, utterance, sample, last.coded if last else sample, self._new_token,
                self.mode, self._seq, room,
            )
        )  # fmt: skip

    # ---- time ----

    @property
    def unfinished(self) -> bool:
        """Whether an utterance is being written, rendered, sent or acked: only then heartbeats are frequent."""
        return bool(self._speaking) or not self._delivery.ring.empty or not self._delivery.flow.idle

    @property
    def expires_at(self) -> float:
        """When a session without connection is given up."""
        everything = not self.unfinished and self._delivery.ring.all_confirmed and self._writing is None
        ttl = self._policy.resume_ttl_s
        return self._detached_at + (min(ttl, self._policy.resume_idle_ttl_s) if everything else ttl)

    def deadline(self) -> float:
        """When `on_time` must be called next."""
        if self.state is State.AWAITING_OPEN:
            return self._opened_at + self._policy.open_timeout_s
        if not self.attached:
            return self.expires_at
        beat = limits.HEARTBEAT_S if self.unfinished else limits.IDLE_HEARTBEAT_S
        times = [self._sent_at + beat, self._heard_from_at + self._policy.idle_timeout_s]
        if self._stalled():
            times.append(self._acked_at + self._policy.stall_timeout_s)
        flush_at = self._flush_at()
        if flush_at is not None:
            times.append(flush_at)
        dead_at = self._dead_at()
        if dead_at is not None and not self.dead:
            times.append(dead_at)
        check = self._delivery.link.next_check(self._now, self._delivery.load(self._paused))
        if check is not None and self.verified:
            times.append(check)
        return min(times)

    def _dead_at(self) -> float | None:
        """When the connection counts as dead: audio is unacked, and nothing at all was heard."""
        oldest = self._delivery.flow.oldest_sent_at
        return None if oldest is None else max(oldest, self._heard_from_at) + self._policy.detach_after_s

    def _stalled(self) -> bool:
        return not (self._delivery.flow.idle or self._paused)

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
        if not self.attached:
            return
        flush_at = self._flush_at()
        if flush_at is not None and now >= flush_at:
            utterance = self._written()
            utterance.segmenter.flush(soft=True)
            utterance.clock_flushed = True  # until more text comes
            self.log.add(journal.FLUSH, utterance.id)
        if now >= self._heard_from_at + self._policy.idle_timeout_s:
            raise ProtocolError(
                ErrorCode.IDLE_TIMEOUT,
                f"nothing came for {self._policy.idle_timeout_s:g} s; a client that waits sends `ping`",
            )
        if self._stalled() and now >= self._acked_at + self._policy.stall_timeout_s:
            raise ProtocolError(
                ErrorCode.CLIENT_STALLED, f"audio stayed unacked for {self._policy.stall_timeout_s:g} s", "ack"
            )
        dead_at = self._dead_at()
        self.dead = self._policy.resume_ttl_s > 0 and dead_at is not None and now >= dead_at
        self._consider_mode()
        beat = limits.HEARTBEAT_S if self.unfinished else limits.IDLE_HEARTBEAT_S
        if now >= self._sent_at + beat and not len(self._answers):
            self._answers.add(s.Heartbeat(self._delivery.event))


def _hashed(token: str) -> str:
    return sha256(token.encode()).hexdigest()
