"""The native protocol over a WebSocket: moves bytes and time between a connection and its session."""

import asyncio
import secrets
from collections.abc import Callable

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_client, encode
from protocol.errors import CloseCode, ErrorCode, ProtocolError, close_reason
from server.cluster.base import EnginePool
from server.gateway.rendering import Renderer
from server.gateway.sessions import Sessions
from server.gateway.summary import Summary, internal_error
from server.gateway.turns import Turns
from server.observe.metrics import Metrics
from server.session import Policy, Session

SEND_ERROR_TIMEOUT_S = 1.0  # a peer that does not read cannot be told why it is closed
CLOSE_TIMEOUT_S = 2.0
FULL_RETRY_MS = 2_000

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
        sessions: Sessions,
        metrics: Metrics,
    ) -> None:
        self._connection = connection
        self._authenticate = authenticate
        self._sessions = sessions
        self._admitted = False
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._writable = asyncio.Event()
        self._answered = asyncio.Event()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._drained: asyncio.Future[None] = self._loop.create_future()  # nothing is left to say, after `stop`
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.session = Session(
            policy,
            pool.capabilities,
            session_id=secrets.token_urlsafe(12),
            token=secrets.token_urlsafe(24),
            now=now,
        )
        self._summary = Summary(self.session, metrics, pool.capabilities.name, "websocket")
        self._renderer = Renderer(self.session, pool, self._progress)

    async def run(self) -> None:
        """Serve the client until it leaves, breaks the protocol, or the server stops."""
        outcome = "closed"
        try:
            with self._sessions.member(self):
                await self._work()
        except ConnectionClosed:
            pass  # the client left
        except _Full:
            outcome = "busy"
            await say_busy(self._connection, FULL_RETRY_MS)
        except ProtocolError as error:
            outcome = error.code
            await self._fail(error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client must hear that it is over
            outcome = ErrorCode.INTERNAL
            await self._fail(internal_error(error))
        finally:
            if self._admitted:
                self._sessions.release()
            self._summary.ended(outcome)

    async def _work(self) -> None:
        """Read, render and write. When it raises, all of that has ended: nothing is sent any more."""
        self._schedule()
        tasks = [
            asyncio.ensure_future(work) for work in (self._read(), self._write(), self._renderer.run(), self._failure)
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._nothing_left()

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
        turns = Turns()
        async for data in self._connection:
            if isinstance(data, bytes):
                raise ProtocolError(ErrorCode.BINARY, "clients send JSON text messages, never binary ones")
            message = decode_client(data)
            if isinstance(message, c.Open | c.Resume):
                self._let_in(message)
            self.session.receive(message, self._loop.time())
            self._progress()
            self._renderer.wake()
            while self.session.answers_full:  # it sends and does not read: TCP makes it wait
                self._answered.clear()
                await self._answered.wait()
            await turns.step(len(data))

    def _let_in(self, message: c.Open | c.Resume) -> None:
        """Check the key, and give the session a place only then: who has no key must not keep others out."""
        if self._summary.principal is None:
            self._summary.principal = self._authenticate(message.api_key)
        if self._summary.principal is None:
            raise ProtocolError(
                ErrorCode.UNAUTHORIZED,
                "an API key is needed: header `Authorization: Bearer KEY`, or `api_key` in `open`",
                f"{message.type}.api_key",
            )
        if isinstance(message, c.Open) and not self._admitted:
            self._admitted = self._sessions.admit()
            if not self._admitted:
                raise _Full

    async def _write(self) -> None:
        send = self._connection.send
        turns = Turns()
        while True:
            data = self.session.next_outgoing(self._loop.time())
            if data is None:
                self._writable.clear()
                self._schedule()
                await self._writable.wait()
            else:
                await send(data)
                self._answered.set()
                self._renderer.wake()
                self._summary.sent()
                await turns.step()
            if self._stopping and not self.session.unfinished:
                self._nothing_left()

    def _nothing_left(self) -> None:
        if not self._drained.done():
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
        self._summary.failed(error)
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


class _Full(Exception):
    """As many sessions as there may be are open."""


async def say_busy(connection: ServerConnection, retry_after_ms: int) -> None:
    """Refuse a client for now. Bounded also where it does not read."""
    try:
        async with asyncio.timeout(SEND_ERROR_TIMEOUT_S):
            await connection.send(encode(s.Busy(retry_after_ms)))
        await connection.close(CloseCode.TRY_AGAIN, f"busy, retry after {retry_after_ms} ms")
    except TimeoutError:
        connection.transport.abort()
    except ConnectionClosed:
        pass
