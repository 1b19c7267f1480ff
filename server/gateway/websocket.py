"""The native protocol over a WebSocket: moves bytes and time between a connection and its session."""

import asyncio
import secrets
from collections.abc import Callable

import structlog
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_client, encode
from protocol.errors import CloseCode, ErrorCode, ProtocolError, close_reason
from server.cluster.base import EnginePool
from server.gateway.rendering import Renderer
from server.observe.metrics import Metrics
from server.session import Policy, Session

log = structlog.get_logger(__name__)

SEND_ERROR_TIMEOUT_S = 1.0  # a peer that does not read cannot be told why it is closed
CLOSE_TIMEOUT_S = 2.0

Authenticate = Callable[[str | None], str | None]
"""The principal's name for the key in `open` (None: there is none), or None where access is refused."""


class WebSocketSession:
    """One connection. `run` returns when it is over; `stop` ends it from the server's side."""

    def __init__(
        self,
        connection: ServerConnection,
        pool: EnginePool,
        policy: Policy,
        authenticate: Authenticate,
        metrics: Metrics,
    ) -> None:
        self._connection = connection
        self._authenticate = authenticate
        self._metrics = metrics
        self._first_audio = metrics.first_audio_seconds.labels(engine=pool.capabilities.name)
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._writable = asyncio.Event()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._drained: asyncio.Future[None] = (
            self._loop.create_future()
        )  # set once nothing is left to say, after `stop`
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._principal: str | None = None
        self.session = Session(
            policy,
            pool.capabilities,
            session_id=secrets.token_urlsafe(12),
            token=secrets.token_urlsafe(24),
            now=self._started,
        )
        self._renderer = Renderer(self.session, pool, self._progress)

    async def run(self) -> None:
        """Serve the client until it leaves, breaks the protocol, or the server stops."""
        self._schedule()
        tasks = [
            asyncio.ensure_future(work) for work in (self._read(), self._write(), self._renderer.run(), self._failure)
        ]
        outcome = "closed"
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except ConnectionClosed:
            pass  # the client left
        except ProtocolError as error:
            outcome = error.code
            await self._fail(error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client must hear that it is over
            outcome = ErrorCode.INTERNAL
            internal = ProtocolError(ErrorCode.INTERNAL, "the server failed; its log has the cause")
            internal.__cause__ = error
            await self._fail(internal)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._summarise(outcome)

    async def stop(self, deadline_ms: int) -> None:
        """Tell the client to go, give it until the deadline to finish, then close. Bounded also where it does not
        read.
        """
        goaway = encode(s.GoAway(deadline_ms, "the server is stopping"))
        limit = self._loop.time() + deadline_ms / 1000
        self._stopping = True
        try:
            async with asyncio.timeout(SEND_ERROR_TIMEOUT_S):
                await self._connection.send(goaway)
            if self.session.unfinished:
                await asyncio.wait((self._drained,), timeout=limit - self._loop.time())
        except (ConnectionClosed, TimeoutError):
            pass
        await self._close(CloseCode.RESTART, "the server is stopping")

    async def _read(self) -> None:
        async for data in self._connection:
            if isinstance(data, bytes):
                raise ProtocolError(ErrorCode.BINARY, "clients send JSON text messages, never binary ones")
            message = decode_client(data)
            if isinstance(message, c.Open | c.Resume) and self._principal is None:
                self._principal = self._authenticate(message.api_key)
                if self._principal is None:
                    raise ProtocolError(
                        ErrorCode.UNAUTHORIZED,
                        "an API key is needed: header `Authorization: Bearer KEY`, or `api_key` in `open`",
                        f"{message.type}.api_key",
                    )
            self.session.receive(message, self._loop.time())
            self._progress()
            self._renderer.wake()

    async def _write(self) -> None:
        send = self._connection.send
        while True:
            data = self.session.next_outgoing(self._loop.time())
            if data is None:
                self._writable.clear()
                self._schedule()
                await self._writable.wait()
            else:
                await send(data)
                self._renderer.wake()
                if (seconds := self.session.pop_first_audio()) is not None:
                    self._first_audio.observe(seconds)
            if self._stopping and not self._drained.done() and not self.session.unfinished:
                self._drained.set_result(None)

    def _progress(self) -> None:
        self._writable.set()

    def _schedule(self) -> None:
        """Have `on_time` called when the session wants it. A timer that is due too early just looks again."""
        due = self.session.deadline()
        if self._timer is None or due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        try:
            self.session.on_time(self._loop.time())
        except ProtocolError as error:
            if not self._failure.done():
                self._failure.set_exception(error)
            return
        self._progress()
        self._renderer.wake()
        self._schedule()

    async def _fail(self, error: ProtocolError) -> None:
        """Say what was wrong, then close."""
        self._metrics.errors.labels(code=error.code).inc()
        if error.code in (ErrorCode.ENGINE_FAILED, ErrorCode.INTERNAL):
            log.error("session failed", session=self.session.id, code=error.code, reason=error.message, exc_info=error)
        else:
            log.info("client error", session=self.session.id, code=error.code, field=error.field, reason=error.message)
        message = s.Error(error.code, error.message[:4_000], error.field, error.retryable)
        try:
            async with asyncio.timeout(SEND_ERROR_TIMEOUT_S):
                await self._connection.send(encode(message))
        except (ConnectionClosed, TimeoutError):
            pass  # it left, or does not read
        await self._close(error.kind.close, error.message)

    async def _close(self, code: CloseCode, reason: str) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._connection.close(code, close_reason(reason))
        except TimeoutError:
            self._connection.transport.abort()

    def _summarise(self, outcome: str) -> None:
        session = self.session
        rate = session.config.open.sample_rate if session.config else 1
        audio_s = session.samples_sent / rate
        self._metrics.audio_seconds.inc(audio_s)
        self._metrics.characters.inc(session.chars)
        self._metrics.sessions_total.labels(outcome=outcome).inc()
        log.info(
            "session ended",
            session=session.id,
            principal=self._principal,
            outcome=outcome,
            utterances=session.utterances,
            characters=session.chars,
            audio_s=round(audio_s, 2),
            first_audio_ms=session.first_audio_ms,
            duration_s=round(self._loop.time() - self._started, 2),
        )
