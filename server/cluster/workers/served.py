"""One stream that a worker serves: asked for by a gateway chunk by chunk, asked of the engine pool of this process."""

import asyncio
from typing import Final, Protocol

import structlog

from server.cluster.base import PoolUnavailable, SegmentStream, Urgency, WorkerLost
from server.cluster.segment import trace_of
from server.cluster.workers.messages import Audio, End, Failed, Learn, Learnt
from server.cluster.workers.wire import WireError
from server.engines.base import EngineError

log = structlog.get_logger(__name__)

MAX_TRACE: Final = 16_384  # characters of a trace that are told, the last


class Learner(Protocol):
    """What makes voices: the engine pool of this process."""

    async def make_voice(self, recording: bytes, text: str) -> bytes:
        """See EnginePool."""


async def learn(pool: Learner, asked: Learn) -> Learnt | Failed:
    """The answer to a gateway that asks for a voice."""
    number = asked.stream
    try:
        return Learnt(number, await pool.make_voice(asked.recording, asked.text))
    except ValueError as error:
        return Failed(number, "recording", str(error))
    except PoolUnavailable as error:
        return Failed(number, "unavailable", str(error), retry_after_s=error.retry_after_s)
    except EngineError as error:
        return _failed(number, error)
    except Exception as error:  # a fault of ours must not leave whoever asked waiting
        log.exception("learning a voice failed")
        return Failed(number, "engine", f"{type(error).__name__}: {error}")


def _failed(number: int, error: EngineError) -> Failed:
    trace = trace_of(error)[-MAX_TRACE:]
    return Failed(number, "engine", str(error), error.transient, failure=error.kind, trace=trace)


class HangingStream(SegmentStream, Protocol):
    """A stream that knows whether it is what a step hangs of."""

    @property
    def hangs(self) -> int: ...


class Peer(Protocol):
    """Who asked for it: one gateway's connection."""

    @property
    def streams(self) -> "dict[int, ServedStream]":
        """Its streams that are not over, by number."""

    def answer(self, message: Audio | End | Failed) -> None:
        """Write what a stream asked for. ValueError where it is too long to send."""


class ServedStream:
    """One stream of a gateway: a task that asks the pool for a chunk whenever the gateway asks."""

    def __init__(self, number: int, stream: HangingStream, peer: Peer) -> None:
        self._number = number
        self._stream = stream
        self._peer = peer
        self._asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.create_task(self._serve())

    @property
    def hangs(self) -> int:
        """Steps with it that hung."""
        return self._stream.hangs

    def ask(self, urgency: Urgency) -> None:
        """The gateway wants the next chunk. WireError where it has not had the one before."""
        if self._asked.done():
            raise WireError("a chunk is asked for before the one before it was there")
        self._stream.urgency = urgency
        self._idle.clear()
        self._asked.set_result(None)

    async def answered(self) -> None:
        """Returns when nothing is asked for that is not there."""
        await self._idle.wait()

    def cancel(self) -> None:
        """Nothing more is wanted."""
        self._peer.streams.pop(self._number, None)
        self._stream.cancel()
        self._task.cancel()
        self._idle.set()

    async def _serve(self) -> None:
        while True:
            await self._asked
            answer = await self._next()
            self._asked = asyncio.get_running_loop().create_future()
            self._idle.set()
            if not isinstance(answer, Audio):
                self._peer.streams.pop(self._number, None)
                self._peer.answer(answer)
                return
            try:
                self._peer.answer(answer)
            except ValueError as error:
                self._stream.cancel()
                self._peer.streams.pop(self._number, None)
                self._peer.answer(Failed(self._number, "engine", str(error)))
                return

    async def _next(self) -> Audio | End | Failed:
        try:
            return Audio(self._number, await anext(self._stream))
        except StopAsyncIteration:
            return End(self._number)
        except EngineError as error:
            return _failed(self._number, error)
        except PoolUnavailable as error:
            return Failed(self._number, "unavailable", str(error), retry_after_s=error.retry_after_s)
        except WorkerLost as error:
            return Failed(self._number, "lost", str(error), failure=error.kind)
        except Exception as error:  # a fault of ours must end this stream with a word, not leave it waiting for ever
            log.exception("a stream failed")
            return Failed(self._number, "engine", f"{type(error).__name__}: {error}")
