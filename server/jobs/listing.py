"""Dead letters as text for a person at a terminal, whom no character of theirs may harm."""

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

from server.cluster.failures import Attempt
from server.jobs.letters import Letter

LIST_TEXT_COLUMNS: Final = 30
_HEAD: Final = ("id", "time (UTC)", "outcome", "failure", "engine", "voice", "chars", "text")
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, turn the writing direction round, or cannot be written at all."""


def printable(text: str) -> str:
    r"""The text in one line, with escapes like \n and \u202e for what is no visible character."""
    return "".join(_escaped(each) if unicodedata.category(each) in _UNSAFE else each for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def rows(letters: Iterable[tuple[Letter, bool]]) -> Iterator[str]:
    """A table of letters, each with whether it is resolved, line by line; at least its head."""
    yield _row(_HEAD)
    for letter, resolved in letters:
        failed = letter.failed
        text = failed.request.cut.text
        yield _row(
            (
                printable(letter.id),
                printable(letter.time[:19].replace("T", " ")),
                failed.outcome + (", resolved" if resolved else ""),
                _first_kind(letter),
                printable(failed.engine),
                printable(failed.request.voice),
                str(len(text)),
                _shortened(printable(text)),
            )
        )


def _row(columns: Iterable[str]) -> str:
    identity, time, outcome, kind, engine, voice, characters, text = columns
    return f"{identity:12}  {time:19}  {outcome:19}  {kind:13}  {engine:10}  {voice:12}  {characters:>5}  {text}"


def _first_kind(letter: Letter) -> str:
    """Why it failed first."""
    return next((each.kind for each in letter.failed.attempts if each.kind is not None), "-")


def _shortened(text: str) -> str:
    """What fits into so many columns of a terminal, where Hanzi take two."""
    width = 0
    for at, character in enumerate(text):
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if width > LIST_TEXT_COLUMNS:
            return text[:at] + "..."
    return text


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
