r"""A dead letter: a segment that an engine failed at, as one line of JSON.

    {"v": 1, "id": "3f9c...", "time": "2026-02-03T04:05:06.789Z", "origin": ..., ..., "outcome": "fallback"}\n
    {"v": 1, "resolved": "3f9c...", "time": ...}\n       it succeeded when it was tried again

There is everything in it that decides the segment's samples, and no audio. Texts may have half surrogate pairs, as
JSON of clients may.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar, get_args

from server.cluster.failures import Attempt, FailedSegment, Outcome
from server.engines.base import FAILURE_KINDS, RenderMode, RenderPlan
from server.engines.rendering import Part, SegmentRequest
from server.json_text import dumps, loads
from server.text.tokens import Boundary, Cut, CutCause, Language

VERSION: Final = 1
MAX_ERROR_CHARS: Final = 2_000
MAX_STACK_CHARS: Final = 16_384
"""The end is kept: it is where the error happened. Python's own are a few thousand characters."""
MAX_ATTEMPTS: Final = 64
"""More than pools tell of, which is each failure (the recovery gives up after 12) and the last attempt; of more, the
first and the last."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Letter:
    """A failed segment with the name it got. `time`: UTC, ISO 8601."""

    id: str
    time: str
    failed: FailedSegment


@dataclass(frozen=True, slots=True)
class Resolved:
    """The letter `id` succeeded when it was tried again."""

    id: str
    time: str


Entry: TypeAlias = Letter | Resolved


class TooLongError(ValueError):
    """Not even without the stacks does it fit."""


def encode(entry: Entry, max_bytes: int) -> bytes:
    r"""The line, with its b"\n". Where it is longer than `max_bytes`, first the stacks are left out, then all attempts
    but the first and the last. Raises TooLongError.
    """
    line = b""
    for shorter in _ever_shorter(entry):
        line = dumps(_to_json(shorter)) + b"\n"
        if len(line) <= max_bytes:
            return line
    raise TooLongError(f"{len(line)} bytes are more than the {max_bytes} that a dead letter may have")


def decode(line: bytes) -> Entry:
    """What `encode` wrote. Raises ValueError for everything else."""
    try:
        table = loads(line)
        if _get(table, "v", int) != VERSION:
            raise ValueError("another version of the format")
        if "resolved" in table:
            return Resolved(_get(table, "resolved", str), _get(table, "time", str))
        return Letter(_get(table, "id", str), _get(table, "time", str), _failed_from(table))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no dead letter: {type(error).__name__}") from error


def to_json(letter: Letter) -> dict[str, Any]:
    """The letter as it lies in the file, for `list --json`."""
    return _to_json(letter)


def _ever_shorter(entry: Entry) -> Iterator[Entry]:
    if isinstance(entry, Resolved):
        yield entry
        return
    failed = entry.failed
    half = MAX_ATTEMPTS // 2
    attempts = failed.attempts
    if len(attempts) > MAX_ATTEMPTS:
        attempts = (*attempts[:half], *attempts[-half:])
    yield replace(entry, failed=replace(failed, attempts=tuple(map(_capped, attempts))))
    attempts = tuple(replace(_capped(each), trace="") for each in attempts)
    yield replace(entry, failed=replace(failed, attempts=attempts))
    if len(attempts) > 2:
        yield replace(entry, failed=replace(failed, attempts=(attempts[0], attempts[-1])))


def _capped(attempt: Attempt) -> Attempt:
    error, trace = attempt.error, attempt.trace
    if len(error) > MAX_ERROR_CHARS:
        error = error[:MAX_ERROR_CHARS] + "..."
    if len(trace) > MAX_STACK_CHARS:
        trace = "..." + trace[-MAX_STACK_CHARS:]
    return replace(attempt, error=error, trace=trace)


# Values to JSON


def _to_json(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, Resolved):
        return {"v": VERSION, "resolved": entry.id, "time": entry.time}
    failed, request = entry.failed, entry.failed.request
    cut = request.cut
    return {
        "v": VERSION,
        "id": entry.id,
        "time": entry.time,
        "origin": request.origin,
        "principal": failed.principal,
        "engine": failed.engine,
        "fingerprint": failed.fingerprint,
        "voice": request.voice,
        "language": cut.language,
        "span": [cut.start, cut.end],
        "text": cut.text,
        "before": request.before,
        "parameters": {
            "segment": request.id,
            "boundary": cut.boundary.value,
            "cause": cut.cause.value,
            "sample_rate": request.sample_rate,
            "speed": request.speed,
            "pitch": request.pitch,
            "volume": request.volume,
            "seed": request.seed,
            "instruct": request.instruct,
            "lexicon": _lexicon_of(request),
            "mode": request.plan.mode,
            "chunk_ms": list(request.plan.chunk_ms),
            "parts": [[part.source, part.start, part.end, part.first_sample, part.reason] for part in request.parts],
        },
        "attempts": [
            {
                "engine": attempt.engine,
                "span": [attempt.start, attempt.end],
                "first_sample": attempt.first_sample,
                "seconds": round(attempt.seconds, 6),
                "kind": attempt.kind,
                "error": attempt.error,
                "stack": attempt.trace,
            }
            for attempt in failed.attempts
        ],
        "outcome": failed.outcome,
    }


def _lexicon_of(request: SegmentRequest) -> dict[str, str] | None:
    """What of the client's lexicon the text has: it may be a hundred times longer than the text."""
    if request.lexicon is None:
        return None
    texts = (request.cut.text, request.before)
    return {form: reading for form, reading in request.lexicon.items() if any(form in text for text in texts)}


