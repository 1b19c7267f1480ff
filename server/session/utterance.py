"""One utterance: its text on the way in, its timeline on the way out."""

from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal

from protocol import client_messages as c
from protocol.server_messages import Word
from server.engines.base import RenderPlan
from server.engines.rendering import Part, RenderedChunk, SegmentRequest
from server.session.work import FinishUtterance, SpeakSegment, SpeakSilence, Work
from server.text.overlap import Overlap
from server.text.segmenter import Segmenter
from server.text.tokens import Cut

CONSEQUENCES: Final = {
    "clip": "a tone stands for words",
    "fallback": "the fallback engine spoke",
    "engine": "it was spoken in pieces",
    "end": "its last sound may be missing",
}
"""What a listener hears of a part by its source, the worst first; `end`: nothing was left to say."""
HEARD_WORDS = 20_000  # kept to say what was heard: about two hours of speech ahead of the listener


@dataclass(frozen=True, slots=True)
class Speech:
    """How an utterance is spoken: the session's values with the utterance's overrides."""

    voice: str
    speed: float
    pitch: float
    volume: float
    sample_rate: int
    seed: int = 0
    instruct: str = ""
    lexicon: Any = None


@dataclass(slots=True)
class OpenSegment:
    """The segment being placed on the timeline. `planned`: the journal has how it is rendered, `recorded`: its end.
    `parts`: what was rendered otherwise than it was asked for.
    """

    id: int
    start: int
    end: int
    first_sample: int
    kind: Literal["speech", "silence"]
    cause: str
    plan: RenderPlan
    parts: tuple[Part, ...] = ()
    begun: bool = False
    samples: int = 0
    digest: Any = field(default_factory=sha256)
    planned: bool = False
    recorded: bool = False

    @property
    def reason(self) -> str:
        """Why it sounds otherwise than it should, and how; empty where it does not."""
        if not self.parts:
            return ""
        sources = {part.source if part.start < part.end else "end" for part in self.parts}
        return f"{self.parts[0].reason}: {next(how for source, how in CONSEQUENCES.items() if source in sources)}"


