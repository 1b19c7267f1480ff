"""Learning voices beside speaking: on a thread of its own, one voice at a time, behind everything that is heard."""

import asyncio
import os
import sys
import threading
from typing import Final

from server.background import in_daemon_thread
from server.cluster.base import PoolUnavailable
from server.cluster.segment import as_engine_error
from server.engines.base import ClonesVoices, Engine, EngineError
from server.voices.voice_file import MAX_VOICE_BYTES

MAX_WAITING: Final = 4  # for their turn
LEARN_S: Final = 60.0  # one voice; an engine that takes longer hangs
RETRY_S: Final = 3.0
CLOSE_S: Final = 5.0
NICENESS: Final = 10  # of the thread: speech goes first where both want the same processor


class Learning:
    """An engine's learning. Make it inside the running event loop."""

    def __init__(self, engine: Engine, *, limit_s: float = LEARN_S) -> None:
        self._engine = engine
        self._limit_s = limit_s
        self._turn = asyncio.Lock()  # held until the engine is done, also where nobody waits for that any more
        self._waiting = 0
        self._working: asyncio.Task[bytes] | None = None
        self._closed = False

    async def make_voice(self, recording: bytes, text: str) -> bytes:
        """See EnginePool."""
        engine = self._engine
        if not (engine.capabilities.cloning and isinstance(engine, ClonesVoices)):
            raise EngineError(f"the engine {engine.capabilities.name} cannot learn voices")
        if self._waiting >= MAX_WAITING:
            raise PoolUnavailable("too many voices are being learnt", RETRY_S)
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limit_s):
                await self._turn.acquire()
        except TimeoutError:
            raise PoolUnavailable("other voices are being learnt", RETRY_S) from None
        finally:
            self._waiting -= 1
        if self._closed:
            self._turn.release()
            raise PoolUnavailable("the server is stopping")
        self._working = working = asyncio.ensure_future(in_daemon_thread(lambda: _learn(engine, recording, text)))
        working.add_done_callback(self._over)
        try:
            async with asyncio.timeout(self._limit_s):
                data = await asyncio.shield(working)
        except TimeoutError:
            message = f"the engine did not learn the voice within {self._limit_s:g} s"
            raise EngineError(message, kind="time_out") from None
        except (ValueError, EngineError):
            raise
        except Exception as error:
            raise as_engine_error(error) from error
        if not 0 < len(data) <= MAX_VOICE_BYTES:
            raise EngineError(f"what the engine learnt is not 1 to {MAX_VOICE_BYTES} bytes")
        return data

    def _over(self, working: "asyncio.Task[bytes]") -> None:
        self._working = None
        self._turn.release()
        if not working.cancelled():
            working.exception()  # whoever asked may not be there to hear it

    async def close(self) -> bool:
        """Begin with no further one, and wait 5 s at most for one that is being learnt. Whether the engine is free."""
        self._closed = True
        working = self._working
        if working is None:
            return True
        await asyncio.wait((working,), timeout=CLOSE_S)
        return working.done()


def _learn(engine: ClonesVoices, recording: bytes, text: str) -> bytes:
    if sys.platform == "linux":  # where a thread may have a priority of its own
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        except OSError:
            pass  # a system that forbids it: learning is only less considerate
    return bytes(engine.make_voice(recording, text))
