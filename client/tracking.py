"""What the session knows of its utterances: how much is here, how much of that was heard, what is left to say. Pure."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from client.items import Audio, audio_item
from client.saved import SavedSession
from client.statistics import UtteranceStatistics
from client.timeline import Timeline
from client.transcript import Rest, Transcript
from protocol import server_messages as s
from protocol.client_messages import Start
from protocol.frames import AudioFrame, Codec, FrameFlag

MAX_WARMING: Final = 64  # frames; 80 ms and a packet are at most 35 of them
REMEMBERED: Final = 64  # finished utterances whose consumers may still report


@dataclass(slots=True, eq=False)
class Tracked:
    """An utterance from its `start` until nobody asks for it any more.

    It may be spoken in several parts, each in a session of its own: `base_...` is what came before the present one, and
    `timeline` and `transcript` count from there. All other samples are of the whole utterance's timeline.
    """

    number: int
    timeline: Timeline
    statistics: UtteranceStatistics
    transcript: Transcript
    cancelled: bool = False  # `cancel` was sent: late audio is dropped
    cancel_sample: int = 0  # how far it was heard, as that `cancel` said
    consumed_sample: int = 0
    player_sample: int | None = None  # as its player reports; None: what was consumed counts as played
    buffered_ms: int | None = None
    stalls: int = 0
    base_samples: int = 0
    base_text: int = 0
    base_segments: int = 0
    warming: list[Audio] = field(default_factory=list)  # known packets of a new encoder, for the decoder alone
    is_past: bool = False  # it belongs to a session that is gone: the server does not know it

    @property
    def ended(self) -> bool:
        """Whether `end` was sent."""
        return self.transcript.ended

    @property
    def received(self) -> int:
        """How far audio is here."""
        return self.base_samples + self.timeline.received

    @property
    def played(self) -> int:
        """How far it was heard."""
        if self.player_sample is not None:
            return self.player_sample
        if self.statistics.finished is None:
            return self.consumed_sample
        return min(self.consumed_sample, self.statistics.samples)  # the last packet's padding is no sound

    @property
    def heard_all(self) -> bool:
        """Whether it is complete and was played to its end."""
        return self.statistics.finished is not None and self.played >= self.statistics.samples

    def within(self, event: s.Event, number: int) -> s.Event:
        """The event in the whole utterance's numbers; `number`: its own."""
        samples, text, segments = self.base_samples, self.base_text, self.base_segments
        match event:
            case s.SegmentBegin():
                return replace(
                    event, event=number, segment=event.segment + segments, start=event.start + text,
                    end=event.end + text, first_sample=event.first_sample + samples,
                )  # fmt: skip
            case s.Timing():
                # of a list, not of a generator: docs/decisions.md, "Tuples of lists"
                words = tuple(
                    [
                        s.Word(w.text, w.start + text, w.end + text, w.first_sample + samples, w.end_sample + samples)
                        for w in event.words
                    ]
                )
                return replace(event, event=number, segment=event.segment + segments, words=words)
            case s.SegmentEnd():
                return replace(event, event=number, segment=event.segment + segments)
            case s.ModeChange():
                return replace(event, event=number, at_sample=event.at_sample + samples)
            case s.Cancelled():
                return replace(
                    event, event=number, sample=event.sample + samples, heard_text_end=event.heard_text_end + text
                )
            case s.Done():
                return replace(event, event=number, samples=event.samples + samples)

    def new_generation(self) -> None:
        """Another connection carries the session."""
        self.timeline.new_generation()
        self.warming = []

    def keep_warm(self, frame: AudioFrame) -> None:
        """A frame that is known as a whole: of use only where it warms a new decoder up."""
        if frame.codec is not Codec.OPUS or not frame.count:
            return
        if frame.flags & FrameFlag.DECODER_RESET:
            self.warming = []
        elif not self.warming or len(self.warming) >= MAX_WARMING:
            return
        self.warming.append(audio_item(frame, 0, self.base_samples))

    def item(self, frame: AudioFrame, skip: int) -> Audio:
        """What of the frame goes to the consumer: all but its first samples, with what a new decoder needs before."""
        warming, self.warming = self.warming, []
        first = warming[0].first_sample if warming else 0
        adjoins = warming and warming[-1].end_sample == frame.first_sample + self.base_samples
        if not adjoins or frame.flags & FrameFlag.DECODER_RESET:
            return audio_item(frame, skip, self.base_samples)
        whole = audio_item(frame, 0, self.base_samples)
        packets = tuple(packet for audio in warming for packet in audio.packets) + whole.packets
        return replace(whole, first_sample=first, count=whole.end_sample - first, packets=packets, reset=True)

    def go_on(self, rest: Rest, pre_skip: int) -> None:
        """The rest is said by another session: everything counts from here."""
        self.base_samples = self.received
        self.base_text += rest.position
        self.base_segments += self.transcript.segments
        self.timeline = Timeline(self.number, pre_skip)
        self.warming = []
        self.transcript = Transcript.of(rest)
        self.statistics.restarts += 1


@dataclass(slots=True)
class Utterances:
    """Those of one session, by number."""

    live: dict[int, Tracked] = field(default_factory=dict)  # started and not finished, in order
    finished: deque[Tracked] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    newest: int = 0  # highest number started

    def begin(self, start: Start, statistics: UtteranceStatistics, pre_skip: int) -> Start:
        """Another one. Gives the message with its number."""
        self.newest += 1
        start = replace(start, utterance=self.newest)
        timeline = Timeline(self.newest, pre_skip)
        self.live[self.newest] = Tracked(self.newest, timeline, statistics, Transcript(start))
        return start

    def go_on(self, saved: SavedSession, statistics: UtteranceStatistics, ended: bool) -> Tracked:
        """The one that another process began."""
        self.newest = saved.utterance
        entry = Tracked(self.newest, Timeline(self.newest), statistics, Transcript(Start(0, self.newest)))
        entry.timeline.go_on(saved)
        entry.transcript.go_on(saved, ended)
        entry.consumed_sample = saved.next_sample
        self.live[self.newest] = entry
        return entry

    @property
    def writing(self) -> Tracked | None:
        """The newest one, while it is unfinished: text goes to it."""
        return self.live.get(self.newest)

    def find(self, number: int) -> Tracked | None:
        """One that is unfinished, or finished lately."""
        return self.live.get(number) or next((old for old in self.finished if old.number == number), None)

    def finish(self, entry: Tracked) -> None:
        """It is complete or cancelled."""
        del self.live[entry.number]
        self.finished.append(entry)

    def revive(self, entry: Tracked) -> None:
        """It was complete, but is cancelled while it still plays."""
        self.finished.remove(entry)
        self.live[entry.number] = entry

    def being_heard(self, before: int) -> Tracked | None:
        """The first finished one before this number that was not played to its end, as far as the server knows it."""
        for entry in self.finished:
            if entry.number < before and not (entry.cancelled or entry.heard_all or entry.is_past):
                return entry
        return None
