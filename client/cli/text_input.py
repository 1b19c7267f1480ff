"""The text of a run: opened, and opened again where another session reads it, up to where the audio is."""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Callable

from client.cli.caption_file import CaptionFile
from client.cli.feed import Feed
from client.cli.keeper import PrefixHash
from client.cli.plan import Plan
from client.cli.state import STDIN, Source
from client.cli.text_source import TextSource, open_text, read_text
from client.errors import UsageError


class TextInput:
    """`source`: what a state says of it. `tell`: given what the user should know."""

    def __init__(self, args: argparse.Namespace, plan: Plan, tell: Callable[[str], None]) -> None:
        self.source = Source(STDIN)
        self._encoding: str | None = args.encoding if plan.text is None else None
        self._plan = plan
        self._tell = tell
        self._text: TextSource | None = None

    @property
    def is_stdin(self) -> bool:
        """Whether it can be read once only."""
        return self.source.path == STDIN

    @property
    def is_at_hand(self) -> bool:
        """Whether it is a file, read as needed."""
        return not self.is_stdin and self._plan.rate is None

    @property
    def encoding(self) -> str | None:
        """Of the file, where that is known."""
        return self._text.encoding if self._text is not None else None

    @property
    def characters(self) -> int | None:
        """Its length, where that is known."""
        return self._text.characters if self._text is not None else None

    async def open(self) -> AsyncIterator[str]:
        """The text from its start. Raises UsageError."""
        plan = self._plan
        if plan.text is not None:
            return _once(plan.text)
        before, self._text = self._text, await asyncio.to_thread(open_text, plan.source, self._encoding)
        if before is None:
            if self._text.note is not None:
                self._tell(self._text.note)
            if plan.keeps_state:
                self.source = await asyncio.to_thread(Source.of, plan.source)
        elif before.descriptor > 0:
            os.close(before.descriptor)
        return read_text(self._text, self._tell)

    async def skip(self, feed: Feed, position: int, captions: CaptionFile | None) -> PrefixHash | None:
        """What is said already, up to there. Captions may still need the end of it. Gives the hash of it where a state
        needs that. Raises UsageError.
        """
        state = self._plan.state
        needed = feed.position if captions is None else captions.needs_text_from
        prefix = PrefixHash() if self.is_stdin and state is not None else None
        at = feed.position
        async for text in feed.skip(position):
            if captions is not None and at + len(text) > needed:
                captions.text(text[max(0, needed - at) :])
            at += len(text)
            if prefix is not None:
                prefix.write(text)
                prefix.up_to(at)
        if prefix is None or state is None or position != state.whole.text:
            return prefix
        if prefix.up_to(position) != state.text_sha256:
            raise UsageError("this is not the text of the earlier run: begin anew, without --resume-from")
        return prefix


async def _once(text: str) -> AsyncIterator[str]:
    yield text
