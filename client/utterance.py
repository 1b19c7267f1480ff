"""One utterance as a program sees it: write text in, iterate over audio and events."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple, Self

from client.decode import UtteranceDecoder
from client.errors import OutputFailed
from client.items import Audio, Item
from client.sending import SILENCE_CHARS
from client.statistics import UtteranceStatistics
from protocol.media.opus import OpusUnavailableError
from protocol.server_messages import Cancelled, Done, Event

if TYPE_CHECKING:
    from client.shell import Session


class _Unconfirmed(NamedTuple):
    """An item that was taken: which one, how far audio went by then, how far it was heard, what it costs."""

    number: int
    end: int
    heard: int
    cost: int


class Utterance:
    """Made by `Session.start`. Text goes to the newest utterance of a session, until its `end`.

    Iterate over it for everything it yields, in the order of the timeline; over `audio()` for the sound alone. Both end
    after `done` or `cancelled` and raise what went wrong (`client.errors`). Iterate once. A consumer that takes its
    time slows the server down; one that never iterates stops it after about a megabyte.
    """

    def __init__(self, session: "Session", number: int, statistics: UtteranceStatistics, decode: bool) -> None:
        self.number = number
        self.statistics = statistics
        self.result: Done | Cancelled | None = None
        self._session = session
        self._queue: deque[tuple[Item, int]] = deque()  # bounded by the session: it acks no more than fits
        self._ready = asyncio.Event()
        self._over = False  # nothing more comes
        self._closed = False  # `end` or `cancel` was sent: no more text goes out
        self._cancelled = False
        self._decode = decode
        self._decoder: UtteranceDecoder | None = None
        self._pending: deque[Item] = deque()
        self.taken = 0  # items, by who iterates
        self._unconfirmed: deque[_Unconfirmed] = deque()  # bounded as `_queue` is
        self._unconfirmed_bytes = 0

    async def write(self, text: str) -> None:
        """Sends text, as soon as the server has room for it. Cut it anywhere."""
        await self._session._write(self, text)

    async def write_whole(self, text: str) -> None:
        """Sends text as one message, as soon as the server has room for all of it; more, or `end`, follows at once.

        At most `text_chars` and `text_window_chars` of the session's limits.
        """
        await self._session._write_whole(self, text)

    async def flush(self) -> None:
        """Speak what came so far without waiting for more."""
        await self._session._number(self, self._session._state.flush)

    async def silence(self, ms: int) -> None:
        """Speak what came so far, then `ms` (1 to 60,000) of silence, as soon as the server has room for it."""
        await self._session._number(self, lambda now: self._session._state.silence(ms, now), SILENCE_CHARS)

    async def end(self) -> None:
        """No more text. The iteration goes on until all of it was spoken."""
        if not self._closed:
            await self._session._number(self, self._session._state.end)
            self._closed = True

    async def cancel(self, played_sample: int | None = None) -> None:
        """Stop now. `played_sample` is how far the listener heard; `result` then says which text that was.

        Without it, what `played` told last counts, or what was taken. No audio is yielded any more; the iteration ends
        when the server has confirmed. An utterance that is complete but still being played can be cancelled too.
        """
        self.cancel_now(played_sample)

    def cancel_now(self, played_sample: int | None = None) -> None:
        """The same for callers that cannot await, such as signal handlers."""
        confirmed = self._session._cancel(self, played_sample)
        self._closed = self._cancelled = True
        self._pending.clear()
        dropped = [(item, cost) for item, cost in self._queue if confirmed or isinstance(item, Audio)]
        self._queue = deque((item, cost) for item, cost in self._queue if not confirmed and not isinstance(item, Audio))
        for _, cost in dropped:
            self._session._consumed(self.number, 0, cost)
        if confirmed:
            self._over = False

    @property
    def is_ended(self) -> bool:
        """Whether it takes no more text."""
        return self._closed

    @property
    def unconfirmed_bytes(self) -> int:
        """What items cost that were taken and not confirmed. Only with `connect(confirm=True)`."""
        return self._unconfirmed_bytes

    def confirm(self, taken: int, sample: int) -> None:
        """Of the first so many items that were taken, those up to `sample` are safe: the server may forget them."""
        heard, cost = 0, 0
        while self._unconfirmed and (first := self._unconfirmed[0]).number <= taken and first.end <= sample:
            heard, cost = max(heard, first.heard), cost + first.cost
            self._unconfirmed.popleft()
        self._unconfirmed_bytes -= cost
        if cost:
            self._session._consumed(self.number, heard, cost)

    def played(self, sample: int, buffered_ms: int, stalls: int = 0) -> None:
        """A player's report: heard up to `sample`, `buffered_ms` in hand. Without it, what was taken was played."""
        self._session._played(self.number, sample, buffered_ms, stalls)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while True:
            if self._pending:
                return self._pending.popleft()
            while not self._queue:
                if self._over:
                    raise StopAsyncIteration
                if (error := self._session.failure) is not None:
                    raise error
                self._ready.clear()
                await self._ready.wait()
            item, cost = self._queue.popleft()
            self._took(item, cost)
            if isinstance(item, Audio):
                if not self._decode:
                    return item
                self._pending.extend(self._decoded(item))
            else:
                if isinstance(item, Done | Cancelled):
                    self.result = item
                    if self._decoder is not None and isinstance(item, Done) and not self._cancelled:
                        self._pending.extend(self._decoder.finish(item.samples))
                self._pending.append(item)

    async def audio(self) -> AsyncIterator[Audio]:
        """The sound alone."""
        async for item in self:
            if isinstance(item, Audio):
                yield item

    async def events(self) -> AsyncIterator[Event]:
        """The events alone: words, segments, the end. Audio is dropped."""
        async for item in self:
            if not isinstance(item, Audio):
                yield item

    def _took(self, item: Item, cost: int) -> None:
        self.taken += 1
        heard = self._heard_by(item)
        if not self._session.confirms:
            self._session._consumed(self.number, heard, cost)
            return
        end = max(heard, self._unconfirmed[-1].end if self._unconfirmed else 0)
        self._unconfirmed.append(_Unconfirmed(self.taken, end, heard, cost))
        self._unconfirmed_bytes += cost

    def _heard_by(self, item: Item) -> int:
        """How far the timeline was heard by who heard this."""
        if not isinstance(item, Audio):
            return 0
        return max(0, item.end_sample - self._session.pre_skip) if item.packets else item.end_sample

    def _decoded(self, audio: Audio) -> list[Audio]:
        try:
            if self._decoder is None:
                self._decoder = UtteranceDecoder(self._session.sample_rate, self._session.pre_skip)
            return list(self._decoder.decode(audio))
        except OpusUnavailableError as error:
            raise OutputFailed(str(error)) from error

    def _put(self, item: Item, cost: int) -> None:
        self._queue.append((item, cost))
        if isinstance(item, Cancelled):
            self.result = item  # also for a program that stopped iterating
        self._ready.set()

    def _close(self) -> None:
        self._over = True
        self._ready.set()

    def _wake(self) -> None:
        self._ready.set()
