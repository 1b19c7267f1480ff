"""Cut a segment's tokens into pieces: stretches that one model speaks in one call."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from server.engines.base import Segment, WordTiming
from server.engines.embedded.sayable import sayable
from server.text.characters import is_hanzi
from server.text.tokens import Boundary, Language, Token

MAX_WORDS: dict[Language, int] = {"zh": 32, "en": 14}
"""Words a piece may hold. Segments arrive with about 40 source characters; numbers written out can be much longer. The
bounds keep one model call, with the words said along, near 50 ms and far below the models' own limits (2048 frames, 400
phonemes)."""


class Mark(Enum):
    """What a punctuation mark asks of a voice."""

    ENUMERATION = "、"
    COMMA = ","
    COLON = ":"
    STOP = "."
    QUESTION = "?"
    EXCLAMATION = "!"


_MARKS = {
    **dict.fromkeys("、", Mark.ENUMERATION),
    **dict.fromkeys(",，…⋯—–―~～", Mark.COMMA),
    **dict.fromkeys(";；:：", Mark.COLON),
    **dict.fromkeys(".。．｡", Mark.STOP),
    **dict.fromkeys("?？", Mark.QUESTION),
    **dict.fromkeys("!！", Mark.EXCLAMATION),
}


_SENTENCE_MARKS = frozenset({Mark.STOP, Mark.QUESTION, Mark.EXCLAMATION})
PARTING: dict[Language, frozenset[Mark]] = {
    "zh": _SENTENCE_MARKS | {Mark.COLON},
    "en": _SENTENCE_MARKS | {Mark.COLON, Mark.COMMA},
}
"""Marks that end a piece: at these the voice would pause too briefly, or not at all."""

CONTEXT_WORDS = 8
"""How many of the words before a piece its model is given along with it, back to the end of a sentence. More come a
little closer to the sentence spoken in one call, and cost as much again (bench.joins)."""
STOCK_CONTINUATION: dict[Language, tuple[str, ...]] = {"zh": tuple("和他们"), "en": ("because", "we")}
"""Said and thrown away after a piece that runs on into what is not known yet: without anything to follow both voices
end a phrase there, and the English one makes its last word twice as long."""


class Ending(Enum):
    """How a piece ends. A `JOIN` runs on into the next piece without a pause."""

    JOIN = "join"
    CLAUSE = "clause"
    SENTENCE = "sentence"


@dataclass(frozen=True, slots=True)
class Word:
    """A sayable token, or a part of one: `text` is one Hanzi, or a Latin word in ASCII."""

    token: int  # index in the segment's tokens; -1 for a word of other segments
    text: str


@dataclass(frozen=True, slots=True)
class Piece:
    """`marks[i]` follows word `i`. `pause_ms` is the silence wanted after the piece at speed 1.

    The first `before` and the last `after` words belong to other pieces. The model says them, too, so that the words
    between sound as they do in the midst of a sentence, and their sound is thrown away.
    """

    language: Language
    words: tuple[Word, ...]
    marks: tuple[Mark | None, ...]
    ending: Ending
    pause_ms: int
    before: int = 0
    after: int = 0

    @property
    def heard(self) -> slice:
        """Where the piece's own words are among `words`."""
        return slice(self.before, len(self.words) - self.after)


PAUSE_MS = {
    Mark.ENUMERATION: 200,
    Mark.COMMA: 270,
    Mark.COLON: 320,
    Mark.STOP: 420,
    Mark.QUESTION: 420,
    Mark.EXCLAMATION: 420,
}
"""Silence from the end of speech to the start of speech; the same for both voices."""
_INNER_PAUSE_MS = {**PAUSE_MS, Mark.ENUMERATION: 160, Mark.COMMA: 200, Mark.COLON: 280}
_LEAST_WORDS = 2  # on both sides of a mark that parts two pieces: "Yes, sir" is one
_PARAGRAPH_PAUSE_MS = 650
_JOIN_PAUSE_MS = 0


def mark_of(token: Token) -> Mark | None:
    """The strongest meaning of a mark token; None for quotes, brackets and unknown signs."""
    found = [_MARKS[c] for c in token.text if c in _MARKS]
    if token.text.strip(".") == "" and len(token.text) > 1:
        return Mark.COMMA  # an ellipsis in dots
    return next((m for m in found if m in (Mark.QUESTION, Mark.EXCLAMATION)), found[0] if found else None)


def cut_into_pieces(segment: Segment, languages: Collection[Language]) -> tuple[Piece, ...]:
    """Pieces in speaking order, each in one of the voice's `languages`. A segment with nothing sayable gives none."""
    runs = list(_runs(segment.tokens, languages))
    phrases = [phrase for run in runs for phrase in _split_at_marks(run)]
    bounded = [part for phrase in phrases for part in _split_long(phrase, segment.tokens)]
    said = _said_before(segment, languages)
    pieces = []
    for number, part in enumerate(bounded):
        language, words, marks = part
        following = bounded[number + 1] if number + 1 < len(bounded) else None
        ending, pause = _inner_ending(marks[-1]) if following else _segment_ending(segment.boundary, marks[-1])
        context = _context(said, language)
        runs_on = ending is Ending.JOIN and marks[-1] is None
        more = _continuation(language, following) if runs_on else []
        said = _newest([*said, *_spoken(part)])
        words = [*(word for _, word, _ in context), *words, *more]
        marks = [*(mark for _, _, mark in context), *marks, *(None for _ in more)]
        pieces.append(Piece(language, tuple(words), tuple(marks), ending, pause, len(context), len(more)))
    return tuple(pieces)


_Run = tuple[Language, list[Word], list[Mark | None]]
_Spoken = tuple[Language, Word, Mark | None]  # a word and what follows it


