"""A session with `bench.plain_server`, measured as one with ours is."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from bench._light_socket import BINARY, LightSocket
from bench._load_talker import PATIENCE_S, RATE, Script, Spoken


class PlainTalker:
    """Sends a whole text, takes what comes. It has no options and cannot interrupt."""

    def __init__(self, begun: float, *, plays: bool, options: Mapping[str, Any]) -> None:
        self.begun = begun
        self.samples = 0
        self._socket: LightSocket | None = None
        self._script: Script | None = None
        self._spoken: Spoken | None = None
        self._sent = 0.0
        self._done = asyncio.Event()
        self._gone = False

    async def open(self, port: int) -> None:
        """Raises OSError."""
        self._socket = await LightSocket.connect(port, self._take)
        self._socket.ended.add_done_callback(lambda _: self._lost())

    def begin(self, script: Script, number: int) -> Spoken:
        """The next text."""
        self._script, self._spoken = script, Spoken(number, time.perf_counter() - self.begun)
        return self._spoken

    async def speak(self, leave_after_s: float | None = None) -> None:
        """Until all of it is there. Raises OSError, TimeoutError."""
        assert self._socket is not None
        assert self._script is not None
        self._done.clear()
        self._sent = time.perf_counter()
        self._socket.send(self._script.text)
        async with asyncio.timeout(PATIENCE_S):
            await self._done.wait()
        if self._gone:
            raise ConnectionResetError("the server closed")

    def close(self) -> None:
        """Leave."""
        if self._socket is not None and not self._gone:
            self._socket.close()

    def _take(self, opcode: int, payload: bytes) -> None:
        now = time.perf_counter()
        assert self._spoken is not None
        if opcode == BINARY:
            if self._spoken.first_ms != self._spoken.first_ms:
                self._spoken.first_ms = self._spoken.from_start_ms = 1000 * (now - self._sent)
            self.samples += len(payload) // 2
            self._spoken.audio_s += len(payload) / 2 / RATE
        else:
            self._spoken.complete = True
            self._done.set()

    def _lost(self) -> None:
        self._gone = True
        self._done.set()
