"""A text of any length in the pieces that utterances take: as long as a message, ended where an utterance must end."""

from collections.abc import AsyncIterator
from typing import Final

from client.errors import UsageError

ZONE: Final = 16_384  # characters before an utterance's limit in which a good place to end it is looked for
_SENTENCE_ENDS: Final = "。！？!?…."
_CLOSING: Final = "\"'”’)）】》」』]"


class Feed:
    """`pieces`: the text, cut anywhere. `position`: characters given out or skipped so far."""

    def __init__(self, pieces: AsyncIterator[str], position: int = 0) -> None:
        self.position = position
        self._pieces = pieces
        self._held = ""
        self._over = False  # no more pieces come
        self._ends_at: int | None = None  # where the present utterance ends, once that is known

    async def skip(self, characters: int) -> AsyncIterator[str]:
        """Gives the text up to there, which is not to be said. Raises UsageError where it is shorter."""
        while characters:
            await self._hold(1)
            part, self._held = self._held[:characters], self._held[characters:]
            if not part:
                raise UsageError(f"the text ends at character {self.position}: it was longer before")
            self.position += len(part)
            characters -= len(part)
            yield part

    async def rest(self) -> AsyncIterator[str]:
        """All that was not given out, as it comes."""
        if self._held:
            yield self._held
        async for piece in self._pieces:
            yield piece

    async def block(self, size: int, room: int) -> tuple[str, bool]:
        """The next `size` characters, fewer only at the end of an utterance that has `room` characters left. The second
        value: this is its end. Waits for all of them.
        """
        if self._ends_at is None and room <= ZONE + size:
            await self._hold(room + 1)
            if len(self._held) > room:
                self._ends_at = self.position + best_end(self._held[:room])
        await self._hold(size + 1)
        left = len(self._held) if self._ends_at is None else self._ends_at - self.position
        return self._take(min(size, left), is_last=left <= size)

    async def piece(self, room: int) -> tuple[str, bool]:
        """What is there, as soon as something is: for text that is still being written. As `block`."""
        await self._hold(1)
        if not self._held:
            return "", True
        end = min(len(self._held), room)
        left = room - end
        if left > ZONE:
            return self._take(end, is_last=False)
        place = best_end(self._held[:end], paragraphs_only=left > ZONE // 2)
        if place < end or left == 0 or self._held[:end].endswith("\n"):
            return self._take(place, is_last=True)
        return self._take(end, is_last=False)

    async def is_over(self) -> bool:
        """Whether nothing is left. Waits for more text, or the end of it."""
        await self._hold(1)
        return not self._held

    async def _hold(self, characters: int) -> None:
        """Until so many characters are held, or the text is over."""
        parts, length = [self._held], len(self._held)
        while length < characters and not self._over:
            piece = await anext(self._pieces, None)
            if piece is None:
                self._over = True
            else:
                parts.append(piece)
                length += len(piece)
        self._held = "".join(parts)

    def _take(self, characters: int, *, is_last: bool) -> tuple[str, bool]:
        text, self._held = self._held[:characters], self._held[characters:]
        self.position += len(text)
        if is_last:
            self._ends_at = None
        return text, is_last


def best_end(text: str, *, paragraphs_only: bool = False) -> int:
    """Where an utterance may end in this text: behind its last line, else sentence, else word, within `ZONE`; else at
    its end.
    """
    low = max(0, len(text) - ZONE)
    if (line := text.rfind("\n", low)) >= 0:
        return line + 1
    if paragraphs_only:
        return len(text)
    for at in range(len(text) - 1, low, -1):
        if text[at - 1] in _SENTENCE_ENDS and text[at] not in _SENTENCE_ENDS + _CLOSING and _ends_here(text, at):
            return at
    for at in range(len(text) - 1, low, -1):
        if text[at].isspace():
            return at + 1
    return len(text)


def _ends_here(text: str, at: int) -> bool:
    """A Latin mark ends a sentence where a space follows ("3.14" goes on)."""
    return not text[at - 1].isascii() or text[at].isspace()
