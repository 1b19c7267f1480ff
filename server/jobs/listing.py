"""Dead letters as text for a person at a terminal, whom no character of theirs may harm."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, get_args

from server.cluster.failures import Attempt, Outcome
from server.engines.base import FAILURE_KINDS
from server.jobs.letters import Letter

TEXT_COLUMNS: Final = 33  # in a list that no terminal bounds
MIN_TEXT_COLUMNS: Final = 12
_GAP: Final = "  "
_OUTCOME: Final = max(map(len, get_args(Outcome)))
_FAILURE: Final = max(map(len, FAILURE_KINDS))
_WIDE: Final = {
    "id": 12,
    "time (UTC)": 19,
    "outcome": _OUTCOME + len(", resolved"),
    "failure": _FAILURE,
    "engine": 10,
    "voice": 12,
    "chars": 5,
}
_NARROW: Final = {"id": 12, "time (UTC)": 16, "outcome": _OUTCOME, "failure": _FAILURE}
"""The columns before the text with their widths: all, and those that leave room for it in 80. `show` has the others."""
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, turn the writing direction round, or cannot be written at all."""


def printable(text: str) -> str:
    r"""The text in one line, with escapes like \n and \u202e for what is no visible character."""
    return "".join(_escaped(each) if unicodedata.category(each) in _UNSAFE else each for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def rows(letters: Iterable[tuple[Letter, bool]], columns: int | None) -> Iterator[str]:
    """A table of letters, each with whether it is resolved, line by line; at least its head. No line is wider than
    `columns` of a terminal, if there are some 70.
    """
    widths, text_width = _widths(columns)
    yield _row({**{name: name for name in widths}, "text": "text"}, widths, text_width)
    for letter, resolved in letters:
        yield _row(_cells(letter, resolved=resolved, wide=widths is _WIDE), widths, text_width)


def _widths(columns: int | None) -> tuple[Mapping[str, int], int]:
    """Of the columns that are shown, and of the text after them."""
    if columns is None:
        return _WIDE, TEXT_COLUMNS
    for widths in (_WIDE, _NARROW):
        left = columns - sum(width + len(_GAP) for width in widths.values())
        if left >= MIN_TEXT_COLUMNS:
            return widths, left
    return _NARROW, MIN_TEXT_COLUMNS


def _cells(letter: Letter, *, resolved: bool, wide: bool) -> dict[str, str]:
    """By column. A narrow one tells of what is resolved no more than that."""
    failed = letter.failed
    text = failed.request.cut.text
    outcome: str = failed.outcome
    if resolved:
        outcome = f"{outcome}, resolved" if wide else "resolved"
    return {
        "id": letter.id,
        "time (UTC)": letter.time.replace("T", " ")[: 19 if wide else 16],
        "outcome": outcome,
        "failure": _first_kind(letter),
        "engine": failed.engine,
        "voice": failed.request.voice,
        "chars": f"{len(text):>5}",
        "text": text.strip(),
    }


def _row(cells: Mapping[str, str], widths: Mapping[str, int], text_width: int) -> str:
    before = (_padded(_shortened(cells[name], width), width) for name, width in widths.items())
    return _GAP.join((*before, _shortened(cells["text"], text_width)))


def _first_kind(letter: Letter) -> str:
    """Why it failed first."""
    return next((each.kind for each in letter.failed.attempts if each.kind is not None), "-")


def _shortened(text: str, width: int) -> str:
    """What fits into so many columns of a terminal, for whom every character is safe."""
    shown = printable(text[: width + 1])  # a character takes one at least
    if _width(shown) <= width:
        return shown
    used = 0
    for at, character in enumerate(shown):
        used += _width(character)
        if used > width - 3:
            return shown[:at] + "..."
    return shown


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Columns of a terminal: Hanzi take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def details(letter: Letter, resolved_at: str | None) -> Iterator[str]:
    """Everything about a letter, line by line."""
    failed, request = letter.failed, letter.failed.request
    cut, plan = request.cut, request.plan
    yield f"dead letter {printable(letter.id)}, {printable(letter.time)}"
    yield _field("outcome", failed.outcome)
    if resolved_at is not None:
        yield _field("resolved", resolved_at)
    yield _field("origin", request.origin or "-")
    yield _field("principal", failed.principal or "-")
    yield _field("engine", f"{failed.engine} ({failed.fingerprint})")
    yield _field("voice", f"{request.voice}, {cut.language}")
    yield _field("span", f"characters {cut.start} to {cut.end} of the utterance, segment {request.id}")
    yield _field("text", cut.text)
    if request.before:
        yield _field("before", request.before)
    yield _field("ends as", f"{cut.boundary.value}, cut because of {cut.cause.value}")
    chunks = f", chunks of {', '.join(map(str, plan.chunk_ms))} ms" if plan.chunk_ms else ""
    yield _field("rendered", f"mode {plan.mode}, {request.sample_rate} Hz{chunks}")
    yield _field(
        "parameters",
        f"speed {request.speed:g}, pitch {request.pitch:g}, volume {request.volume:g}, seed {request.seed}",
    )
    if request.instruct:
        yield _field("instruct", request.instruct)
    for word, reading in (request.lexicon or {}).items():
        yield _field("lexicon", f"{word} = {reading}")
    for part in request.parts:
        where = f"characters {part.start} to {part.end}, from sample {part.first_sample}"
        yield _field("part before", f"{part.source}, {where}: {part.reason}")
    for number, attempt in enumerate(failed.attempts, 1):
        yield ""
        yield from _attempt(number, attempt)


def _field(name: str, value: str) -> str:
    return f"  {name:11}  {printable(value)}"


def _attempt(number: int, attempt: Attempt) -> Iterator[str]:
    how = attempt.kind or "succeeded"
    where = f"characters {attempt.start} to {attempt.end}, from sample {attempt.first_sample}"
    yield f"attempt {number}: {printable(attempt.engine)}, {where}, {attempt.seconds:.3f} s: {how}"
    if attempt.error:
        yield f"  {printable(attempt.error)}"
    for line in attempt.trace.splitlines():
        yield f"  | {printable(line)}"
