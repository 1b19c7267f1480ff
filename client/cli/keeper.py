"""Keeps `NAME.state` in step with the file. The server may forget only what both of them have."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

from client.cli.caption_file import CaptionFile
from client.cli.ledger import Ledger
from client.cli.state import State, remove_state, state_name, write_state
from client.saved import Blocks, SavedSession
from client.shell import Session
from client.sinks import FileSink
from client.utterance import Utterance

CHECKPOINT_S: Final = 0.2  # so long the server waits for an ack ...
CHECKPOINT_BYTES: Final = 131_072  # ... or for so much audio; a quarter of what it has on the way at most
SYNC_S: Final = 1.0  # so often what is written is put on the disk itself


class PrefixHash:
    """SHA-256 of a text up to a position that follows the writing."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._at = 0
        self._ahead = ""  # written and not hashed yet

    def write(self, text: str) -> None:
        """More text."""
        self._ahead += text

    def up_to(self, position: int) -> str:
        """Of the text before this position, which never goes back."""
        part, self._ahead = self._ahead[: position - self._at], self._ahead[position - self._at :]
        self._at += len(part)
        self._hash.update(part.encode("utf-8", "surrogatepass"))
        return self._hash.hexdigest()


class Keeper:
    """`state`: as it was written last. `advance` is told how many samples are safe, before each state."""

    def __init__(self, output: Path, state: State, ledger: Ledger, advance: Callable[[int], None]) -> None:
        self.path = state_name(output)
        self.state = state
        self.captions: CaptionFile | None = None
        self.prefix: PrefixHash | None = None  # of standard input
        self._ledger = ledger
        self._advance = advance
        self._sink: FileSink | None = None
        self._session: Session | None = None
        self._utterance: Utterance | None = None
        self._blocks: Blocks | None = None
        self._busy = asyncio.Lock()
        self._news = asyncio.Event()
        self._much = asyncio.Event()
        self._synced_at = float("-inf")
        self._limit = CHECKPOINT_BYTES

    async def follow(self, session: Session, utterance: Utterance, sink: FileSink, blocks: Blocks | None) -> None:
        """From now on this utterance goes to that file. `blocks` None: the session cannot be gone on with.

        Raises OutputFailed.
        """
        self._session, self._utterance, self._sink, self._blocks = session, utterance, sink, blocks
        unacked = session.limits.get("unacked_bytes")
        if isinstance(unacked, int):
            self._limit = min(CHECKPOINT_BYTES, unacked // 4)
        async with self._busy:
            self.state = self._snapshot(sink.position)
            write_state(self.path, self.state, sync=False)

    def let_go(self) -> None:
        """The file is about to be opened anew: until `follow` there is nothing to write down."""
        self._sink = self._session = self._utterance = self._blocks = None

    async def announce(self, blocks: Blocks) -> None:
        """The end of the text is about to be sent. Raises OutputFailed."""
        async with self._busy:
            if self.state.session is not None:
                self._blocks = blocks
                self.state = replace(self.state, session=replace(self.state.session, blocks=blocks))
                write_state(self.path, self.state, sync=False)

    def took(self) -> None:
        """An item was written."""
        self._news.set()
        assert self._utterance is not None
        if self._utterance.unconfirmed_bytes >= self._limit:
            self._much.set()

    async def run(self) -> None:
        """Until it is cancelled. Whatever goes wrong, the utterance is cancelled, as nothing is acked any more, and the
        error raised.
        """
        try:
            while True:
                with suppress(TimeoutError):  # what lies in a half-filled page or frame is there after a `sync`
                    async with asyncio.timeout(SYNC_S if self._is_behind else None):
                        await self._news.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECKPOINT_S):
                        await self._much.wait()
                self._news.clear()
                self._much.clear()
                await self.checkpoint()
        except Exception:
            assert self._utterance is not None
            self._utterance.cancel_now()
            raise

    @property
    def _is_behind(self) -> bool:
        return self._utterance is not None and self._utterance.unconfirmed_bytes > 0

    async def checkpoint(self) -> None:
        """Writes down what the file has, then lets the server forget that. Raises OutputFailed."""
        sink, utterance = self._sink, self._utterance
        if sink is None or utterance is None:
            return
        async with self._busy:
            if monotonic() - self._synced_at >= SYNC_S:
                self._advance(sink.position)
                place = self._ledger.whole
                mark = self.captions.mark() if self.captions is not None else None
                if self.captions is not None:
                    await self.captions.sync()
                await sink.sync()
                self.state = replace(self.state, synced=place, synced_mark=mark)
                self._synced_at = monotonic()
            taken, position = utterance.taken, sink.position
            self._advance(position)
            self.state = self._snapshot(position)
            await _to_its_end(asyncio.to_thread(write_state, self.path, self.state, sync=True))
            utterance.confirm(taken, position - self._ledger.begun.samples)

    async def leave(self, *, cancelled: bool) -> None:
        """This run ends too soon. `cancelled`: so does the session. Raises OutputFailed."""
        if cancelled:
            self._blocks = None
        await self.checkpoint()

    def complete(self, samples: int) -> None:
        """All of it is in the file, which has so many samples. Raises OutputFailed."""
        self.state = replace(self.state, samples=samples, session=None, is_complete=True)
        write_state(self.path, self.state, sync=True)

    def remove(self) -> None:
        """The file has its name."""
        remove_state(self.path)

    def _snapshot(self, samples: int) -> State:
        ledger = self._ledger
        return replace(
            self.state,
            whole=ledger.whole,
            samples=samples,
            begun=ledger.begun,
            text_sha256=self.prefix.up_to(ledger.whole.text) if self.prefix is not None else "",
            caption_mark=self.captions.mark() if self.captions is not None else None,
            session=self._saved(samples),
        )

    def _saved(self, samples: int) -> SavedSession | None:
        session, utterance, ledger = self._session, self._utterance, self._ledger
        if session is None or utterance is None or self._blocks is None:
            return None
        name, token, epoch, generation = session.credentials
        return SavedSession(
            session=name,
            token=token,
            epoch=epoch,
            generation=generation,
            config=session.config,
            limits=session.limits,
            utterance=utterance.number,
            next_sample=samples - ledger.begun.samples,
            event=ledger.event,
            told=ledger.told,
            segments=ledger.open_segments,
            blocks=self._blocks,
        )


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """A thread cannot be cancelled: who is cancelled waits for it, so that the next one finds things in order."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