class Utterance:
    """Text and timeline of one utterance. Positions are code points, offsets are samples at the session's rate."""

    def __init__(
        self,
        utterance: int,
        speech: Speech,
        segmenter: Segmenter,
        now: float,
        *,
        overlap: Overlap | None = None,
        origin: str = "",
    ) -> None:
        """`overlap` says what the engine is told of the text before a segment. `origin`: who asked, for people."""
        self.id = utterance
        self.origin = origin
        self._overlap = overlap or Overlap(0)
        self.speech = speech
        self.segmenter = segmenter
        self.chars = 0  # of text accepted
        self.ended = False
        self.last_text_at = now
        self.first_text_at: float | None = None
        self.begun = False  # its first cut is certain and being rendered
        self.awaited_since: float | None = None  # when that was, where the listener has nothing else to hear
        self.samples = 0  # on the timeline
        self.coded = 0  # samples covered by coded frames (equal to `samples` for PCM)
        self.sent = 0  # coded samples sent, on this connection or to a client that said it has them
        self.furthest = 0  # ... on any connection
        self.acked = 0  # coded samples the client has
        self.heard = 0  # samples the client played
        self.stalls = 0  # how often playing it ran dry, as the client tells
        self.was_sent = False  # some audio of it
        self.done_sent = False
        self.code_from = 0  # timeline samples before this one are not coded: a client has them
        self.clock_flushed = False  # the clock has flushed since the last text
        self.segments = 0
        self.degraded = 0  # of them
        self.open_segment: OpenSegment | None = None
        self.ahead: SpeakSegment | None = None  # cut before its turn; it comes next, whatever happens
        self.opus_from: int | None = None  # format auto: the timeline sample where PCM ended
        self.again: deque[tuple[Work, OpenSegment]] = deque()  # after a restart: rendered before, to render again
        self._digest = sha256()
        self._silences: deque[tuple[int, int]] = deque()  # (position, ms); each takes one of the window
        self._heard_text = 0  # code points settled by `played`
        self._heard: deque[tuple[int, int]] = deque(maxlen=HEARD_WORDS)  # (end sample, text end)

    # Text

    def add(self, text: str, now: float) -> None:
        """More text."""
        self.segmenter.feed(text)
        self.chars += len(text)
        self.last_text_at = now
        self.clock_flushed = False
        if self.first_text_at is None:
            self.first_text_at = now

    def add_silence(self, ms: int) -> None:
        """Silence after the text so far."""
        self.segmenter.flush()
        self._silences.append((self.chars, ms))

    def end(self) -> None:
        """No more text."""
        self.segmenter.end()
        self.ended = True

    @property
    def unspoken(self) -> int:
        """Code points accepted and not yet handed out as work; a silence counts as one."""
        return self.segmenter.pending + len(self._silences)

    @property
    def complete(self) -> bool:
        """All its text is spoken."""
        return self.ended and not self.unspoken and self.ahead is None

    def next_work(self, plan: RenderPlan) -> Work | None:
        """The next piece to render, by `plan` where it is speech, or None while it waits for text."""
        if self.again:
            work, self.open_segment = self.again.popleft()
            return work
        if self.ahead is not None:
            ahead, self.ahead = self.ahead, None
            self._open_speech(ahead.request)
            return ahead
        if self._silences and self._silences[0][0] <= self.segmenter.position:
            samples = self._silences.popleft()[1] * self.speech.sample_rate // 1000
            self._open(self.segmenter.position, self.segmenter.position, "silence", "", plan)
            self._overlap.forget()
            return SpeakSilence(self.id, samples)
        cut = self.segmenter.next()
        if cut is not None:
            request = self._request(self.segments, cut, plan)
            self._open_speech(request)
            return SpeakSegment(self.id, request)
        if self.ended and not self.complete:
            raise RuntimeError(f"the segmenter keeps {self.segmenter.pending} characters of a text that has ended")
        return FinishUtterance(self.id) if self.complete else None

    def look_ahead(self, plan: RenderPlan) -> SpeakSegment | None:
        """The segment behind the open one, to be rendered by `plan`, where it is certain: then it is the next work."""
        if self.open_segment is None or self.again or self.ahead is not None:
            return self.ahead
        if self._silences and self._silences[0][0] <= self.segmenter.position:
            return None
        cut = self.segmenter.next()
        if cut is not None:
            self.ahead = SpeakSegment(self.id, self._request(self.open_segment.id + 1, cut, plan))
        return self.ahead

    def _request(self, segment: int, cut: Cut, plan: RenderPlan) -> SegmentRequest:
        s = self.speech
        return SegmentRequest(
            segment,
            cut,
            s.voice,
            s.sample_rate,
            s.speed,
            s.pitch,
            s.volume,
            s.seed,
            s.instruct,
            s.lexicon,
            plan,
            before=self._overlap.before(cut),
            origin=self.origin,
        )

    # Timeline

    def _open_speech(self, request: SegmentRequest) -> None:
        cut = request.cut
        self._open(cut.start, cut.end, "speech", cut.cause, request.plan)

    def _open(self, start: int, end: int, kind: Literal["speech", "silence"], cause: str, plan: RenderPlan) -> None:
        self.open_segment = OpenSegment(self.segments, start, end, self.samples, kind, cause, plan)

    def place(self, chunk: RenderedChunk) -> tuple[Word, ...]:
        """Put a chunk of the open segment on the timeline; its words come back with timeline samples."""
        segment = self._opened()
        if chunk.part is not None:
            segment.parts = joined(segment.parts, chunk.part)
            self._unsay(segment.first_sample + chunk.part.first_sample)
        segment.digest.update(chunk.pcm)
        segment.samples += chunk.samples
        self.samples += chunk.samples
        base = segment.first_sample
        # of a list, not of a generator: docs/decisions.md, "Tuples of lists"
        words = tuple([Word(w.text, w.start, w.end, base + w.first_sample, base + w.end_sample) for w in chunk.words])
        self._heard.extend((word.end_sample, word.end) for word in words)
        return words

    def _unsay(self, sample: int) -> None:
        """Words that were to sound to their end after this are told anew, at other times."""
        while self._heard and self._heard[-1][0] > sample:
            self._heard.pop()

    def close_segment(self) -> OpenSegment:
        """The open segment is complete."""
        segment = self._opened()
        return self.settle(segment, segment.digest.digest())

    def settle(self, segment: OpenSegment, digest: bytes) -> OpenSegment:
        """A segment with this digest is complete."""
        self._digest.update(digest)
        if segment.end > segment.start:
            self._heard.append((self.samples, segment.end))
        self.segments += 1
        self.degraded += bool(segment.parts)
        self.open_segment = None
        return segment

    def _opened(self) -> OpenSegment:
        if self.open_segment is None:
            raise RuntimeError("no segment is open")
        return self.open_segment

    def rewind(self) -> None:
        """Forget the timeline; the text keeps its place."""
        self.samples = self.segments = self.degraded = 0
        self.open_segment = None
        self._digest = sha256()
        self._heard.clear()

    @property
    def digest(self) -> str:
        """SHA-256 over the segments' digests, hex."""
        return self._digest.hexdigest()

    def played(self, sample: int) -> None:
        """The listener is at `sample`: what was heard before is settled."""
        while self._heard and self._heard[0][0] <= sample:
            self._heard_text = max(self._heard_text, self._heard.popleft()[1])

    def heard_text_end(self, played_sample: int) -> int:
        """The end of the text heard when playing stopped at `played_sample`: the last word that sounded to its end."""
        heard = self._heard_text
        for end_sample, text_end in self._heard:
            if end_sample > played_sample:
                break
            heard = max(heard, text_end)
        return heard

    def heard_all(self, follows_play: bool) -> bool:
        """Whether the client needs nothing more of it. `follows_play`: it tells what was played."""
        return self.heard >= self.samples if follows_play else self.acked >= self.sent

    def statistics(self, now: float) -> dict[str, Any]:
        """For `done.statistics`."""
        return {
            "characters": self.chars,
            "segments": self.segments,
            "degraded": self.degraded,
            "audio_ms": self.samples * 1000 // self.speech.sample_rate,
            "total_ms": round((now - (self.first_text_at or now)) * 1000, 1),
        }


def joined(parts: tuple[Part, ...], part: Part) -> tuple[Part, ...]:
    """A recipe with one part more. What it had for later samples no longer holds: it failed when it was used again."""
    if part in parts:
        return parts
    return (*[known for known in parts if known.first_sample <= part.first_sample], part)


def speech_of(open_: c.Open, start: c.Start, voice: str) -> Speech:
    """The session's values with the utterance's overrides."""

    def either(override: float | None, value: float) -> float:
        return value if override is None else override

    return Speech(
        voice=start.voice or voice,
        speed=either(start.speed, open_.speed),
        pitch=either(start.pitch, open_.pitch),
        volume=either(start.volume, open_.volume),
        sample_rate=open_.sample_rate,
        seed=start.seed,
        instruct=start.instruct,
        lexicon=start.lexicon,
    )
