"""The rendering side of a session: which text is spoken next, and where its audio comes on the timeline."""

from collections import deque
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from protocol import limits
from protocol import server_messages as s
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import AudioFrame, Codec
from server.audio.wire import CodedAudio, WireCoder
from server.engines.base import Capabilities, EngineError, RenderPlan
from server.engines.rendering import RenderedChunk
from server.link import Mode
from server.session import journal
from server.session.config import SessionConfig
from server.session.delivery import Delivery
from server.session.journal import SessionJournal
from server.session.observer import SessionObserver
from server.session.policy import Policy
from server.session.utterance import Utterance
from server.session.work import FinishUtterance, SpeakSegment, Work

COLLECTING_SLACK_S: Final = 30.0  # urgency of a client without `max_lead_ms`: behind everyone who listens
TEXT_BYTES: Final = 4  # of a character that is not spoken yet
AWAY_SLACK_S: Final = 1.0  # of one who is away or has paused, and may be back before the chunk is there
BITRATE_HEADROOM: Final = 2.0  # in block mode Opus gets smaller where the link carries less than this times its rate
MAY_FALL_AHEAD_MS: Final = 500  # the same while PCM may have to become Opus
CALM_AHEAD_MS: Final = 2_000  # audio ready besides what the listener has, in stream mode
AWAY_AHEAD_MS: Final = 500  # the same while no client is there: enough until the engine goes on
PCM_HEADROOM: Final = 1.3  # format auto falls to Opus where the link carries less than this times PCM


