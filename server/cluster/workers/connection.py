"""The gateway's side of one connection to a worker process: asks, hands on what comes, and notices when nothing does.

While something is asked for, a timer looks twice a second for a sign of life. A worker that says nothing for three
looks, pings unanswered, is frozen; one that lives but finishes nothing for longer than a step may take hangs. Either
is killed, because its streams go on elsewhere: of two workers that render one stream, one would work for nobody. Looks
are counted, not seconds, so that a gateway which was itself held up does not take it for a worker's fault.
"""

import asyncio
import math
import os
import signal
from collections.abc import Sequence
from typing import Final, Protocol, cast

import structlog

from server.cluster.base import Capacity, PoolUnavailable, WorkerLost
from server.cluster.workers.lessons import Lessons
from server.cluster.workers.messages import (
    WIRE_VERSION,
    Audio,
    Cancel,
    End,
    Failed,
    FromGateway,
    Hello,
    Learn,
    Learnt,
    Leaving,
    Load,
    Next,
    Ping,
    Pong,
    Stepped,
    Synthesize,
)
from server.cluster.workers.wire import FrameReader, WireError, encode
from server.engines.base import EngineError
from server.engines.rendering import RenderedChunk, SegmentRequest

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 0.5
SILENT_LOOKS: Final = 3
STEP_GRACE_S: Final = 2.0  # beyond the time a step may take, in which a worker should have ended itself

Answer = RenderedChunk | EngineError | WorkerLost | PoolUnavailable | None
"""What came of asking: a chunk, the error that ended the stream, None where the stream is complete."""


class Asker(Protocol):
    """Who has a stream at a worker."""

    def answered(self, answer: Answer) -> None:
        """What was asked for is there."""

    def lost(self, blame: int) -> None:
        """It will not come: the worker is lost. Go on at another one. `blame`: 0 where the worker did not die of this
        stream, 1 where it may have, 2 where it did.
        """


class Owner(Protocol):
    """Who has connections: the pool."""

    def greeted(self, connection: "WorkerConnection", hello: Hello) -> str | None:
        """A worker is ready. Why it cannot be used, in a line, where it cannot."""

    def stepped(self, step: Stepped) -> None:
        """A worker's engine did a step."""

    def gone(self, connection: "WorkerConnection", reason: str) -> None:
        """A worker that was ready is not connected any more: it `died`, `hung`, was `stopping`, or this side `closed`
        the connection.
        """


