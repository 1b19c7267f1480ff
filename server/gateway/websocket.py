"""The native protocol over a WebSocket: moves bytes and time between a connection and the session it carries."""

import asyncio
from typing import Final, NoReturn

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_client
from protocol.errors import CloseCode, ErrorCode, ProtocolError
from server.cluster.base import EnginePool
from server.gateway.caller import Authenticate, Caller
from server.gateway.doorkeeper import Refused
from server.gateway.farewell import close, gave_up, say, say_busy, say_error
from server.gateway.live import LiveSession
from server.gateway.relay import Elsewhere, Relay, TryAgain, client_address
from server.gateway.sessions import Sessions
from server.gateway.summary import internal_error
from server.gateway.turns import Turns
from server.scheduler.admission import Refusal
from server.session import Policy, ResumeRefused

STOP_TIMEOUT_S: Final = 4.0  # for the store and the close, after the time to finish
MAX_REFUSALS: Final = 8  # of one connection: `resume` after `resume` that failed


class WebSocketConnection:
    """One connection. `run` returns when it is over; `stop` ends it from the server's side."""

    def __init__(
        self,
        connection: ServerConnection,
        pool: EnginePool,
        policy: Policy,
        authenticate: Authenticate,
        sessions: Sessions,
        elsewhere: Elsewhere | None = None,
        refusal: str = "",
    ) -> None:
        """`elsewhere`: the other gateways, where there are any; `refusal`: why the client is sent away at once."""
        self._connection = connection
        self._pool = pool
        self._policy = policy
        self._sessions = sessions
        self._elsewhere = elsewhere
        self._relay: Relay | None = None  # to the gateway that has the session
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._answered = asyncio.Event()
        self._failed = asyncio.Event()  # the session has a `failure`
        self._drained: asyncio.Future[None] = self._loop.create_future()  # nothing is left to say, after `stop`
        self._caller = Caller(authenticate, client_address(connection), sessions.doorkeeper, refusal)
        self._refusals = 0
        self._stopping = False
        self._cut = False  # the time to finish is over
        self._ended: asyncio.Future[None] | None = None  # `run` has returned; made by `stop`
        self._refusal: Refusal | None = None  # of an utterance, told when those before it are finished
        self._known = False  # the session has a place
        self._live = self._fresh()

    def _fresh(self) -> LiveSession:
        live = self._sessions.new(self._pool, self._policy)
        if self._caller.principal is not None:
            live.belongs_to(self._caller.principal)
        live.attach(self)
        return live

    async def run(self) -> None:
        """Serve the client until it leaves, breaks the protocol, or the server stops."""
        outcome: str | None = None
        try:
            with self._sessions.member(self):
                while self._live.carrier is self:
                    try:
                        await self._work()
                    except _Switched:
                        pass
                    except _Relayed:
                        break
                    except ResumeRefused as refusal:
                        await self._refuse(refusal)
                    except ProtocolError:
                        if not self._known:
                            self._caller.count_failure()
                        raise
            if self._relay is not None:
                with self._sessions.member(self._relay):
                    await self._relay.run()
        except ConnectionClosed as closed:
            outcome = "closed" if gave_up(closed) else None
        except _Cut:
            outcome = "stopped" if self._known else None
            if self._known:  # given up first: its client may ask another process for it as soon as it hears of the end
                await self._sessions.end(self._live, "stopped", keep=True)
            await close(self._connection, CloseCode.RESTART, "the server is stopping")
        except TryAgain as problem:
            later = Refusal("loading", problem.retry_after_ms / 1000, "who has the session does not answer now")
            await say_busy(self._connection, self._sessions.doorkeeper.refused(later).refusal)
        except Refused as refused:
            outcome = "busy"
            self._live.failure = refused
            await say_busy(self._connection, refused.refusal)
        except ProtocolError as error:
            outcome = error.code
            await self._fail(error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client must hear that it is over
            outcome = ErrorCode.INTERNAL
            await self._fail(internal_error(error))
        finally:
            self._nothing_left()
            await self._leave(outcome)
            if self._relay is not None:
                self._relay.abort()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    async def _leave(self, outcome: str | None) -> None:
        """The connection is over. `outcome` None: the session may go on with another one."""
        live = self._live
        if live.carrier is not self:
            return  # another connection took over
        if outcome is None and self._known and self._policy.resume_ttl_s > 0:
            live.detach(self)
            return
        live.carrier = None
        if not self._known and outcome in (None, "closed", "busy"):
            live.drop()  # it was never opened
            return
        await self._sessions.end(live, outcome or "lost")

    async def _work(self) -> None:
        """Read and write. When it raises, both have ended: nothing is sent any more."""
        self._live.schedule()
        self._writable.set()
        tasks = [asyncio.ensure_future(work) for work in (self._read(), self._write(), self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self, deadline_ms: int) -> None:
        """Tell the client to go, give it until the deadline to finish, then close: the session is in the store before
        the client hears of it. Bounded also where it does not read.
        """
        self._ended = self._loop.create_future()
        limit = self._loop.time() + deadline_ms / 1000
        self._stopping = True
        told = await say(self._connection, s.GoAway(deadline_ms, "the server is stopping"))
        if told and self._live.session.unfinished:
            await asyncio.wait((self._drained,), timeout=limit - self._loop.time())
        self._cut = True
        self._failed.set()
        await asyncio.wait((self._ended,), timeout=STOP_TIMEOUT_S)

    # ---- Carrier ----

    def progress(self) -> None:
        """There may be something to send, or a failure to tell."""
        self._writable.set()

    def failed(self) -> None:
        """The session has a failure to tell."""
        self._failed.set()

    def abort(self) -> None:
        """End now: the line is dead, or another connection took the session over."""
        self._connection.transport.abort()
        self._writable.set()

    # ---- reading and writing ----

    async def _read(self) -> None:
        self._caller.check_handshake()
        turns = Turns()
        while True:
            data = await self._connection.recv()
            if isinstance(data, bytes):
                raise ProtocolError(ErrorCode.BINARY, "clients send JSON text messages, never binary ones")
            live = self._live
            if live.carrier is not self:
                return  # these are the last words of a connection that was replaced
            message = decode_client(data)
            if isinstance(message, c.Open | c.Resume) and not live.session.principal:
                live.belongs_to(self._caller.identify(message))
            if self._known or not isinstance(message, c.Open | c.Resume):
                if self._may_take(message):
                    live.receive(message)
            elif isinstance(message, c.Open):
                self._let_in(message)
            else:
                await self._resume(message)
            while live.session.answers_full:  # it sends and does not read: TCP makes it wait
                self._answered.clear()
                await self._answered.wait()
            await turns.step(len(data))

    def _let_in(self, message: c.Open) -> None:
        """Give the session a place only now: who has no key must not keep others out. Raises Refused."""
        self._sessions.check_open(self._live.session.principal)
        self._live.session.receive(message, self._loop.time())
        self._sessions.keep(self._live)
        self._known = True

    def _may_take(self, message: c.ClientMessage) -> bool:
        """Whether a message counts. Raises Refused where an utterance may not begin and none is unfinished; else what
        was begun is finished first, and nothing is added to it. Raises it, too, for text that may not be added.
        """
        session, tally = self._live.session, self._live.tally
        if isinstance(message, c.Text) and tally is not None and self._refusal is None:
            refusal = tally.check_text()
            if refusal is not None:
                raise self._sessions.doorkeeper.refused(refusal)
        if isinstance(message, c.Start) and tally is not None and self._refusal is None and session.is_next(message):
            self._refusal = tally.check_start()
        if self._refusal is None or not isinstance(message, c.NUMBERED):
            return True
        if isinstance(message, c.Cancel) or not session.unfinished:
            raise self._sessions.doorkeeper.refused(self._refusal)
        return False

    async def _resume(self, message: c.Resume) -> NoReturn:
        """Carry a session that lost its connection. Raises _Switched, _Relayed, TryAgain or ResumeRefused."""
        principal = self._live.session.principal
        self._live.drop()  # its time for `open` must not run out while a session is being restored
        elsewhere = None if self._sessions.knows(message.session) else self._elsewhere
        if elsewhere is not None:
            self._relay = await elsewhere.before_claim(message, self._connection)
            if self._relay is not None:
                raise _Relayed
        try:
            live = await self._sessions.resume(message, principal, self, self._pool, self._policy)
        except ResumeRefused as refusal:
            if elsewhere is not None and refusal.reason == "unknown":
                self._relay = await elsewhere.before_unknown(message, self._connection)
                if self._relay is not None:
                    raise _Relayed from None
            self._sessions.count_refusal(refusal)
            self._live = self._fresh()
            raise
        self._live, self._known = live, True
        if live.failure is not None:
            self._failed.set()
        raise _Switched

    async def _refuse(self, refusal: ResumeRefused) -> None:
        """Say why a session cannot be resumed; the client may open a new one."""
        if self._known:  # it was resumed, and then turned out not to go on with the same audio
            live, self._known = self._live, False
            live.carrier = None
            await self._sessions.end(live, "not restored")
            self._failed.clear()
            self._refusal = None
            self._live = self._fresh()
        self._caller.count_failure()
        self._refusals += 1
        if self._refusals > MAX_REFUSALS:
            raise ProtocolError(ErrorCode.UNEXPECTED, f"more than {MAX_REFUSALS} resumes failed", "resume") from None
        self._live.session.refuse(refusal)

    async def _write(self) -> None:
        send = self._connection.send
        turns = Turns()
        while True:
            live = self._live
            if live.carrier is not self:
                return  # fenced: another connection writes
            data = live.session.next_outgoing(self._loop.time())
            if data is None:
                self._writable.clear()
                live.schedule()
                await self._writable.wait()
            else:
                await send(data)
                self._answered.set()
                live.sent()
                await turns.step()
            if live.session.unfinished:
                continue
            if self._stopping:
                self._nothing_left()
            if self._refusal is not None:
                raise self._sessions.doorkeeper.refused(self._refusal)

    async def _watch(self) -> None:
        """Raises the session's failure, or _Cut when the server stops; also while a message to a peer that does not
        read is on its way.
        """
        if not self._cut:
            await self._failed.wait()
        raise self._live.failure or _Cut

    def _nothing_left(self) -> None:
        if not self._drained.done():
            self._drained.set_result(None)

    async def _fail(self, error: ProtocolError) -> None:
        """Say what was wrong, then close. Nobody can resume the session meanwhile."""
        self._live.failure = self._live.failure or error
        self._live.summary.failed(error)
        await say_error(self._connection, error)


class _Cut(Exception):
    """The server stops, and the time to finish is over."""


class _Relayed(Exception):
    """From here on another gateway serves the client, through us."""


class _Switched(Exception):
    """From here on the connection carries another session."""
