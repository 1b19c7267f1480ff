r"""A dead letter: a segment that an engine failed at, as one line of JSON.

    {"v": 1, "id": "3f9c...", "time": "2026-02-03T04:05:06.789Z", "origin": ..., ..., "outcome": "fallback"}\n
    {"v": 1, "resolved": "3f9c...", "time": ...}\n       it succeeded when it was tried again

There is everything in it that decides the segment's samples, and no audio. Texts may have half surrogate pairs, as
JSON of clients may. `reading.py` is the way back.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from server.cluster.failures import Attempt, FailedSegment
from server.engines.rendering import SegmentRequest
from server.json_text import dumps

VERSION: Final = 1
ID_BYTES: Final = 6
"""One in 10,000 that any two of 200,000 letters share an id."""
MAX_ERROR_CHARS: Final = 2_000
MAX_STACK_CHARS: Final = 16_384
"""The end is kept: it is where the error happened. Python's own are a few thousand characters."""
MAX_ATTEMPTS: Final = 64
"""More than pools tell of, which is each failure (the recovery gives up after 12) and the last attempt; of more, the
first and the last."""

_ID: Final = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")


@dataclass(frozen=True, slots=True)
class Letter:
    """A failed segment with the name it got, which is also a name for files. `time`: UTC, ISO 8601.

    Raises ValueError where `id` is no id.
    """

    id: str
    time: str
    failed: FailedSegment

    def __post_init__(self) -> None:
        _check_id(self.id)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The letter `id` succeeded when it was tried again. Raises ValueError where `id` is no id."""

    id: str
    time: str

    def __post_init__(self) -> None:
        _check_id(self.id)


Entry: TypeAlias = Letter | Resolved


def _check_id(identity: str) -> None:
    """Raises ValueError for all but what `secrets.token_hex(ID_BYTES)` makes."""
    if _ID.fullmatch(identity) is None:
        raise ValueError(f"the id of a dead letter is {2 * ID_BYTES} hexadecimal digits")


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