# JSON to values


def _failed_from(table: Any) -> FailedSegment:
    return FailedSegment(
        request=_request_from(table),
        principal=_get(table, "principal", str),
        engine=_get(table, "engine", str),
        fingerprint=_get(table, "fingerprint", str),
        attempts=tuple(map(_attempt_from, _get(table, "attempts", list))),
        outcome=_one_of(table["outcome"], get_args(Outcome)),
    )


def _request_from(table: Any) -> SegmentRequest:
    start, end = _span_from(table)
    parameters = _get(table, "parameters", dict)
    cut = Cut(
        start,
        end,
        _get(table, "text", str),
        Boundary(parameters["boundary"]),
        CutCause(parameters["cause"]),
        _one_of(table["language"], get_args(Language)),
    )
    mode: RenderMode = _one_of(parameters["mode"], get_args(RenderMode))
    return SegmentRequest(
        id=_get(parameters, "segment", int),
        cut=cut,
        voice=_get(table, "voice", str),
        sample_rate=_get(parameters, "sample_rate", int),
        speed=_number(parameters, "speed"),
        pitch=_number(parameters, "pitch"),
        volume=_number(parameters, "volume"),
        seed=_get(parameters, "seed", int),
        instruct=_get(parameters, "instruct", str),
        lexicon=_lexicon_from(parameters["lexicon"]),
        plan=RenderPlan(mode, tuple(_is(each, int) for each in _get(parameters, "chunk_ms", list))),
        before=_get(table, "before", str),
        parts=tuple(map(_part_from, _get(parameters, "parts", list))),
        origin=_get(table, "origin", str),
    )


def _lexicon_from(value: Any) -> Mapping[str, str] | None:
    if value is None:
        return None
    return {_is(word, str): _is(reading, str) for word, reading in _is(value, dict).items()}


def _part_from(value: Any) -> Part:
    source, start, end, first_sample, reason = _is(value, list)
    return Part(
        _one_of(source, ("engine", "fallback", "clip")),
        _is(start, int),
        _is(end, int),
        _is(first_sample, int),
        _one_of(reason, FAILURE_KINDS),
    )


def _attempt_from(table: Any) -> Attempt:
    start, end = _span_from(table)
    return Attempt(
        engine=_get(table, "engine", str),
        start=start,
        end=end,
        first_sample=_get(table, "first_sample", int),
        seconds=_number(table, "seconds"),
        kind=None if table["kind"] is None else _one_of(table["kind"], FAILURE_KINDS),
        error=_get(table, "error", str),
        trace=_get(table, "stack", str),
    )


def _span_from(table: Any) -> tuple[int, int]:
    start, end = _get(table, "span", list)
    return _is(start, int), _is(end, int)


def _number(table: Any, name: str) -> float:
    value = table[name]
    if not isinstance(value, float):
        value = _is(value, int)
    return float(value)


def _get(table: Any, name: str, kind: type[T]) -> T:
    return _is(table[name], kind)


def _is(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError
    return value


def _one_of(value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ValueError("no dead letter: an unknown word")
    return value
