"""The session machine: decides what one client hears and when, and does nothing itself.

A shell feeds it messages (`receive`), rendered audio (`place`, `complete`) and the time (`on_time`), and asks it what
to render (`next_work`) and what to send (`next_outgoing`). Times are seconds on the shell's monotonic clock. Every
method may raise ProtocolError: the session is then over, and the shell says so to the client and closes.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.codec import encode
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import AudioFrame, Codec
from server.engines.base import Capabilities
from server.link import Switch
from server.session import journal
from server.session.answers import MAX_ANSWERS, Answers
from server.session.config import configure
from server.session.delivery import Delivery
from server.session.policy import Policy
from server.session.rendering import RenderingSide
from server.session.resuming import ResumeRefused
from server.session.ring import MAX_EVENTS, Place, RangeError
from server.session.states import State, check_allowed
from server.session.tokens import hash_token, is_token
from server.session.utterance import Utterance, speech_of
from server.text.segmenter import Segmenter, SegmentLimits

MAX_TOKENS: Final = 8  # given out and not used yet: of resumes whose answers got lost
SEND_ROOM_AFTER: Final = limits.TEXT_WINDOW_CHARS // 4  # tell a waiting writer once this much room came back


class Session(RenderingSide):
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
        super().__init__(policy, now, recorded=recorded)
        self.id = session_id
        self.principal = principal  # whose it is, once that is known
        self.state = State.AWAITING_OPEN
        self.generation = 1
        self.epoch = 0
        self.dead = False  # the connection takes nothing and says nothing: the shell should abort it
        self.utterances = 0  # finished or cancelled
        self.resumes = 0
        self.chars = 0
        self.first_audio_ms: float | None = None  # of the session's first utterance, see `pop_first_audio`
        self.on_switch: Callable[[Switch], None] | None = None  # told of each change of the mode
        self._first_audio: float | None = None
        self._capabilities = capabilities
        self._token = token
        self._token_hashes = [hash_token(token)]  # the newest, then those before it until the newest was used
        self._opened_at = now
        self._heard_from_at = now
        self._sent_at = now
        self._acked_at = now
        self._detached_at = now
        self._ack_recorded_at = now
        self._complete_recorded = False
        self._seq = 0
        self._seq_acked = 0
        self._seq_record = 0
        self._answers_after = 0  # `opened` and `resumed` wait for their record, too
        self._room_told = limits.TEXT_WINDOW_CHARS
        self._utterance_seen = 0
        self._paused = False
        self._writing: Utterance | None = None
        self._answers = Answers()

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
                if isinstance(message, c.Start):
                    self._settle()  # before it is recorded, so that it finds the same room when the journal is read
                if isinstance(message, c.Cancel) and self._delivery.ring.cancelled_blocked >= MAX_EVENTS:
                    raise ProtocolError(
                        ErrorCode.QUEUE_FULL, f"{MAX_EVENTS} `cancelled` wait for acks of what is sent again", "cancel"
                    )
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
        self._delivery.on_switch = self._switched
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
                self._unspoken += 1
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
        self._unspoken += size
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
        return limits.TEXT_WINDOW_CHARS - self._unspoken

    def _cancel(self, message: c.Cancel) -> None:
        targets = [u for u in self._sending.values() if message.utterance in (None, u.id)]
        played = message.played_sample
        answers: list[s.Cancelled] = []
        self._drop(*targets)
        for utterance in targets:
            sample = min(self._timeline_sample(utterance, utterance.sent), utterance.samples)
            if played is None:  # then the acks say what was heard, and a client that only collects heard all it got
                played = sample if self._delivery.flow.max_lead is None else utterance.heard
            answers.append(s.Cancelled(0, utterance.id, sample, utterance.heard_text_end(min(played, sample))))
            played = 0  # what is queued behind it was not heard at all
        self._delivery.ring.insert(answers, self.log.made)

    def _drop(self, *utterances: Utterance) -> None:
        """Forget everything about utterances that is not sent yet."""
        for utterance in utterances:
            if self._work is not None and self._work.utterance == utterance.id:
                self._work = None
            if utterance is self._writing:
                self._writing = None
                self.state = State.IDLE
            if utterance in self._speaking:
                self._speaking.remove(utterance)
                self._unspoken -= utterance.unspoken
            del self._sending[utterance.id]
            self.utterances += not utterance.done_sent
        self._delivery.cancel(*(utterance.id for utterance in utterances))

    def _ack(self, ack: c.Ack) -> None:
        if ack.generation != self.generation:
            return  # of a connection that is gone
        if ack.event > self._delivery.event:
            raise ProtocolError(
                ErrorCode.BAD_ACK, f"event {ack.event} was not sent, the last is {self._delivery.event}", "ack.event"
            )
        if ack.utterance > self._utterance_seen:
            raise ProtocolError(ErrorCode.BAD_ACK, f"utterance {ack.utterance} was not started", "ack.utterance")
        if len(self._token_hashes) > 1:  # the client has the newest
            del self._token_hashes[1:]
            self.log.add(journal.TOKEN, *self._token_hashes, self.generation)
        utterance = self._sending.get(ack.utterance)
        if utterance is None:  # cancelled meanwhile, or heard before; but a new connection may have sent its end again
            place = (ack.utterance, ack.next_sample)
            if place <= self._delivery.ring.last_sent:
                self._delivery.acked(ack, self._now)
                self._delivery.confirm(place, ack.event)
            else:
                self._delivery.confirm((0, 0), ack.event)
            return
        if ack.next_sample > utterance.furthest:  # on an earlier connection the client may have got more than it said
            raise ProtocolError(
                ErrorCode.BAD_ACK,
                f"sample {ack.next_sample} was not sent, the end is {utterance.furthest}",
                "ack.next_sample",
            )
        if ack.played_sample > ack.next_sample:
            raise ProtocolError(ErrorCode.BAD_ACK, "more was played than received", "ack.played_sample")
        self._acked_at = self._now
        self._delivery.acked(ack, self._now)
        self._delivery.confirm((ack.utterance, ack.next_sample), ack.event)
        utterance.played(ack.played_sample)
        utterance.acked = max(utterance.acked, ack.next_sample)
        utterance.sent = max(utterance.sent, utterance.acked)
        utterance.heard = max(utterance.heard, ack.played_sample)
        self._record_ack(ack)
        collects = self._delivery.flow.max_lead is None
        self._settle(before=ack.utterance if ack.played_sample or collects else 0)
        self._consider_mode()

    def _record_ack(self, ack: c.Ack) -> None:
        complete = self._delivery.ring.all_confirmed
        news = complete and not self._complete_recorded
        self._complete_recorded = complete
        if news or self._now >= self._ack_recorded_at + journal.ACK_EVERY_S:
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

    @property
    def answers_full(self) -> bool:
        """Whether so many answers wait to be sent that no more messages should be read."""
        return len(self._answers) + self._delivery.ring.cancelled_ready >= MAX_ANSWERS

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
        room = self.room
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
        utterance.furthest = max(utterance.furthest, utterance.sent)

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
        place = self._mode_place()
        return place is not None and self._delivery.consider(self._now, self._paused, *place)

    def _mode_place(self) -> Place | None:
        """The utterance and timeline sample that a change of the mode would begin at; None: there is none yet."""
        if self.config is None or not self.attached or not self.verified:
            return None
        number = self._delivery.ring.last_sent[0]
        utterance = self._sending.get(number) or next(iter(self._sending.values()), None)
        if utterance is not None:
            return utterance.id, self._timeline_sample(utterance, utterance.sent)
        return (number, 0) if number else None

    def _switched(self, switch: Switch) -> None:
        if self.on_switch is not None:
            self.on_switch(switch)

    # ---- connections ----

    def accepts(self, token: str) -> bool:
        """Whether this is the session's token, in constant time."""
        return is_token(token, self._token_hashes)

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
        self._go_on(message)
        self._delivery.attached(now, self._paused)
        self.generation = max(self.generation, message.generation_seen) + 1
        # The answer may be lost, and a client may have asked on several connections: until one is used, all are good.
        used = hash_token(message.token)
        others = [known for known in self._token_hashes if known != used]
        self._token_hashes = [hash_token(new_token), used, *others][:MAX_TOKENS]
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
        return True

    def _go_on(self, message: c.Resume) -> None:
        """Find what the client lacks. Raises ResumeRefused, and then nothing has changed."""
        assert self.config is not None
        place = (message.utterance, message.next_sample)
        current = self._sending.get(message.utterance)
        if current is not None and message.next_sample < current.acked:
            raise ResumeRefused("range")  # it confirmed more
        opus = self.config.codec is Codec.OPUS or (current is not None and current.opus_from is not None)
        preroll = self.config.open.sample_rate * limits.OPUS_PREROLL_MS // 1000
        lost_decoder = opus and current is not None and not message.have_decoder and message.next_sample > 0
        try:
            self._delivery.rewind(
                place, message.events_seen, preroll if lost_decoder else None,
                played=message.played_sample, live=current is not None,
            )  # fmt: skip
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
            else:
                utterance.sent = utterance.acked = utterance.coded
            done_sent = utterance not in self._speaking and utterance.id not in waiting
            self.utterances += done_sent - utterance.done_sent
            utterance.done_sent = done_sent

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
        times = [self._heard_from_at + self._policy.idle_timeout_s]
        if not len(self._answers):  # else something waits to be written already
            times.append(self._sent_at + beat)
        if self._stalled():
            times.append(self._acked_at + self._policy.stall_timeout_s)
        flush_at = self._flush_at()
        if flush_at is not None:
            times.append(flush_at)
        dead_at = self._dead_at()
        if dead_at is not None and not self.dead:
            times.append(dead_at)
        if self._mode_place() is not None:
            check = self._delivery.link.next_check(self._now, self._delivery.load(self._paused))
            if check is not None:
                times.append(check)
        return min(times)

    def _dead_at(self) -> float | None:
        """When the connection counts as dead: audio is unacked, and nothing at all was heard. A client that paused may
        be silent, and without resume a connection is all there is.
        """
        oldest = self._delivery.flow.oldest_sent_at
        if oldest is None or self._paused or self._policy.resume_ttl_s <= 0:
            return None
        return max(oldest, self._heard_from_at) + self._policy.detach_after_s

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
        self.dead = dead_at is not None and now >= dead_at
        self._consider_mode()
        beat = limits.HEARTBEAT_S if self.unfinished else limits.IDLE_HEARTBEAT_S
        if now >= self._sent_at + beat and not len(self._answers):
            self._answers.add(s.Heartbeat(self._delivery.event))