class WorkerConnection(asyncio.Protocol):
    """See the module text."""

    def __init__(self, owner: Owner, *, step_timeout_s: float) -> None:
        self.pid = 0
        self.was_ready = False
        self.refusal: str | None = None  # why this worker cannot be used
        self.over = asyncio.Event()
        self.used = 0  # when a stream was last given to it, in streams given
        self.streams: dict[int, Asker] = {}  # bounded by the sessions of this gateway
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._ready = False
        self._leaving = False
        self._lost = False
        self._numbers = 0
        self._unsent: list[bytes] = []  # goes out with what is said next, in one write
        self._load = Load(Capacity())
        self.lessons = Lessons()
        self._untold: dict[int, bool] = {}  # asked since the worker said how it is doing; whether it is a first chunk
        self._asking: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False
        self._worked = False
        self._steps = 0
        self._silent_looks = 0
        self._idle_looks = 0
        self._idle_looks_allowed = math.ceil((step_timeout_s + STEP_GRACE_S) / LOOK_EVERY_S)

    # What the pool asks

    @property
    def usable(self) -> bool:
        """Whether a stream may be given to it."""
        return self._ready and not self._leaving

    @property
    def open(self) -> bool:
        """Whether there is a connection."""
        return self._transport is not None and not self.over.is_set()

    @property
    def crowd(self) -> int:
        """Streams that share the worker, those of other gateways included."""
        return len(self.streams) + self._load.streams_elsewhere

    def capacity(self) -> Capacity:
        """What the worker said last, and what was asked for since."""
        now = self._load.capacity
        return Capacity(
            streams=now.streams,
            first_chunk_s=now.first_chunk_s,
            waiting=now.waiting + len(self._untold),
            waiting_first=now.waiting_first + sum(self._untold.values()),
            late_s=now.late_s,
            context=now.context,
        )

    def begin(self, asker: Asker, request: SegmentRequest, start_sample: int, principal: str) -> int:
        """Give it a stream; the stream's number. The worker hears of it with the first `ask`. Raises EngineError."""
        self._count()
        try:
            self._unsent += encode(Synthesize(self._numbers, request, start_sample, principal))
        except ValueError as error:
            raise EngineError(str(error)) from error
        self.streams[self._numbers] = asker
        return self._numbers

    def learn(self, recording: bytes, text: str) -> "asyncio.Future[bytes]":
        """Have it make a voice, while it is usable: what it learnt, or ValueError, EngineError or PoolUnavailable."""
        number = self._count()
        lesson = self.lessons.begin(number)
        self._send(Learn(number, recording, text))
        return lesson

    def _count(self) -> int:
        """The next stream's number."""
        self._numbers = self._numbers % 0xFFFFFFFF + 1
        return self._numbers

    def ask(self, stream: int, slack_s: float, *, first: bool) -> None:
        """Ask for the stream's next chunk: `answered` or `lost` of who has it will be called."""
        self._asking.add(stream)
        self._untold[stream] = first
        self._send(Next(stream, slack_s, first))
        if self._timer is None:
            self._silent_looks = self._idle_looks = 0
            self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    def forget(self, stream: int) -> None:
        """Cancel a stream. Harmless when it has ended."""
        self._not_asking(stream)
        if self.streams.pop(stream, None) is not None:
            self._send(Cancel(stream))

    def close(self) -> None:
        """End the connection; `over` is set once it is gone."""
        self._lose("closed")

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        if self._lost:  # closed while it was being opened
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._heard = True
        try:
            for message in self._reader.feed(data):
                self._handle(message)
        except WireError as error:
            log.error("a worker is broken off", pid=self.pid, reason=str(error))
            self._lose("died")

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if self._leaving:
            self._lose("stopping", ())
        else:
            self._lose("died")
        self.over.set()

    def _send(self, message: FromGateway) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines([*self._unsent, *encode(message)])
        self._unsent.clear()

    def _handle(self, message: object) -> None:
        match message:
            case Audio():
                self._answer(message.stream, message.chunk)
            case End():
                self._answer(message.stream, None)
            case Failed():
                error = _error(message)
                if isinstance(error, ValueError) or message.stream in self.lessons:
                    self.lessons.end(message.stream, error)
                else:
                    self._answer(message.stream, error)
            case Learnt():
                self.lessons.end(message.stream, message.voice)
            case Stepped():
                self._worked = True
                self._owner.stepped(message)
            case Load():
                self._load = message
                self._untold.clear()
            case Pong():
                self._worked = self._worked or message.steps != self._steps
                self._steps = message.steps
            case Hello():
                self._greet(message)
            case Leaving():
                self._leaving = True
                if message.reason == "hung":
                    self._lose("hung", message.culprits)
            case _:
                raise WireError(f"a worker does not say {type(message).__name__}")

    def _answer(self, stream: int, answer: Answer) -> None:
        self._worked = True
        self._not_asking(stream)
        asker = self.streams.get(stream)
        if asker is not None:  # else it was cancelled as this was on its way
            if not isinstance(answer, RenderedChunk):
                del self.streams[stream]
            asker.answered(answer)

    def _not_asking(self, stream: int) -> None:
        self._asking.discard(stream)
        self._untold.pop(stream, None)

    def _greet(self, hello: Hello) -> None:
        self.pid = hello.pid
        if hello.version != WIRE_VERSION:
            self.refusal = "it is of another version than this server, which must be restarted"
        elif hello.pid <= 1:  # it is killed when it hangs: 0 would be our own process group, 1 the system
            self.refusal = "no worker process has this number"
        else:
            self.refusal = self._owner.greeted(self, hello)
        if self.refusal is None:
            self._ready = self.was_ready = True
        else:
            self.close()

    # Signs of life

    def _look(self) -> None:
        """A timer, twice a second, while something is asked for."""
        self._timer = None
        if not self._asking:
            return
        self._silent_looks = 0 if self._heard else self._silent_looks + 1
        self._idle_looks = 0 if self._worked else self._idle_looks + 1
        self._heard = self._worked = False
        if self._silent_looks >= SILENT_LOOKS or self._idle_looks > self._idle_looks_allowed:
            log.error("a worker hangs and is killed", pid=self.pid, frozen=self._silent_looks >= SILENT_LOOKS)
            self._kill()
            self._lose("hung")
            return
        self._send(Ping())
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    def _kill(self) -> None:
        """The worker lives as long as its connection does, so the number is still its own."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it was ended by somebody else, a moment ago

    def _lose(self, reason: str, culprits: Sequence[int] | None = None) -> None:
        """The worker is of no use any more. What was asked for goes on elsewhere. `culprits`: of which streams it was
        lost, if that is known.
        """
        if self._lost:
            return
        self._lost, self._ready = True, False
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self.was_ready:
            self._owner.gone(self, reason)
        self.lessons.end_all(PoolUnavailable("the worker process that learnt the voice is gone"))
        asking, streams = self._asking, self.streams
        self._asking, self.streams = set(), {}
        for stream, asker in streams.items():
            if stream in asking:
                asker.lost(1 if culprits is None else 2 if stream in culprits else 0)


def _error(message: Failed) -> EngineError | WorkerLost | PoolUnavailable | ValueError:
    if message.kind == "recording":
        return ValueError(message.message)
    if message.kind == "unavailable":
        return PoolUnavailable(message.message, message.retry_after_s)
    if message.kind == "lost":
        return WorkerLost(message.message, message.failure)
    error = EngineError(message.message, transient=message.transient, kind=message.failure)
    error.trace = message.trace
    return error
