"""Hanzi to the symbols of the Chinese voice: reading, tone sandhi, er-hua, and which symbol belongs to which word."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pypinyin import Style, lazy_pinyin

from server.engines.embedded.pieces import Ending, Piece
from server.engines.embedded.pinyin import split_syllable

SILENCE = "sil"
SYLLABLE_END = "#0"
PAUSE = "#3"
END = "eos"
_UNREAD = "?"  # what the dictionary answers for a character it lacks
RETROFLEX = "er5"  # the r-coloured ending of er-hua, as the voice's training text wrote it

_DIGITS = frozenset("零〇一二三四五六七八九")
_KEEPS_FIRST_TONE_AFTER = _DIGITS | frozenset("十第点")
_KEEPS_FIRST_TONE_BEFORE = _DIGITS | frozenset("月号")
# 儿 after or before these is a syllable of its own ("child", "son"), not an ending.
_FULL_ER_AFTER = frozenset("女婴幼少孤胎患育男宠健弃托生小而")
_FULL_ER_BEFORE = frozenset("子童女科孙媳歌戏时化")


@dataclass(frozen=True, slots=True)
class SymbolRow:
    """Symbols for the acoustic model; `owners[i]` is the index in `piece.words` that symbol `i` sounds for, or None."""

    symbols: tuple[str, ...]
    owners: tuple[int | None, ...]


def symbols_for(piece: Piece, known: Mapping[str, int]) -> SymbolRow:
    """The symbol row of a Chinese piece; characters without a known reading are left out."""
    symbols: list[str] = [SILENCE]
    owners: list[int | None] = [None]

    def add(symbol: str, owner: int | None) -> None:
        symbols.append(symbol)
        owners.append(owner)

    for stretch, pause_after in _stretches(piece):
        readings = _readings("".join(character for character, _ in stretch))
        for (_, word), syllable in zip(stretch, readings, strict=True):
            if syllable == RETROFLEX:
                if symbols[-1] == SYLLABLE_END:
                    symbols.pop(), owners.pop()
                add(RETROFLEX, word)
            elif sounds := _sounds(syllable, known):
                add(sounds[0], word)
                add(sounds[1], word)
            else:
                continue
            add(SYLLABLE_END, word)
        if pause_after and symbols[-1] == SYLLABLE_END:
            symbols[-1], owners[-1] = PAUSE, None
    if symbols[-1] in (SYLLABLE_END, PAUSE):
        symbols.pop(), owners.pop()
    if len(symbols) == 1:
        return SymbolRow((), ())
    if piece.ending is not Ending.SENTENCE:  # keeps the rise and length of speech that goes on
        add(PAUSE, None)
    add(SILENCE, None)
    add(END, None)
    return SymbolRow(tuple(symbols), tuple(owners))


def _stretches(piece: Piece) -> Iterator[tuple[list[tuple[str, int]], bool]]:
    """Characters between marks, each with its word's index, and whether a pause follows."""
    stretch: list[tuple[str, int]] = []
    for index, (word, mark) in enumerate(zip(piece.words, piece.marks, strict=True)):
        stretch.append((word.text, index))
        if mark is not None:
            yield stretch, True
            stretch = []
    if stretch:
        yield stretch, False


def _readings(hanzi: str) -> list[str]:
    """One reading with tone number a character (nothing usable where there is none), by the words they form."""
    readings = _look_up(hanzi)
    if len(readings) != len(hanzi):  # a character outside the dictionary may swallow its neighbours
        readings = [(_look_up(character) or [""])[0] for character in hanzi]
    return [_adjusted(hanzi, i, reading) for i, reading in enumerate(readings)]


def _look_up(hanzi: str) -> list[str]:
    return lazy_pinyin(
        hanzi, style=Style.TONE3, neutral_tone_with_five=True, tone_sandhi=True, errors=lambda _: _UNREAD
    )


def _adjusted(hanzi: str, index: int, reading: str) -> str:
    """Rules the dictionary lacks: 一 as a digit or ordinal keeps its first tone; 儿 as an ending is er-hua."""
    before = hanzi[index - 1] if index else ""
    after = hanzi[index + 1] if index + 1 < len(hanzi) else ""
    if hanzi[index] == "一" and (before in _KEEPS_FIRST_TONE_AFTER or after in _KEEPS_FIRST_TONE_BEFORE):
        return "yi1"
    if hanzi[index] == "儿" and before and before not in _FULL_ER_AFTER and after not in _FULL_ER_BEFORE:
        return RETROFLEX
    return reading


def _sounds(syllable: str, known: Mapping[str, int]) -> tuple[str, str] | None:
    if not syllable or syllable == _UNREAD:
        return None
    tone = syllable[-1] if syllable[-1].isdigit() else "5"
    initial, final = split_syllable(syllable.rstrip("12345"))
    if initial not in known or final + tone not in known:
        return None
    return initial, final + tone