def _spoken(run: _Run) -> Iterator[_Spoken]:
    language, words, marks = run
    return ((language, word, mark) for word, mark in zip(words, marks, strict=True))


def _said_before(segment: Segment, languages: Collection[Language]) -> list[_Spoken]:
    """The last words before the segment."""
    spoken = [each for run in _runs(segment.before, languages) for each in _spoken(run)]
    return [(language, Word(-1, word.text), mark) for language, word, mark in _newest(spoken)]


def _newest(spoken: list[_Spoken]) -> list[_Spoken]:
    return spoken[max(0, len(spoken) - CONTEXT_WORDS) :]


def _context(said: Sequence[_Spoken], language: Language) -> list[_Spoken]:
    """Those of the words said last that help to say what follows them in `language`."""
    start = len(said)
    while start and said[start - 1][0] == language and said[start - 1][2] not in _SENTENCE_MARKS:
        start -= 1
    return list(said[start:])


def _continuation(language: Language, following: _Run | None) -> list[Word]:
    """What to say after a piece that ends between two words; nothing where the other voice goes on."""
    stock = STOCK_CONTINUATION[language]
    if following is None:
        return [Word(-1, text) for text in stock]
    return following[1][: len(stock)] if following[0] == language else []


def _runs(tokens: Sequence[Token], languages: Collection[Language]) -> Iterator[_Run]:
    """Stretches of one language, marks attached to the word before them; marks before any word are dropped."""
    current: _Run | None = None
    for index, token in enumerate(tokens):
        if token.kind == "mark":
            mark = mark_of(token)
            if current and mark and _stronger(mark, current[2][-1]):
                current[2][-1] = mark
            continue
        said = sayable(token, languages)
        if said is None:
            continue
        language, texts = said
        if current is None or current[0] != language:
            if current:
                yield current
            current = (language, [], [])
        current[1].extend(Word(index, text) for text in texts)
        current[2].extend(None for _ in texts)
    if current:
        yield current


def _stronger(mark: Mark, other: Mark | None) -> bool:
    return other is None or PAUSE_MS[mark] > PAUSE_MS[other]


def _split_at_marks(run: _Run) -> Iterator[_Run]:
    """Cut a run where its voice would read over a mark: the English model pauses at hardly any, the Chinese one too
    briefly at semicolons and colons."""
    language, words, marks = run
    parting = PARTING[language]
    start = 0
    for i, mark in enumerate(marks[:-_LEAST_WORDS], 1):
        if mark in parting and i - start >= _LEAST_WORDS:
            yield language, words[start:i], marks[start:i]
            start = i
    yield language, words[start:], marks[start:]


def _split_long(run: _Run, tokens: Sequence[Token]) -> Iterator[_Run]:
    """Cut a run in parts of at most `MAX_WORDS`: at the last fitting mark, else evenly, between spans."""
    language, words, marks = run
    limit = MAX_WORDS[language]
    start = 0
    while len(words) - start > limit:
        left = len(words) - start
        middle = start + left // -(-left // limit)  # even parts sound better than a full one and a stump
        least = start + (middle - start) // 2
        at_mark = next((i + 1 for i in range(start + limit - 1, least, -1) if marks[i]), None)
        end = at_mark or _outside_span(words, tokens, start, middle)
        yield language, words[start:end], marks[start:end]
        start = end
    yield language, words[start:], marks[start:]


def _outside_span(words: Sequence[Word], tokens: Sequence[Token], start: int, end: int) -> int:
    """Move a cut back to where the source span changes, when that leaves at least half of the part."""
    for cut in range(end, start + (end - start) // 2, -1):
        if not same_span(tokens[words[cut - 1].token], tokens[words[cut].token]):
            return cut
    return end


def same_span(a: Token, b: Token) -> bool:
    """Whether two tokens read the same place of the source text."""
    return (a.start, a.end) == (b.start, b.end)


def _inner_ending(mark: Mark | None) -> tuple[Ending, int]:
    if mark is None:
        return Ending.JOIN, _JOIN_PAUSE_MS
    return (Ending.SENTENCE if mark in _SENTENCE_MARKS else Ending.CLAUSE), _INNER_PAUSE_MS[mark]


def _segment_ending(boundary: Boundary, mark: Mark | None) -> tuple[Ending, int]:
    match boundary:
        case Boundary.WORD:
            return Ending.JOIN, _JOIN_PAUSE_MS
        case Boundary.CLAUSE:
            return Ending.CLAUSE, min(PAUSE_MS[mark or Mark.COMMA], PAUSE_MS[Mark.COLON])
        case Boundary.SENTENCE:
            return Ending.SENTENCE, PAUSE_MS[Mark.STOP]
        case Boundary.PARAGRAPH:
            return Ending.SENTENCE, _PARAGRAPH_PAUSE_MS


def word_timings(piece: Piece, tokens: Sequence[Token], spans: Sequence[tuple[int, int]]) -> tuple[WordTiming, ...]:
    """Timings of a piece's own words; neighbours that share a source span become one. `spans[i]` = samples of the
    `i`th of them.
    """
    timings: list[WordTiming] = []
    previous: int | None = None
    for word, (first, end) in zip(piece.words[piece.heard], spans, strict=True):
        token = tokens[word.token]
        if previous is not None and same_span(tokens[previous], token):
            last = timings[-1]
            joint = "" if piece.language == "zh" or is_hanzi(token.text[0]) else " "
            text = last.text if word.token == previous else last.text + joint + token.text
            timings[-1] = WordTiming(text, last.start, last.end, last.first_sample, end)
        else:
            timings.append(WordTiming(token.text, token.start, token.end, first, end))
        previous = word.token
    return tuple(timings)
