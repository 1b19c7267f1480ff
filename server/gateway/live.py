"""A session in flight: its machine, renderer, timer and journal. Connections come and go; it stays until it is over."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

import structlog

from protocol import client_messages as c
from protocol.errors import ProtocolError
from server.cluster.base import EnginePool
from server.gateway.doorkeeper import Tally
from server.gateway.rendering import Renderer
from server.gateway.summary import Summary, internal_error
from server.observe.watch import Watch
from server.session import Policy, ResumeRefused, Session
from server.store import Journal

log = structlog.get_logger(__name__)


class Carrier(Protocol):
    """A connection that carries a session."""

    def progress(self) -> None:
        """There may be something to send."""

    def failed(self) -> None:
        """The session has a `failure` to tell."""

    def abort(self) -> None:
        """End now, without a word: the line is dead, or another connection took over."""


def make_session(pool: EnginePool, policy: Policy, *, recorded: bool, id_prefix: str = "") -> Session:
    """A new session with a name, which begins with `id_prefix`, and a token of its own."""
    return Session(
        policy,
        pool.capabilities,
        session_id=id_prefix + secrets.token_urlsafe(12),
        token=secrets.token_urlsafe(24),
        now=asyncio.get_running_loop().time(),
        recorded=recorded,
    )


class LiveSession:
    """See the module text.

    | what happens | who calls | what is kept |
    |---|---|---|
    | a connection begins to carry it | `attach`, `resume` | all |
    | its connection is lost | `detach` | all, until it is resumed, too old, or in the way |
    | it is over | `Sessions.end`, which calls `end` | nothing; with `keep` the journal |
    | it never was opened | `drop` | nothing |

    `on_change(live)` is called when it was detached, grew or failed while detached, or is too old. `failure` says why
    it is over; a carrier is told of it.
    """

    def __init__(self, session: Session, pool: EnginePool, watch: Watch, on_change: "Callable[[LiveSession], None]"):
        self.session = session
        self.carrier: Carrier | None = None
        self.failure: Exception | None = None
        self.summary = Summary(session, watch, pool.capabilities.name, "websocket")
        self.journal: Journal | None = None
        self.over = False
        self.tally: Tally | None = None  # while it has a place
        self.counted_bytes = 0  # what `Waiting` counts for it while it is detached
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._renderer = Renderer(session, pool, self._rendered, self.summary.waited)
        self._rendering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # ---- connections ----

    @property
    def expired(self) -> bool:
        """Whether it waited too long for its client."""
        return self.carrier is None and self._loop.time() >= self.session.expires_at

    def belongs_to(self, principal: str) -> None:
        """Whose it is became known."""
        self.session.principal = self.summary.principal = principal

    def attach(self, carrier: Carrier) -> None:
        """`carrier` carries it from here on; another one is fenced off and ended."""
        old, self.carrier = self.carrier, carrier
        if old is not None:
            old.abort()
        self.schedule()

    def resume(self, message: c.Resume, carrier: Carrier) -> None:
        """Go on, on a new connection. Raises ResumeRefused, and then nothing has changed."""
        self.session.resume(message, secrets.token_urlsafe(24), self._loop.time())
        self.attach(carrier)
        self.summary.resumed()
        self.changed()

    def detach(self, carrier: Carrier) -> None:
        """The connection is gone; nothing where another one took over."""
        if self.carrier is not carrier:
            return
        self.carrier = None
        self.session.detach(self._loop.time())
        self._count()
        self._reschedule()
        self._on_change(self)

    # ---- life ----

    def start(self, journal: Journal | None) -> None:
        """Begin to render, and to write down what was recorded."""
        self.journal = journal
        self.summary.begun()
        self._rendering = asyncio.create_task(self._render(), name=f"render {self.session.id}")
        self.changed()

    def receive(self, message: c.ClientMessage) -> None:
        """A message of the client. Raises ProtocolError."""
        self.session.receive(message, self._loop.time())
        self.changed()

    def changed(self) -> None:
        """Something happened: there may be work, something to send, to write down."""
        self._count()
        self._write_down()
        self._renderer.wake()
        if self.carrier is not None:
            self.carrier.progress()

    def sent(self) -> None:
        """A message went out: there may be room for more."""
        self._renderer.wake()

    def drop(self) -> None:
        """Its connection carries another session from here on; this one never began."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()

    async def end(self, outcome: str, *, keep: bool = False) -> None:
        """It is over. `keep`: for the next process, where there is a journal."""
        if self.over:
            return
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._rendering is not None:
            self._rendering.cancel()
            await asyncio.gather(self._rendering, return_exceptions=True)
        if self.journal is not None:
            self._write_down()
            await self.journal.close(delete=not keep)
        self.summary.ended(outcome)

    def _count(self) -> None:
        if self.tally is not None:
            self.tally.changed()

    async def _render(self) -> None:
        try:
            await self._renderer.run()
        except (ProtocolError, ResumeRefused) as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client must hear that it is over
            self._fail(internal_error(error))

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            if isinstance(error, ProtocolError):
                self.summary.failed(error)
        if self.carrier is not None:
            self.carrier.failed()
        else:
            self._on_change(self)

    def _rendered(self) -> None:
        self._count()
        self._write_down()
        if self.carrier is not None:
            self.carrier.progress()
        else:
            self._on_change(self)

    # ---- journal ----

    def _write_down(self) -> None:
        recorded = self.session.journal
        if self.journal is None or not recorded.waits:
            return
        lines, made = recorded.take()

        def written() -> None:
            recorded.written = max(recorded.written, made)
            if self.carrier is not None:
                self.carrier.progress()

        self.journal.append(lines, written)
        if self.journal.failed is not None and recorded.enabled:
            recorded.stop()
            log.warning("session is not recorded any more", session=self.session.id, reason=self.journal.failed)

    # ---- time ----

    def schedule(self) -> None:
        """Have `on_time` called when the session wants it. A timer that is due too early just looks again."""
        due = self.session.deadline()
        if not self.over and (self._timer is None or due < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._on_time)

    def _reschedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.schedule()

    def _on_time(self) -> None:
        self._timer = None
        if self.over:
            return
        try:
            self.session.on_time(self._loop.time())
        except ProtocolError as error:
            self._fail(error)
            return
        except Exception as error:  # noqa: BLE001  # a session without its timer would never end
            self._fail(internal_error(error))
            return
        if self.carrier is None:
            if self.expired:
                self._on_change(self)
                return
        elif self.session.dead:
            self.carrier.abort()
        self.changed()
        self.schedule()
