"""Bytes between a gateway and a worker: frames, and the messages in them. No I/O happens here.

A frame is a head (length of the body u32, kind u8, stream u32, little-endian) and a body. PCM travels as it is; what is
small and has many fields is JSON. Every length and every field is checked before it is used.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, assert_never, get_args

from server.cache.counts import CacheSize, CacheUse
from server.cluster.base import Capacity, StepReport
from server.cluster.workers.json_fields import list_of, table_of, text_of, whole_number
from server.cluster.workers.messages import (
    Audio,
    Cancel,
    End,
    ErrorKind,
    Failed,
    Hello,
    Learn,
    Learnt,
    Leaving,
    Load,
    Message,
    Next,
    Ping,
    Pong,
    Stepped,
    Synthesize,
)
from server.engines import codes as coded
from server.engines.base import FAILURE_KINDS, RenderPlan, WordTiming
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.json_text import dumps, loads
from server.text.tokens import Boundary, Cut, CutCause

MAX_BODY: Final = 64 * 1024 * 1024
"""Bytes. A chunk of eleven minutes at 48 kHz fits; whatever claims to be longer is no message of ours."""

HEAD: Final = struct.Struct("<IBI")
_NEXT: Final = struct.Struct("<d?")
_LOAD: Final = struct.Struct("<ddIIdIIIQ")
_STEPPED: Final = struct.Struct("<dId?dIII")
_PONG: Final = struct.Struct("<Q")
_AUDIO: Final = struct.Struct("<II")  # bytes of words, codes
_COUNT: Final = struct.Struct("<I")


class WireError(Exception):
    """The other side says what no message of ours looks like."""


def encode(message: Message) -> tuple[bytes, ...]:
    """The frame of a message, in parts to be written one after the other. ValueError where it is too long to send."""
    kind = _KIND_OF[type(message)]
    stream = getattr(message, "stream", 0)
    match message:
        case Audio():
            words, codes = _words_to_json(message.chunk.words), message.chunk.codes
            body = _AUDIO.pack(len(words), len(codes)) + words + coded.to_bytes(codes)
            pcm = message.chunk.pcm
            return _head(kind, stream, len(body) + len(pcm)) + body, pcm
        case Learn():
            told = dumps(message.text)
            body = _COUNT.pack(len(told)) + told
            return _head(kind, stream, len(body) + len(message.recording)) + body, message.recording
        case Learnt():
            return _head(kind, stream, len(message.voice)), message.voice
        case Next():
            body = _NEXT.pack(message.slack_s, message.first)
        case Cancel() | Ping() | End():
            body = b""
        case Load():
            body = _load_to_bytes(message)
        case Stepped():
            report = message.report
            use = report.context
            body = _STEPPED.pack(
                report.seconds,
                report.jobs,
                report.audio_s,
                report.first,
                report.padding,
                use.hits,
                use.misses,
                use.evictions,
            )
        case Pong():
            body = _PONG.pack(message.steps)
        case Synthesize():
            body = dumps(_synthesize_to_json(message))
        case Hello():
            body = dumps([message.version, message.pid, dict(message.capabilities)])
        case Failed():
            body = dumps(
                [
                    message.kind,
                    message.message,
                    message.transient,
                    message.retry_after_s,
                    message.failure,
                    message.trace,
                ]
            )
        case Leaving():
            body = dumps([message.reason, message.culprits])
        case _:
            assert_never(message)
    return (_head(kind, stream, len(body)) + body,)


class FrameReader:
    """Collects bytes into messages."""

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self._max_body = max_body
        self._pending = bytearray()  # the beginning of one frame, at most `max_body`
        self._wanted = HEAD.size  # bytes until it is worth looking again

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. Raises WireError; nothing may be fed after that."""
        if self._pending:
            self._pending += data
            if len(self._pending) < self._wanted:
                return []
            data = bytes(self._pending)
            self._pending.clear()
        messages: list[Message] = []
        view = memoryview(data)
        at = 0
        self._wanted = HEAD.size
        while len(data) - at >= HEAD.size:
            length, kind, stream = HEAD.unpack_from(data, at)
            if length > self._max_body:
                raise WireError(f"a frame of {length} bytes")
            end = at + HEAD.size + length
            if end > len(data):
                self._wanted = end - at
                break
            messages.append(_decode(kind, stream, view[at + HEAD.size : end]))
            at = end
        self._pending += view[at:]
        return messages


def _head(kind: int, stream: int, length: int) -> bytes:
    if length > MAX_BODY:
        raise ValueError(f"a message of {length} bytes is longer than {MAX_BODY}")
    return HEAD.pack(length, kind, stream)


