"""What comes from the server: events and audio to their utterances, each exactly once, and the acks for them. Pure."""

from typing import Final

from client.acks import AckSchedule
from client.effects import Deliver, Effect, Finished, Send
from client.errors import Gap, ServerMisbehaved
from client.line import LineStatistics
from client.saved import SavedSession
from client.tracking import Tracked, Utterances
from protocol import limits
from protocol import server_messages as s
from protocol.client_messages import Ack
from protocol.frames import AudioFrame, Codec
from protocol.media.opus import timeline_sample

EVENT_COST: Final = 256  # bytes one event counts for in the queue of a slow consumer
MAX_FRAME_S: Final = limits.MAX_SILENCE_MS // 1_000  # no frame is longer than the longest silence


class Receiver:
    """`generation` and `pre_skip` are the session's; `max_lead` in samples, None where the server does not pace."""

    def __init__(
        self, utterances: Utterances, acks: AckSchedule, line: LineStatistics, sample_rate: int, max_lead: int | None
    ) -> None:
        self.generation = 1
        self.pre_skip = 0
        self.last_event = 0
        self._newest = (0, 0)  # utterance and sample: where the last frame ended
        self._events_before = 0  # of sessions that are gone; consumers see one numbering
        self._utterances = utterances
        self._acks = acks
        self._line = line
        self._rate = sample_rate
        self._max_lead = max_lead

    def new_session(self) -> None:
        """Another session goes on: events and audio are numbered from the start."""
        self._events_before += self.last_event
        self.last_event = 0
        self._newest = (0, 0)
        self._acks.forget()

    def go_on(self, saved: SavedSession) -> None:
        """Another process took what came until now."""
        self.last_event = saved.event
        self._newest = (saved.utterance, saved.next_sample)
        self._acks.arrived(saved.utterance, saved.next_sample, 0, saved.event)

    # ---- events ----

    def event(self, event: s.Event, now: float) -> list[Effect] | None:
        """Takes an event; None: it came before. Raises Gap, ServerMisbehaved."""
        if event.event <= self.last_event:
            return None
        if event.event != self.last_event + 1:
            raise Gap(f"event {event.event} came after event {self.last_event}: one is missing")
        entry = self._utterances.live.get(event.utterance)
        if entry is None and not 1 <= event.utterance <= self._utterances.newest:
            raise ServerMisbehaved(f"an event names utterance {event.utterance}, which was never started")
        self.last_event = event.event
        if isinstance(event, s.ModeChange):
            self._line.mode_changed(event.mode, now)
        if entry is None:
            return []
        whole = entry.within(event, self._events_before + event.event)
        transcript = entry.transcript
        match event:
            case s.SegmentBegin():
                if not transcript.begin(event):
                    return []
                entry.timeline.begin(event)
                assert isinstance(whole, s.SegmentBegin)
                entry.statistics.segment_begin(whole)
            case s.SegmentEnd():
                if not transcript.end(event):
                    return []
                entry.timeline.end(event)
                transcript.received(entry.timeline.received)
            case s.Timing():
                new = transcript.timing(event)
                if new is None:
                    return []
                whole = entry.within(new, whole.event)
            case s.Done():
                if entry.cancelled and entry.timeline.lacks_audio(event):
                    return []  # `cancelled` follows
                entry.timeline.done(event)
                assert isinstance(whole, s.Done)
                if entry.cancelled and self._max_lead is not None and entry.played < whole.samples:
                    return []  # it crossed the cancel; the server too holds it unheard and goes on with `cancelled`
                return self.finish(entry, whole, whole.samples, now)
            case s.Cancelled():
                assert isinstance(whole, s.Cancelled)
                entry.cancelled = True
                return self.finish(entry, whole, whole.sample, now)
            case _:
                pass
        if entry.cancelled:
            return []
        self._acks.arrived(entry.number, entry.timeline.next_sample, EVENT_COST, self.last_event)
        return [Deliver(entry.number, whole, EVENT_COST)]

    def finish(self, entry: Tracked, event: s.Done | s.Cancelled, samples: int, now: float) -> list[Effect]:
        """The utterance is over, `samples` long."""
        self._utterances.finish(entry)
        entry.statistics.finish(event, samples, now)
        # Earlier utterances may still be on their way when a later one is cancelled: that confirms none of their audio.
        number, sample = (entry.number, entry.timeline.next_sample) if isinstance(event, s.Done) else (0, 0)
        self._acks.arrived(number, sample, EVENT_COST, self.last_event)
        return [Deliver(entry.number, event, EVENT_COST), Finished(entry.number), self.ack(now)]

    def cancelled_here(self, entry: Tracked, now: float) -> list[Effect]:
        """Its session is gone and nobody will confirm its cancel: what is known here must do."""
        heard = max(0, entry.cancel_sample - entry.base_samples)
        end = entry.base_text + entry.transcript.heard_text_end(heard)
        self._utterances.finish(entry)
        entry.is_past = True
        self._events_before += 1
        event = s.Cancelled(self._events_before, entry.number, entry.received, end)
        entry.statistics.finish(event, event.sample, now)
        self._acks.arrived(0, 0, EVENT_COST, self.last_event)
        return [Deliver(entry.number, event, EVENT_COST), Finished(entry.number)]

    # ---- audio ----

    def audio(self, frame: AudioFrame, now: float) -> list[Effect] | None:
        """Takes a frame; None: nothing in it is new. Raises Gap, ServerMisbehaved."""
        if frame.generation < self.generation:
            return None  # an old connection's last words
        if frame.generation > self.generation or not 1 <= frame.utterance <= self._utterances.newest:
            name = f"generation {frame.generation}, utterance {frame.utterance}"
            raise ServerMisbehaved(f"a frame names {name}, which never began")
        entry = self._utterances.live.get(frame.utterance)
        if entry is None:
            return None  # late audio of a cancelled utterance
        if frame.count > MAX_FRAME_S * self._rate:
            raise ServerMisbehaved(f"one frame has {frame.count} samples: more than {MAX_FRAME_S} s")
        skip = entry.timeline.audio(frame)
        if skip:
            self._line.resent(len(frame.payload) * min(skip, frame.count) // max(1, frame.count))
        if skip >= frame.count:
            entry.keep_warm(frame)
            return None
        entry.transcript.received(entry.timeline.received)
        coded_ahead = self.pre_skip if frame.codec is Codec.OPUS else 0
        first = entry.base_samples + frame.first_sample - coded_ahead
        entry.statistics.audio(len(frame.payload), entry.base_samples + frame.end_sample - coded_ahead, first, now)
        effects: list[Effect] = []
        item = entry.item(frame, skip)
        cost = len(item.pcm) or len(frame.payload)
        self._newest = (entry.number, frame.end_sample)
        self._acks.arrived(entry.number, frame.end_sample, cost, self.last_event)
        if entry.cancelled:
            self._acks.taken(cost)
        else:
            effects.append(Deliver(entry.number, item, cost))
        if self._acks.due_on_arrival(now):
            effects.append(self.ack(now))
        return effects

    # ---- acks ----

    def ack(self, now: float) -> Send:
        """What arrived and what was played."""
        at = self._acks.position
        self._acks.sent(now)
        entry, sample = self._utterances.find(at.utterance), at.sample
        if self._max_lead is not None and (heard := self._utterances.being_heard(at.utterance)) is not None:
            entry, sample = heard, heard.timeline.next_sample  # the server paces itself by what is played
        if entry is None:
            number = next(iter(self._utterances.live), at.utterance)
            return Send(Ack(self.generation, number, 0, event=at.event))
        return self._ack_of(entry, sample, at.event)

    def ack_end(self, entry: Tracked, now: float) -> Send:
        """All of this utterance was heard: the server is told so, also where audio of the next one is here already."""
        if entry.number >= self._acks.position.utterance or entry.is_past:
            return self.ack(now)
        return self._ack_of(entry, entry.timeline.next_sample, self._acks.position.event)

    def _ack_of(self, entry: Tracked, sample: int, event: int) -> Send:
        end = entry.base_samples + timeline_sample(sample, self.pre_skip if entry.timeline.is_coded else 0)
        played = min(entry.played, end)
        buffered_ms = (end - played) * 1_000 // self._rate if entry.buffered_ms is None else entry.buffered_ms
        played_here = max(0, played - entry.base_samples)
        return Send(Ack(self.generation, entry.number, sample, played_here, buffered_ms, entry.stalls, event))

    def resume_position(self) -> tuple[int, int, int]:
        """The last utterance of which audio arrived, where it goes on, and how far it was played; zeros before."""
        number, sample = self._newest
        entry = self._utterances.find(number)
        if entry is None:
            return number, sample, 0
        return number, sample, max(0, min(entry.played, entry.received) - entry.base_samples)
