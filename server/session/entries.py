"""What a ring holds: events and frames, in the order of the timeline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from protocol import server_messages as s
from protocol.frames import HEADER, AudioFrame, FrameFlag

Item: TypeAlias = s.Event | AudioFrame
Place: TypeAlias = tuple[int, int]
"""An utterance and a sample of it, as its frames count; places compare in the order of sending."""

EVENT_BYTES: Final = 256  # what an event counts for, about what it takes


@dataclass(slots=True, eq=False)
class Entry:
    """One item. `number`: of the event, given when it was sent. `after_record`: how much of the journal must be on disk
    before it may go.
    """

    item: Item
    after_record: int = 0
    number: int = 0

    @property
    def size(self) -> int:
        """Bytes it counts for."""
        return HEADER.size + len(self.item.payload) if isinstance(self.item, AudioFrame) else EVENT_BYTES


def end_of(frame: AudioFrame) -> Place:
    """The place that a client with this frame has reached."""
    return frame.utterance, frame.end_sample


def split(entry: Entry, samples: int) -> tuple[Entry, Entry]:
    """A PCM frame in two, the first with so many samples. Nothing is copied."""
    frame = entry.item
    assert isinstance(frame, AudioFrame)
    silent = bool(frame.flags & FrameFlag.SILENCE_RUN)
    payload = memoryview(frame.payload)
    at = 0 if silent else 2 * samples
    first = replace(frame, count=samples, payload=payload[:at], flags=frame.flags & ~FrameFlag.LAST, crc=-1)
    second = replace(
        frame, first_sample=frame.first_sample + samples, count=frame.count - samples, payload=payload[at:], crc=-1
    )
    return Entry(first, entry.after_record), Entry(second, entry.after_record)


def answers_first(entries: Sequence[Entry]) -> Sequence[Entry]:
    """`cancelled` that were not sent yet, as far in front as they may be: audio before them would wait for acks, which
    nobody reads where too many answers wait.
    """
    answers = [entry for entry in entries if isinstance(entry.item, s.Cancelled) and not entry.number]
    if not answers:
        return entries
    others = [entry for entry in entries if not isinstance(entry.item, s.Cancelled) or entry.number]
    at = max((at for at, entry in enumerate(others, 1) if entry.number), default=0)
    return [*others[:at], *answers, *others[at:]]
