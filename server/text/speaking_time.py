"""About how long it takes to say a text, for whoever must guess: `pacing` knows how long it takes at the least.

Guesses are needed where a segment goes wrong: how far an engine without word times got, how long a clip stands for a
text, and when an engine has said far more than the text can hold.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from server.text.tokens import Boundary, Token

# Seconds, rounded, of the embedded voices at their usual speed: 60 segments of both, the mean.
_HANZI_S: Final = 0.21
_WORD_S: Final = 0.12  # any other word, and ...
_LETTER_S: Final = 0.055  # ... each letter of it
_MARK_S: Final = 0.25  # the pause at a mark within the text
_PAUSE_S: Final = {Boundary.WORD: 0.0, Boundary.CLAUSE: 0.25, Boundary.SENTENCE: 0.4, Boundary.PARAGRAPH: 0.55}

_PATIENCE: Final = 8.0  # times as long as usual: no voice speaks that slowly, whatever its instructions
_PATIENCE_S: Final = 5.0  # and so much more, for what comes before and after the words


def usual_duration(tokens: Sequence[Token], boundary: Boundary) -> float:
    """Seconds that the tokens and the pause after them usually last; 0 where they say nothing."""
    if not any(token.kind == "word" for token in tokens):
        return 0.0
    return sum(map(_token_s, tokens)) + _PAUSE_S[boundary]


def longest_duration(tokens: Sequence[Token], boundary: Boundary) -> float:
    """Seconds after which an engine that still speaks does not say this text any more."""
    return _PATIENCE_S + _PATIENCE * usual_duration(tokens, boundary)


def position_after(tokens: Sequence[Token], seconds: float) -> int | None:
    """Where in the text a voice of usual speed is after so many seconds: the end of the last word that is certainly
    said by then, and None where that is none of them.
    """
    at, reached = 0.0, None
    for token, following in zip_longest(tokens, tokens[1:]):
        at += _token_s(token)
        if at > seconds:
            break
        if token.kind == "word" and (following is None or following.start >= token.end):  # else a number goes on
            reached = token.end
    return reached


def _token_s(token: Token) -> float:
    if token.kind == "mark":
        return _MARK_S
    return _HANZI_S if token.language == "zh" else _WORD_S + _LETTER_S * len(token.text)
