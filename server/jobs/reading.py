"""Dead letters read back from their lines (`letters.py`), which anybody may have written or changed.

Whatever decides samples must be within the bounds that the protocol sets to clients: what comes out can be handed to
an engine, and an id to the file system. Words that only tell what happened may be unknown, and so may fields: a newer
server may have more of them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast, get_args

from protocol import client_messages as c
from protocol import fields as f
from protocol import limits
from server.cluster.failures import Attempt, FailedSegment, Outcome
from server.engines.base import FailureKind, RenderMode, RenderPlan
from server.engines.rendering import Part, SegmentRequest
from server.jobs.letters import VERSION, Entry, Letter, Resolved
from server.json_text import loads
from server.text.tokens import Boundary, Cut, CutCause, Language

MAX_CHUNKS: Final = 64
MAX_CHUNK_MS: Final = 60_000
MAX_SECONDS: Final = 1e9  # of an attempt
SAMPLE_RATES: Final = frozenset({*limits.SAMPLE_RATES_PCM, *limits.SAMPLE_RATES_OPUS})  # Hz

T = TypeVar("T")

_CHECKS: Final[Mapping[str, f.Check]] = {
    name: check for message in (c.Start, c.Open) for name, check, _ in f.checks_of(message)
}
"""What the protocol takes, by the names of its fields. Those that both messages have are as in `open`: never null."""
_SEGMENT: Final = f.integer(0, limits.U32)
_POSITION: Final = f.integer(0, limits.MAX_UTTERANCE_CHARS)
_SAMPLE: Final = f.integer(0, limits.U53)
_CHUNK_MS: Final = f.integer(1, MAX_CHUNK_MS)
_SECONDS: Final = f.number(0, MAX_SECONDS)
_TEXT: Final = f.string(limits.MAX_UTTERANCE_CHARS)
_NAME: Final = f.string(256)  # of an engine
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", re.ASCII)
_WORD: Final = re.compile(r"[a-z0-9_]{1,40}")


def decode(line: bytes) -> Entry:
    """What `encode` wrote, here or in another version of the server. Raises ValueError for everything else."""
    try:
        table = loads(line)
        if _get(table, "v", int) != VERSION:
            raise ValueError("another version of the format")
        if "resolved" in table:
            return Resolved(_get(table, "resolved", str), _time_from(table))
        return Letter(_get(table, "id", str), _time_from(table), _failed_from(table))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no dead letter: {type(error).__name__}") from error


def _failed_from(table: Any) -> FailedSegment:
    return FailedSegment(
        request=_request_from(table),
        principal=_get(table, "principal", str),
        engine=_checked(_NAME, table["engine"], str),
        fingerprint=_get(table, "fingerprint", str),
        attempts=tuple(map(_attempt_from, _get(table, "attempts", list))),
        outcome=cast(Outcome, _word(table["outcome"])),
    )


def _request_from(table: Any) -> SegmentRequest:
    start, end = _span_from(table)
    parameters = _get(table, "parameters", dict)
    cut = Cut(
        start,
        end,
        _checked(_TEXT, table["text"], str),
        Boundary(parameters["boundary"]),
        CutCause(parameters["cause"]),
        _one_of(table["language"], get_args(Language)),
    )
    if len(cut.text) > end - start:  # fewer, where JSON made one character of two half ones
        raise ValueError("no dead letter: a text longer than its span")
    return SegmentRequest(
        id=_checked(_SEGMENT, parameters["segment"], int),
        cut=cut,
        voice=_as_protocol("voice", table["voice"], str),
        sample_rate=_one_of(_get(parameters, "sample_rate", int), SAMPLE_RATES),
        speed=_as_protocol("speed", parameters["speed"], float),
        pitch=_as_protocol("pitch", parameters["pitch"], float),
        volume=_as_protocol("volume", parameters["volume"], float),
        seed=_as_protocol("seed", parameters["seed"], int),
        instruct=_as_protocol("instruct", parameters["instruct"], str),
        lexicon=None if parameters["lexicon"] is None else _as_protocol("lexicon", parameters["lexicon"], dict),
        plan=_plan_from(parameters),
        before=_checked(_TEXT, table["before"], str),
        parts=tuple(map(_part_from, _get(parameters, "parts", list))),
        origin=_get(table, "origin", str),
    )


def _plan_from(parameters: Any) -> RenderPlan:
    chunks = _get(parameters, "chunk_ms", list)
    if len(chunks) > MAX_CHUNKS:
        raise ValueError("no dead letter: too many chunks")
    mode: RenderMode = _one_of(parameters["mode"], get_args(RenderMode))
    return RenderPlan(mode, tuple(_checked(_CHUNK_MS, each, int) for each in chunks))


def _part_from(value: Any) -> Part:
    """What was done then: nothing is rendered by it."""
    source, start, end, first_sample, reason = _is(value, list)
    return Part(
        cast(Any, _word(source)),
        *_ordered(start, end),
        _checked(_SAMPLE, first_sample, int),
        cast(FailureKind, _word(reason)),
    )


def _attempt_from(table: Any) -> Attempt:
    start, end = _span_from(table)
    return Attempt(
        engine=_checked(_NAME, table["engine"], str),
        start=start,
        end=end,
        first_sample=_checked(_SAMPLE, table["first_sample"], int),
        seconds=_checked(_SECONDS, table["seconds"], float),
        kind=None if table["kind"] is None else cast(FailureKind, _word(table["kind"])),
        error=_get(table, "error", str),
        trace=_get(table, "stack", str),
    )


def _span_from(table: Any) -> tuple[int, int]:
    start, end = _get(table, "span", list)
    return _ordered(start, end)


def _ordered(start: object, end: object) -> tuple[int, int]:
    first, last = _checked(_POSITION, start, int), _checked(_POSITION, end, int)
    if first > last:
        raise ValueError("no dead letter: it ends before it begins")
    return first, last


def _time_from(table: Any) -> str:
    time = _get(table, "time", str)
    if _TIME.fullmatch(time) is None:
        raise ValueError("no dead letter: no time")
    return time


def _as_protocol(name: str, value: object, kind: type[T]) -> T:
    """A value that a client could have sent in the field of that name."""
    return _checked(_CHECKS[name], value, kind)


def _checked(check: Callable[[object], object], value: object, kind: type[T]) -> T:
    return _is(check(value), kind)


def _get(table: Any, name: str, kind: type[T]) -> T:
    return _is(table[name], kind)


def _is(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError
    return value


def _word(value: Any) -> str:
    """A word that tells what happened, which need not be known here."""
    if _WORD.fullmatch(value) is None:
        raise ValueError("no dead letter: no word")
    return str(value)


def _one_of(value: Any, allowed: Any) -> Any:
    if value not in allowed:
        raise ValueError("no dead letter: an unknown value")
    return value
