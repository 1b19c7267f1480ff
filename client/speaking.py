"""One text, or the pieces of one as they come, spoken: what is written and what is heard, side by side."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from typing import TYPE_CHECKING

from client.items import Audio
from protocol.server_messages import Event

if TYPE_CHECKING:
    from client.utterance import Utterance


async def spoken(
    utterance: "Utterance",
    text: str | Iterable[str] | AsyncIterable[str],
    on_event: Callable[[Event], None] | None,
) -> AsyncGenerator[Audio, None]:
    """The audio of the text, written to this utterance meanwhile. Leaving the iteration early cancels it."""
    writing = asyncio.create_task(_write_all(utterance, text), name="cosystream client text")
    try:
        async for item in utterance:
            if isinstance(item, Audio):
                yield item
            elif on_event is not None:
                on_event(item)
        await writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        if utterance.result is None:
            await utterance.cancel()


async def _write_all(utterance: "Utterance", text: str | Iterable[str] | AsyncIterable[str]) -> None:
    try:
        if isinstance(text, AsyncIterable):
            async for piece in text:
                await utterance.write(piece)
        else:
            for piece in [text] if isinstance(text, str) else text:
                await utterance.write(piece)
        await utterance.end()
    except Exception:
        await utterance.cancel()  # no more text comes: let the reader of the audio see the end
        raise
