"""The invariants of a session that outlives its connections, checked from outside at every step and at the end."""

from collections.abc import Callable
from itertools import pairwise
from typing import Final
from zlib import crc32

from bench._simulated_client import Heard
from bench._simulated_speaker import Speaker
from protocol import limits
from protocol import server_messages as s
from protocol.codec import decode_server
from protocol.frames import HEADER, AudioFrame, Codec, FrameFlag, decode_frame
from tests.support.resume_timeline import ENGINE, RATE, SEGMENT_CHARACTERS, Timeline

RING_MS: Final = 12_000
LOOK_AT_RING: Final = 8  # one look in so many goes through all that the ring holds


class Violation(AssertionError):
    """Something that must never be."""


class Checks:
    """`received`: up to which sample of an utterance the client has everything."""

    def __init__(self, received: Callable[[int], int]) -> None:
        self._received = received
        self._looks = 0
        self._ends: dict[tuple[int, int], int] = {}  # sent so far, by generation and utterance
        self._events: dict[int, int] = {}  # the last event sent, by generation
        self._asked: dict[tuple[int, int], int] = {}  # where a client asked to go on, by generation and utterance

    def session(self, speaker: Speaker) -> None:
        session = speaker.session
        if session.config is None:
            return
        ring, flow = session.delivery.ring, session.delivery.flow
        for utterance in session._sending.values():
            if not utterance.acked <= utterance.sent <= utterance.coded:
                raise Violation(
                    f"utterance {utterance.id}: acked {utterance.acked}, sent {utterance.sent}, made {utterance.coded}"
                )
        longest = 1_000 * 4 * SEGMENT_CHARACTERS * ENGINE.samples_per_character // RATE
        held_ms = (ring.samples + ring.kept_samples) * 1_000 // RATE
        if held_ms > RING_MS + longest:
            raise Violation(f"the ring holds {held_ms} ms of audio")
        if flow.unacked_bytes > limits.MAX_UNACKED_BYTES + limits.MAX_MESSAGE_BYTES:
            raise Violation(f"{flow.unacked_bytes} bytes are on their way")
        if session.room != limits.TEXT_WINDOW_CHARS - sum(each.unspoken for each in session._speaking):
            raise Violation(f"the session counts room for {session.room} characters")
        self._looks += 1
        if self._looks % 8 == 0:
            self._ring(speaker)

    def _ring(self, speaker: Speaker) -> None:
        """It covers everything from what is confirmed to what is made, and counts itself right."""
        session = speaker.session
        ring = session.delivery.ring
        entries = [*ring._kept, *ring._waiting]
        if ring.bytes != sum(entry.size for entry in entries):
            raise Violation(f"the ring counts {ring.bytes} bytes and holds {sum(entry.size for entry in entries)}")
        frames = [entry.item for entry in entries if isinstance(entry.item, AudioFrame)]
        if ring.samples + ring.kept_samples != sum(frame.count for frame in frames):
            raise Violation("the ring counts its samples wrong")
        for utterance in session._sending.values():
            mine = [frame for frame in frames if frame.utterance == utterance.id and frame.count]
            for before, frame in pairwise(mine):
                seam = before.codec is not frame.codec
                if before.end_sample != frame.first_sample and not seam and not _resets(frame):
                    raise Violation(f"the ring has [..., {before.end_sample}) and then [{frame.first_sample}, ...)")
            end = mine[-1].end_sample if mine else utterance.coded
            if end != utterance.coded:
                raise Violation(f"the ring ends at {end}, {utterance.coded} samples were made")
            begin = mine[0].first_sample if mine else utterance.coded
            if begin > max(utterance.acked, self._received(utterance.id)):
                raise Violation(f"the ring begins at {begin}, only {utterance.acked} are acked")

    def sent(self, speaker: Speaker, data: str | bytes) -> None:
        """Frames and events of a generation follow each other without gap or repeat."""
        generation = speaker.session.generation
        if isinstance(data, bytes):
            frame = decode_frame(data)
            if frame.generation != generation:
                raise Violation(f"a frame of generation {frame.generation} was sent in {generation}")
            key = (generation, frame.utterance)
            end = self._ends.get(key)
            asked = self._asked.pop(key, None)
            if asked is not None and frame.codec is Codec.PCM and frame.count and frame.first_sample != asked:
                raise Violation(f"asked to go on at {asked}, it goes on at {frame.first_sample}")
            if end is not None and frame.first_sample != end and not _resets(frame):
                raise Violation(f"sent up to {end}, then {frame.first_sample} of utterance {frame.utterance}")
            self._ends[key] = frame.end_sample
            if len(data) > HEADER.size + 65_536:
                raise Violation(f"a message of {len(data)} bytes")
            return
        message = decode_server(data)
        if isinstance(message, s.Resumed):
            resume = speaker.session._resumed_from
            self._asked[generation, resume.utterance] = resume.next_sample
        if isinstance(message, s.EVENTS):
            last = self._events.get(generation)
            if last is not None and message.event != last + 1:
                raise Violation(f"event {message.event} was sent after {last}")
            self._events[generation] = message.event


def compare(number: int, heard: Heard, made: Timeline, pre_skip: int, *, whole: bool) -> None:
    """What was heard of an utterance, with what was made. `whole`: unless it was cancelled. Raises Violation."""
    done = heard.result if isinstance(heard.result, s.Done) else None
    pcm = bytes(heard.pcm)
    if pcm != made.pcm[: len(pcm)]:
        raise Violation(f"utterance {number}: what was heard is not what was made")
    per = RATE // 50
    for index, packet in heard.packets.items():
        block = made.pcm[2 * per * index : 2 * per * (index + 1)].ljust(2 * per, b"\0")
        if packet[4:8] != crc32(block).to_bytes(4, "big"):
            raise Violation(f"utterance {number}: packet {index} is not what was made")
    segments = [(e.start, e.end) for e in heard.events if isinstance(e, s.SegmentBegin)]
    if segments != made.spans[: len(segments)]:
        raise Violation(f"utterance {number}: cut as {segments}, not as {made.spans}")
    if done is None or not whole:
        return  # where `done` crossed the cancel, what came after it was dropped here
    if 2 * done.samples != len(made.pcm):
        raise Violation(f"utterance {number}: {done.samples} samples, not {len(made.pcm) // 2}")
    if segments != made.spans:
        raise Violation(f"utterance {number}: {len(segments)} of {len(made.spans)} segments")
    if not heard.packets and len(pcm) != len(made.pcm):
        raise Violation(f"utterance {number}: {len(pcm) // 2} samples were heard of {done.samples}")
    if heard.packets:
        covered = (max(heard.packets) + 1) * per - pre_skip
        first = min(heard.packets) * per
        if (
            covered < done.samples
            or first > len(pcm) // 2
            or sorted(heard.packets) != list(range(min(heard.packets), max(heard.packets) + 1))
        ):
            raise Violation(f"utterance {number}: packets {min(heard.packets)}-{max(heard.packets)} are not all")
    words = [word for e in heard.events if isinstance(e, s.Timing) for word in e.words]
    if [word.text for word in words] != list(made.text):
        raise Violation(f"utterance {number}: the words are {''.join(word.text for word in words)!r}")


def _resets(frame: AudioFrame) -> bool:
    return frame.codec is Codec.OPUS and bool(frame.flags & FrameFlag.DECODER_RESET)