def _decode(kind: int, stream: int, body: memoryview) -> Message:
    decode = _DECODERS.get(kind)
    if decode is None:
        raise WireError(f"no message has the kind {kind}")
    try:
        return decode(stream, body)
    except (struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        # Without its message, which may quote a text: this one is logged.
        raise WireError(f"kind {kind}: {type(error).__name__}") from error


# Bodies


def _empty(make: Callable[[int], Message]) -> Callable[[int, memoryview], Message]:
    def decode(stream: int, body: memoryview) -> Message:
        if body:
            raise ValueError("a body where there is none")
        return make(stream)

    return decode


def _audio(stream: int, body: memoryview) -> Audio:
    length, count = _AUDIO.unpack_from(body)
    middle = _AUDIO.size + length
    start = middle + coded.CODE_BYTES * count
    if start > len(body) or (len(body) - start) % 2:
        raise ValueError("lengths do not fit")
    words = _words_from_json(body[_AUDIO.size : middle]) if length else ()
    return Audio(stream, RenderedChunk(bytes(body[start:]), words, codes=coded.from_bytes(body[middle:start])))


def _learn(stream: int, body: memoryview) -> Learn:
    (length,) = _COUNT.unpack_from(body)
    start = _COUNT.size + length
    if start > len(body):
        raise ValueError("lengths do not fit")
    return Learn(stream, bytes(body[start:]), text_of(loads(body[_COUNT.size : start])))


def _learnt(stream: int, body: memoryview) -> Learnt:
    return Learnt(stream, bytes(body))


def _next(stream: int, body: memoryview) -> Next:
    return Next(stream, *_NEXT.unpack(body))


def _load(stream: int, body: memoryview) -> Load:
    streams, first_chunk_s, waiting, waiting_first, late_s, workers, elsewhere, *context = _LOAD.unpack(body)
    capacity = Capacity(streams, first_chunk_s, waiting, waiting_first, late_s, workers, CacheSize(*context))
    return Load(capacity, elsewhere)


def _load_to_bytes(message: Load) -> bytes:
    now = message.capacity
    return _LOAD.pack(
        now.streams,
        now.first_chunk_s,
        now.waiting,
        now.waiting_first,
        now.late_s,
        now.workers,
        message.streams_elsewhere,
        now.context.entries,
        now.context.bytes,
    )


def _stepped(stream: int, body: memoryview) -> Stepped:
    seconds, jobs, audio_s, first, padding, *use = _STEPPED.unpack(body)
    return Stepped(StepReport(seconds, jobs, audio_s, first, padding, CacheUse(*use)))


def _pong(stream: int, body: memoryview) -> Pong:
    return Pong(*_PONG.unpack(body))


def _hello(stream: int, body: memoryview) -> Hello:
    version, pid, capabilities = list_of(loads(body), 3)
    return Hello(whole_number(pid), table_of(capabilities), whole_number(version))


def _failed(stream: int, body: memoryview) -> Failed:
    kind, message, transient, retry_after_s, failure, trace = list_of(loads(body), 6)
    if kind not in get_args(ErrorKind) or failure not in FAILURE_KINDS:
        raise ValueError(f"no failure is called {kind!r}, {failure!r}")
    return Failed(stream, kind, text_of(message), transient is True, float(retry_after_s), failure, text_of(trace))


def _leaving(stream: int, body: memoryview) -> Leaving:
    reason, culprits = list_of(loads(body), 2)
    if reason not in ("stopping", "hung"):
        raise ValueError(f"no reason is called {reason!r}")
    return Leaving(reason, tuple(whole_number(stream) for stream in culprits))


def _synthesize_to_json(message: Synthesize) -> list[Any]:
    asked, cut = message.request, message.request.cut
    return [
        message.start_sample,
        message.principal,
        asked.id,
        [cut.start, cut.end, cut.text, cut.boundary.value, cut.cause.value, cut.language],
        asked.voice,
        asked.sample_rate,
        [asked.speed, asked.pitch, asked.volume],
        asked.seed,
        asked.instruct,
        None if asked.lexicon is None else dict(asked.lexicon),
        [asked.plan.mode, list(asked.plan.chunk_ms)],
        asked.before,
        coded.to_text(asked.codes),
    ]


def _synthesize(stream: int, body: memoryview) -> Synthesize:
    fields = list_of(loads(body), 13)
    start_sample, principal, number, cut, voice, rate, factors, seed, instruct, lexicon, plan, before, codes = fields
    start, end, text, boundary, cause, language = list_of(cut, 6)
    speed, pitch, volume = list_of(factors, 3)
    mode, chunk_ms = list_of(plan, 2)
    if language not in ("zh", "en") or mode not in ("stream", "block"):
        raise ValueError(f"no language or mode is called {language!r}, {mode!r}")
    request = SegmentRequest(
        id=whole_number(number),
        cut=Cut(whole_number(start), whole_number(end), text_of(text), Boundary(boundary), CutCause(cause), language),
        voice=text_of(voice),
        sample_rate=whole_number(rate),
        speed=float(speed),
        pitch=float(pitch),
        volume=float(volume),
        seed=whole_number(seed),
        instruct=text_of(instruct),
        lexicon=None if lexicon is None else {text_of(key): text_of(value) for key, value in table_of(lexicon).items()},
        plan=RenderPlan(mode, tuple(whole_number(ms) for ms in chunk_ms)),
        before=text_of(before),
        codes=coded.from_text(text_of(codes)),
    )
    return Synthesize(stream, request, whole_number(start_sample), text_of(principal))


def _words_to_json(words: tuple[WordTiming, ...]) -> bytes:
    if not words:
        return b""
    lines = [(w.text, int(w.start), int(w.end), int(w.first_sample), int(w.end_sample)) for w in words]
    return dumps(lines)


def _words_from_json(body: memoryview) -> tuple[WordTiming, ...]:
    lines = [list_of(line, 5) for line in loads(body)]
    return tuple(WordTiming(text_of(text), *map(whole_number, numbers)) for text, *numbers in lines)


_MESSAGES: Final[dict[int, tuple[type[Message], Callable[[int, memoryview], Message]]]] = {
    1: (Synthesize, _synthesize),
    2: (Next, _next),
    3: (Cancel, _empty(Cancel)),
    4: (Ping, _empty(lambda stream: Ping())),
    5: (Learn, _learn),
    16: (Hello, _hello),
    17: (Audio, _audio),
    18: (End, _empty(End)),
    19: (Failed, _failed),
    20: (Load, _load),
    21: (Stepped, _stepped),
    22: (Pong, _pong),
    23: (Leaving, _leaving),
    24: (Learnt, _learnt),
}
_KIND_OF: Final = {made: kind for kind, (made, _) in _MESSAGES.items()}
_DECODERS: Final = {kind: decode for kind, (_, decode) in _MESSAGES.items()}
