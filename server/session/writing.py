"""The writing side of a session: what a client wants spoken, cancelled or paused, and how much more it may send."""

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.errors import ErrorCode, ProtocolError
from server.engines.base import Capabilities
from server.session.policy import Policy
from server.session.rendering import RenderingSide
from server.session.ring import MAX_EVENTS
from server.session.states import State
from server.session.utterance import Utterance, speech_of
from server.session.work import SpeakSegment, Work
from server.text.overlap import Overlap
from server.text.segmenter import Segmenter, SegmentLimits


class WritingSide(RenderingSide):
    """Takes the numbered messages that the state allows."""

    def __init__(self, policy: Policy, capabilities: Capabilities, now: float, *, recorded: bool) -> None:
        super().__init__(policy, capabilities, now, recorded=recorded)
        self.state = State.AWAITING_OPEN
        self.chars = 0  # of all texts
        self.utterances = 0  # finished or cancelled
        self._utterance_seen = 0
        self._writing: Utterance | None = None
        self._acked_at = now  # or began to wait for an ack: the stall timeout counts from here

    def next_work(self, now: float) -> Work | None:
        """See RenderingSide. Raises ProtocolError where the voice was deleted: no further segment begins with it."""
        work = super().next_work(now)
        if isinstance(work, SpeakSegment):
            voice = work.request.voice
            if self._capabilities.voice(voice) is None and not self._owns(voice):
                raise ProtocolError(ErrorCode.UNKNOWN_VOICE, f"the voice {voice} was deleted")
        return work

    def _owns(self, voice: str) -> bool:
        return self._policy.owns_voice(self.principal, voice)

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
                self._nobody_listens()
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
        config.check_overrides(message, self._capabilities, self._owns)
        speech = speech_of(config.open, message, config.voice)
        language = None if config.open.language == "auto" else config.open.language
        policy, capabilities = self._policy, self._capabilities
        limits_of_segments = SegmentLimits(
            max_tokens=capabilities.max_tokens,
            count_tokens=capabilities.count_tokens,
            block_tokens=policy.block_tokens,
            block_window_tokens=policy.block_window_tokens,
        )
        segmenter = Segmenter(language=language, limits=limits_of_segments)
        overlap = Overlap(min(policy.overlap_tokens, capabilities.context_tokens), capabilities.count_tokens)
        origin = f"{self.id}/{message.utterance}"
        utterance = Utterance(message.utterance, speech, segmenter, self._now, overlap=overlap, origin=origin)
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
                played = sample if self._delivery.flow.max_lead_samples is None else utterance.heard
            answers.append(s.Cancelled(0, utterance.id, sample, utterance.heard_text_end(min(played, sample))))
            played = 0  # what is queued behind it was not heard at all
        self._delivery.ring.insert(answers, self.journal.made)

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

    def _check_answers_of_cancel(self) -> None:
        """Raises ProtocolError where answers to `cancel` pile up behind audio that comes again and is not acked."""
        if self._delivery.ring.cancelled_blocked >= MAX_EVENTS:
            raise ProtocolError(
                ErrorCode.QUEUE_FULL, f"{MAX_EVENTS} `cancelled` wait for acks of what is sent again", "cancel"
            )
