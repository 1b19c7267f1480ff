"""Where a segment's codes are cut into pieces for the flow model. Pure.

The first piece is small, so that sound comes soon; each one lasts longer than the next takes to make, so they grow.
Where the cuts lie depends on the codes alone, never on when they came: a segment is cut alike whenever it is rendered.
"""

from typing import Final

FIRST: Final = (15, 25)  # codes of the first pieces; 25 are a second
THEN: Final = 50
LOOKAHEAD: Final = 3  # codes behind a piece that it needs


def hop(number: int, chunk_ms: tuple[int, ...] = ()) -> int:
    """Codes of piece `number` (from 0). `chunk_ms`: what a `RenderPlan` asks for instead."""
    if chunk_ms:
        return max(1, round(chunk_ms[min(number, len(chunk_ms) - 1)] / 40))
    return FIRST[number] if number < len(FIRST) else THEN


def next_piece(
    number: int, begin: int, known: int, *, complete: bool, chunk_ms: tuple[int, ...] = ()
) -> tuple[int, bool] | None:
    """The end of piece `number`, which begins at code `begin` where `known` codes are there (all, if `complete`),
    and whether it is the last one; None while it takes more codes to tell.
    """
    end = begin + hop(number, chunk_ms)
    if known >= end + LOOKAHEAD:
        return end, False
    return (known, True) if complete else None