class RenderingSide:
    """What `Session` knows about its utterances' audio. Samples are those of the timeline unless said otherwise."""

    def __init__(self, policy: Policy, capabilities: Capabilities, now: float, *, recorded: bool) -> None:
        self.id = ""
        self.principal = ""  # whose it is, once that is known
        self.observer = SessionObserver()
        self.config: SessionConfig | None = None
        self.attached = True
        self._paused = False
        self.journal = SessionJournal(recorded)
        self._policy = policy
        self._capabilities = capabilities
        self._now = now
        self._speaking: deque[Utterance] = deque()  # not fully rendered; the first is in hand
        self._sending: dict[int, Utterance] = {}  # not fully sent or not fully heard
        self._unspoken = 0  # of those in `_speaking`, together: kept, because it is asked for with every message
        self._work: Work | None = None
        # Until `open` says how to send there is nothing to send.
        self._delivery = Delivery(now, pinned="stream", max_lead_samples=None, sample_rate=1)

    def next_work(self, now: float) -> Work | None:
        """What to render next; None while there is nothing to say, no room, or work in hand already."""
        self._now = now
        if self._work is not None or not self._speaking or not self.wants_audio:
            return None
        utterance = self._speaking[0]
        self._work = self._cut(utterance, RenderPlan(mode=self.mode))
        if self._work is None or isinstance(self._work, FinishUtterance):
            return self._work
        segment = utterance.open_segment
        assert segment is not None
        if not segment.planned:
            self.journal.add(
                journal.SEGMENT, utterance.id, segment.id, segment.start, segment.end, segment.first_sample,
                segment.plan.mode, segment.plan.chunk_ms,
            )  # fmt: skip
        if not utterance.begun and isinstance(self._work, SpeakSegment):
            utterance.begun = True
            utterance.awaited_since = now if self._listener_waits else None
        return self._work

    def look_ahead(self) -> SpeakSegment | None:
        """What to render beside the work in hand: in block mode the segment behind it, where there is room for audio
        and somebody to take it.
        """
        work = self._work
        if not (isinstance(work, SpeakSegment) and self.mode == "block" and self.attached and self.wants_audio):
            return None
        utterance = self._speaking[0]
        before = utterance.unspoken
        ahead = utterance.look_ahead(RenderPlan(mode="block"))
        self._unspoken -= before - utterance.unspoken
        return ahead

    def is_ahead(self, work: Work) -> bool:
        """Whether this comes next."""
        return bool(self._speaking) and self._speaking[0].ahead is work

    def _cut(self, utterance: Utterance, plan: RenderPlan) -> Work | None:
        """The next piece of its text to render."""
        before = utterance.unspoken
        work = utterance.next_work(plan)
        self._unspoken -= before - utterance.unspoken
        return work

    @property
    def mode(self) -> Mode:
        """How audio is rendered and sent now."""
        return self._delivery.mode

    @property
    def wants_audio(self) -> bool:
        """Whether rendered audio may be added: the rest waits in the engine, not in memory."""
        ring = self._delivery.ring
        if self.config is None or ring.full_of_events:
            return False
        rate = self.config.open.sample_rate
        if (ring.samples + ring.kept_samples) * 1000 >= self._policy.ring_ms * rate:
            return False
        return ring.samples * 1000 < self._read_ahead_ms * rate

    @property
    def _read_ahead_ms(self) -> int:
        """How much may wait to be sent. Little while all is well and somebody listens, or while no client is there:
        what is made ahead is wasted by a barge-in, or by a client who does not come back. Little, too, as long as PCM
        may have to become Opus: what is coded already cannot.
        """
        listens = self._delivery.flow.max_lead_samples is not None
        calm = self.mode == "stream" and listens
        may_fall = (
            self.config is not None and self.config.auto and self._speaking and self._speaking[0].opus_from is None
        )
        most = MAY_FALL_AHEAD_MS if may_fall else CALM_AHEAD_MS if calm else self._policy.read_ahead_ms
        return min(self._policy.read_ahead_ms, most if self.attached else AWAY_AHEAD_MS)

    @property
    def slack_s(self) -> float:
        """Seconds until the listener runs dry, as far as known; a client that only collects audio is in no hurry."""
        if self.config is None:
            return 0.0
        if self._delivery.flow.max_lead_samples is None:
            return COLLECTING_SLACK_S
        if not self.attached or self._paused:
            return AWAY_SLACK_S
        return max(0, self._delivery.ring.samples + self._delivery.flow.lead_samples) / self.config.open.sample_rate

    @property
    def begun(self) -> bool:
        """Whether an utterance is being written or rendered."""
        return bool(self._speaking)

    @property
    def speaks(self) -> bool:
        """Whether the engine has work for it, now or as soon as the listener has room."""
        if self.wants_audio:
            return self._work is not None
        return self.attached and not self._paused and (self._work is not None or self._unspoken > 0)

    @property
    def kept_bytes(self) -> int:
        """What is kept of its audio and its text, about."""
        return self._delivery.ring.bytes + TEXT_BYTES * self._unspoken

    @property
    def paused(self) -> bool:
        """Whether the client wants no audio now."""
        return self._paused

    @property
    def collects(self) -> bool:
        """Whether the client takes audio as fast as it comes, and plays nothing."""
        return self._delivery.flow.max_lead_samples is None

    def waited_s(self, now: float) -> float | None:
        """How long the listener has waited for an utterance's first audio; None: it does not wait for any."""
        waiting = (each.awaited_since for each in self._sending.values() if not each.was_sent)
        since = next((each for each in waiting if each is not None), None)
        return None if since is None else now - since

    @property
    def _listener_waits(self) -> bool:
        """Whether the next audio can be heard the moment it is there."""
        flow = self._delivery.flow
        playing = flow.max_lead_samples is not None and flow.lead_samples > 0
        return self.attached and not (self._paused or playing or self._delivery.ring.samples)

    def _nobody_listens(self) -> None:
        """The client paused or is gone: how long audio takes to go out says nothing about this server from here on."""
        for utterance in self._sending.values():
            utterance.awaited_since = None

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
        goodput, bitrate = self._delivery.link.goodput, self.config.bitrate
        if self.mode != "block":
            return bitrate, False
        if self.config.open.bitrate is None and goodput is not None and goodput < BITRATE_HEADROOM * bitrate / 8:
            bitrate = limits.LOW_BITRATE
        flow = self._delivery.flow
        starved = flow.max_lead_samples is None or flow.lead_samples < flow.max_lead_samples // 2
        too_slow = goodput is not None and goodput < PCM_HEADROOM * 2 * self.config.open.sample_rate
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
        first = utterance.samples
        segment = utterance.open_segment
        assert segment is not None
        known = segment.parts
        words = utterance.place(chunk)
        after = self.journal.made
        if segment.parts is not known and (part := chunk.part) is not None:
            after = self.journal.add(
                journal.PART,
                utterance.id,
                segment.id,
                part.source,
                part.start,
                part.end,
                part.first_sample,
                part.reason,
            )
        if chunk.codes:
            after = self.journal.codes(utterance.id, segment.id, chunk.codes, self._capabilities.fingerprint)
        if self.journal.enabled and not self._recorded_before(utterance, first, chunk.pcm):
            after = self.journal.add(journal.CRC, utterance.id, utterance.samples, crc32(chunk.pcm))
        if words and self.config is not None and self.config.open.timings:
            self._delivery.ring.add(s.Timing(0, utterance.id, utterance.segments, words), after)
        self._add_frames(utterance, coded, after)

    def _recorded_before(self, utterance: Utterance, first_sample: int, pcm: bytes) -> bool:
        """Whether the journal has this audio already: never, unless another process began the session."""
        return False

    def complete(self, work: Work, coded: Sequence[CodedAudio], now: float) -> None:
        """The work is finished."""
        if not self.is_current(work):
            return
        self._now = now
        self._work = None
        utterance = self._speaking[0]
        if isinstance(work, FinishUtterance):
            self._add_frames(utterance, coded, self.journal.made)
            self._speaking.popleft()
            done = s.Done(0, utterance.id, utterance.samples, utterance.digest, "", utterance.statistics(now))
            after = self.journal.add(journal.DONE, utterance.id, done.samples, done.digest, done.statistics)
            self._delivery.ring.add(done, after)
            return
        self._begin_segment(utterance)
        segment = utterance.close_segment()
        digest = segment.digest.hexdigest()
        after = self.journal.made
        if not segment.recorded:
            after = self.journal.add(journal.END, utterance.id, segment.id, segment.samples, digest)
        self._add_frames(utterance, coded, after)
        end = s.SegmentEnd(
            0, utterance.id, segment.id, segment.samples, digest, degraded=bool(segment.parts), reason=segment.reason
        )
        self._delivery.ring.add(end, after)
        if segment.parts:
            self.observer.degraded(utterance.id, segment.reason)

    def failed(self, work: Work, error: Exception) -> ProtocolError:
        """The error that ends the session because `work` could not be done."""
        segment = self._speaking[0].open_segment if self.is_current(work) and self._speaking else None
        where = f"text [{segment.start}, {segment.end}) of utterance {work.utterance}: " if segment else ""
        retryable = error.transient if isinstance(error, EngineError) else True
        return ProtocolError(ErrorCode.ENGINE_FAILED, f"{where}{error}"[:2_000], retryable=retryable)

    def _begin_segment(self, utterance: Utterance) -> None:
        segment = utterance.open_segment
        if segment is not None and not segment.begun:
            segment.begun = True
            begin = s.SegmentBegin(
                0, utterance.id, segment.id, segment.start, segment.end, segment.first_sample, segment.cause,
                segment.kind,
            )  # fmt: skip
            self._delivery.ring.add(begin, self.journal.made)

    def _add_frames(self, utterance: Utterance, coded: Sequence[CodedAudio], after_record: int) -> None:
        assert self.config is not None
        for audio in coded:
            first = utterance.coded if audio.first_sample is None else audio.first_sample
            if audio.codec is Codec.OPUS and self.config.codec is Codec.PCM and utterance.opus_from is None:
                utterance.opus_from = utterance.coded
                after_record = self.journal.add(journal.CODEC, utterance.id, utterance.coded)
            frame = AudioFrame(audio.codec, utterance.id, first, audio.count, audio.payload, audio.flags)
            self._delivery.ring.add(frame, after_record)
            utterance.coded = first + audio.count

    def _timeline_sample(self, utterance: Utterance, position: int) -> int:
        """The timeline sample at a frame's position."""
        assert self.config is not None
        coded = self.config.codec is Codec.OPUS or (utterance.opus_from is not None and position > utterance.opus_from)
        return max(0, position - self.config.pre_skip) if coded else position
