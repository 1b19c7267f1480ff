"""What a client is sent next: events and audio in the order of the timeline, as fast as acks and the link allow."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from protocol import server_messages as s
from protocol.frames import HEADER, AudioFrame, Codec, FrameFlag
from protocol.limits import MAX_UNACKED_BYTES
from server.link import Link, Load, Mode, Switch
from server.session.entries import Place
from server.session.flow import Flow
from server.session.ring import Ring

LEAST_PIECE_MS: Final = 100  # a silence, or a long frame, is not cut smaller to fit the listener's lead
HELD_BLOCK_MS: Final = 200  # in stream mode, of audio that had to wait: larger messages cost no time then
PACKETS_MS: Final = 100  # in stream mode, of Opus packets that are there: alone, headers would double them


class Delivery:
    """One session's sending side. Times are seconds; samples as frames count them."""

    def __init__(self, now: float, *, pinned: Mode | None, max_lead_samples: int | None, sample_rate: int) -> None:
        self.ring = Ring()
        self.flow = Flow(max_lead_samples)
        paced = {} if max_lead_samples is None else {"max_lead_s": max_lead_samples / sample_rate}
        self.link = Link(now, pinned=pinned, paced=max_lead_samples is not None, **paced)
        self.event = 0  # the last that was sent
        self.samples_sent = 0
        self.bytes_sent = 0  # of payloads, what was sent again included
        self.bytes_resent = 0
        self.switches_made = 0
        self._sample_rate = sample_rate
        self._wire: dict[int, Any] = {}  # SHA-256 of what was sent in this generation, by utterance
        self._held = False  # audio waits for the link or the listener: larger messages cost no time then
        self._reset: int | None = None  # the utterance whose next Opus frame needs a new decoder
        self._resent_until: Place = (0, 0)

    @property
    def mode(self) -> Mode:
        """How audio is sent now."""
        return self.link.mode

    @property
    def lead_s(self) -> float:
        """Seconds of audio sent and, as far as known, not yet played."""
        return self.flow.lead_samples / self._sample_rate

    def load(self, paused: bool) -> Load:
        """What the link's verdict depends on besides acks."""
        ring = self.ring
        return Load(
            oldest_unacked_at=self.flow.oldest_sent_at,
            waiting=ring.audio_waits and not paused,
            lead_s=max(0.0, self.lead_s),
            playing=not paused,
        )

    # ---- sending ----

    def take(self, now: float, *, paused: bool, written: int) -> AudioFrame | s.Event | None:
        """What goes out now, events with their number; None while nothing may. `written`: journal records on disk."""
        head = self.ring.head
        if head is None or head.after_record > written:
            self._held = self._held and self.ring.audio_waits
            return None
        if isinstance(head.item, AudioFrame):
            return None if paused else self._take_audio(head.item, now, written)
        entry = self.ring.sent()
        if not entry.number:
            self.event += 1
            entry.number = self.event
        assert not isinstance(entry.item, AudioFrame)
        entry.item = replace(entry.item, event=entry.number)
        return entry.item

    def _take_audio(self, frame: AudioFrame, now: float, written: int) -> AudioFrame | None:
        if frame.codec is Codec.PCM and (most := self._most_samples(frame)) < frame.count:
            self.ring.split_head(most)
            head = self.ring.head
            assert head is not None
            assert isinstance(head.item, AudioFrame)
            frame = head.item
        window = min(self.link.window, MAX_UNACKED_BYTES)
        if not self.flow.may_send(frame.count, len(frame.payload), window):
            self._held = True
            return None
        small = PACKETS_MS if frame.codec is Codec.OPUS else 0
        block_ms = self.link.block_ms or (HELD_BLOCK_MS if self._held else small)
        frames = self._block(frame, block_ms, window, written) if block_ms else [frame]
        for _ in frames:
            self.ring.sent()
        self._held = self._held and self.ring.audio_waits
        whole = _joined(frames)
        if self._reset == whole.utterance and whole.codec is Codec.OPUS:
            whole = replace(whole, flags=whole.flags | FrameFlag.DECODER_RESET)
        self._reset = None
        size = len(whole.payload)
        self.bytes_sent += size
        self.flow.sent(whole.utterance, whole.end_sample, whole.count, size, now)
        self.link.sent(now, size + HEADER.size)
        self._wire.setdefault(whole.utterance, sha256()).update(whole.payload)
        again = self._sent_before(whole)
        self.samples_sent += whole.count - again
        self.bytes_resent += size * again // max(1, whole.count)
        return whole

    def _sent_before(self, frame: AudioFrame) -> int:
        """How many of its samples another connection carried already."""
        utterance, end = self._resent_until
        if frame.utterance != utterance:
            return frame.count if frame.utterance < utterance else 0
        return min(frame.count, max(0, end - frame.first_sample))

    def _most_samples(self, frame: AudioFrame) -> int:
        """How much of a PCM frame may go in one message: what the link and the listener's lead have room for."""
        most = frame.count
        if len(frame.payload) > self.link.message_bytes:
            most = self.link.message_bytes // 2
        max_lead, least = self.flow.max_lead_samples, self._sample_rate * LEAST_PIECE_MS // 1000
        if max_lead is None or frame.count <= least:
            return most
        room = max_lead - self.flow.lead_samples
        return min(most, room) if least <= room < max_lead else most

    def _block(self, first: AudioFrame, block_ms: int, window: int, written: int) -> list[AudioFrame]:
        """As many frames as fit in one message of so much audio."""
        frames: list[AudioFrame] = []
        samples = size = 0
        most = self._sample_rate * block_ms // 1000
        for entry in self.ring.following():
            frame = entry.item
            if not isinstance(frame, AudioFrame) or entry.after_record > written:
                break
            samples, size = samples + frame.count, size + len(frame.payload)
            if frames and not (
                _joins(frames[-1], frame)
                and samples <= most
                and size <= self.link.message_bytes
                and self.flow.may_send(samples, size, window)
            ):
                break
            frames.append(frame)
            if not _may_go_on(frame):
                break
        return frames or [first]

    def wire_digest(self, utterance: int) -> str:
        """Of the payloads sent in this generation, hex."""
        hashed = self._wire.get(utterance)
        return str(hashed.hexdigest()) if hashed is not None else sha256().hexdigest()

    # ---- acks ----

    def acked(self, ack: Any, now: float) -> None:
        """A checked ack."""
        size, sent_at = self.flow.acked(ack.utterance, ack.next_sample, ack.played_sample)
        self.link.acked(
            now, sent_at=sent_at, size=size, buffered_ms=ack.buffered_ms, stalls=ack.stalls, visible=ack.visible
        )

    def confirm(self, place: Place, event: int) -> None:
        """The client has everything up to here; it is kept no longer."""
        for entry in self.ring.confirm(place, event):
            if isinstance(entry.item, s.Done):
                self._wire.pop(entry.item.utterance, None)
        for utterance in [known for known in self._wire if known < self.ring.floor[0]]:
            del self._wire[utterance]

    def cancel(self, *utterances: int) -> None:
        """Nothing of these utterances is sent any more."""
        self.ring.cancel(*utterances)
        self.flow.drop(*utterances)
        for utterance in utterances:
            self._wire.pop(utterance, None)
        self._held = self._held and self.ring.audio_waits

    # ---- mode ----

    def consider(self, now: float, paused: bool, utterance: int, at_sample: int) -> Switch | None:
        """Decide on the mode. Returns the switch that was made, which the client will be told."""
        switch = self._decide(now, paused)
        if switch is not None:
            self.ring.insert([s.ModeChange(0, utterance, switch.mode, switch.reason, at_sample)])
        return switch

    def _decide(self, now: float, paused: bool) -> Switch | None:
        switch = self.link.decide(now, self.load(paused))
        self.switches_made += switch is not None
        return switch

    # ---- a new connection ----

    def resumed(self, now: float, paused: bool) -> Switch | None:
        """Another connection carries the session. Returns the switch that was made, which `resumed.mode` tells."""
        self.link.resumed(now)
        return self._decide(now, paused)

    def rewind(self, place: Place, events_seen: int, preroll: int | None, *, played: int, live: bool) -> None:
        """Go on for a client that has this much. Raises RangeError, and then nothing has changed.

        `played`: how far the utterance was heard; `live`: it is not over.
        """
        self.ring.check(place, events_seen, self.event)
        self._resent_until = self.ring.furthest
        self.ring.rewind(place, events_seen, preroll)
        self.flow.restart(*place, played, live=live)
        self._wire.clear()
        self._reset = place[0] if preroll is not None else None


def _may_go_on(frame: AudioFrame) -> bool:
    """Whether another frame may follow in the same message."""
    return not frame.flags & (FrameFlag.LAST | FrameFlag.SILENCE_RUN)


def _joins(before: AudioFrame, frame: AudioFrame) -> bool:
    """Whether a frame may follow the other in the same message."""
    return (
        frame.utterance == before.utterance
        and frame.codec is before.codec
        and frame.first_sample == before.end_sample
        and frame.count > 0
        and not frame.flags & (FrameFlag.DECODER_RESET | FrameFlag.SILENCE_RUN)
    )


def _joined(frames: Sequence[AudioFrame]) -> AudioFrame:
    """One frame of several that follow each other."""
    first, last = frames[0], frames[-1]
    if first is last:
        return first
    payload = b"".join(frame.payload for frame in frames)
    count = last.end_sample - first.first_sample
    return AudioFrame(first.codec, first.utterance, first.first_sample, count, payload, first.flags | last.flags)
