"""The sessions of this server: how many at a time, which wait for their client, whom to tell when it stops."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import structlog

from protocol import client_messages as c
from protocol.errors import ProtocolError
from server.cluster.base import EnginePool
from server.gateway.live import Carrier, LiveSession, make_session
from server.observe.metrics import Metrics
from server.session import Policy, ResumeRefused
from server.session.restore import CannotRestore, belongs_to, restore
from server.store import FIRST_EPOCH, MemoryStore, SessionStore, StoreError

log = structlog.get_logger(__name__)

REMEMBERED: Final = 4_096  # sessions that ended without their client, so that it can be told why


class Stoppable(Protocol):
    """Whoever serves a client."""

    async def stop(self, deadline_ms: int) -> None:
        """Finish within this time, or be cut off. Returns when it is over, or soon after the deadline."""


class Sessions:
    """Counts the sessions of clients who proved who they are; keeps those without connection until they are resumed,
    too old, or in the way of others.
    """

    def __init__(
        self,
        limit: int,
        metrics: Metrics,
        *,
        store: SessionStore | None = None,
        budget_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self.taken = 0
        self.store = store or MemoryStore()
        self._limit = limit
        self._budget = budget_bytes
        self._metrics = metrics
        self._members: set[Stoppable] = set()
        self._live: dict[str, LiveSession] = {}
        self._ended: OrderedDict[str, ResumeRefused] = OrderedDict()  # why they cannot be resumed
        self._ending: set[asyncio.Task[None]] = set()
        self._claiming: dict[str, asyncio.Task[LiveSession | None]] = {}
        self._stopping = False

    # ---- places ----

    def admit(self) -> bool:
        """Count a session in; False when there are too many. Every True needs a `release`.

        A session without connection gives its place to one that has one.
        """
        if self.taken >= self._limit and not self._evict_oldest():
            return False
        self.taken += 1
        self._metrics.sessions.set(self.taken)
        return True

    def release(self) -> None:
        """Count a session out."""
        self.taken -= 1
        self._metrics.sessions.set(self.taken)

    # ---- sessions that outlive connections ----

    def new(self, pool: EnginePool, policy: Policy) -> LiveSession:
        """One for a connection that has not said yet what it wants. It takes no place and is not known."""
        return LiveSession(make_session(pool, policy, recorded=self.store.keeps), pool, self._metrics, self._changed)

    def keep(self, live: LiveSession, principal: str) -> bool:
        """It is open: give it a place and remember it. False when there are too many."""
        if not self.admit():
            return False
        live.summary.principal = principal
        self._live[live.session.id] = live
        live.start(self.store.create(live.session.id) if self.store.keeps else None)
        return True

    async def resume(
        self, message: c.Resume, principal: str, carrier: Carrier, pool: EnginePool, policy: Policy
    ) -> LiveSession:
        """Give a client who comes back its session. Raises ResumeRefused; the session is then as before."""
        try:
            live = self._live.get(message.session) or await self._claim(message, principal, pool, policy)
            if live is None:
                known = self._ended.get(message.session)
                raise (
                    ResumeRefused(known.reason, known.utterance, known.position) if known else ResumeRefused("unknown")
                )
            if live.session.principal != principal or not live.session.accepts(message.token):
                raise ResumeRefused("auth")
            if live.failure is not None or live.over:
                raise ResumeRefused("unknown")
            live.resume(message, carrier)
        except ResumeRefused as refusal:
            self._metrics.resumes.labels(outcome=refusal.reason).inc()
            raise
        self._metrics.resumes.labels(outcome="resumed").inc()
        self._count_detached()
        return live

    async def _claim(self, message: c.Resume, principal: str, pool: EnginePool, policy: Policy) -> LiveSession | None:
        """A session that another process left in the store."""
        session = message.session
        if not self.store.keeps or session in self._ended or self._stopping:
            return None
        claiming = self._claiming.get(session)
        if claiming is None:
            claiming = asyncio.create_task(self._claim_alone(message, principal, pool, policy), name=f"claim {session}")
            self._claiming[session] = claiming
            claiming.add_done_callback(lambda done: self._claimed(session, done))
        return await asyncio.shield(claiming)  # who asked may leave meanwhile: what was begun is finished

    def _claimed(self, session: str, claiming: "asyncio.Task[LiveSession | None]") -> None:
        del self._claiming[session]
        if not claiming.cancelled():
            claiming.exception()  # whoever asked may not be there to hear it

    async def _claim_alone(
        self, message: c.Resume, principal: str, pool: EnginePool, policy: Policy
    ) -> LiveSession | None:
        session = message.session
        try:
            claim = await self.store.claim(session)
        except StoreError as error:
            log.error("the session store fails", reason=str(error))
            return None
        if claim is None:
            return None
        if not belongs_to(claim.lines, principal, message.token):  # then it is not worth the work
            await claim.journal.close(delete=False)
            raise ResumeRefused("auth")
        now = asyncio.get_running_loop().time()
        epoch = claim.epoch - FIRST_EPOCH
        try:
            restored = await asyncio.to_thread(restore, claim.lines, policy, pool.capabilities, epoch=epoch, now=now)
        except CannotRestore as error:
            log.warning("a session cannot be restored", session=session, reason=str(error))
            await claim.journal.close(delete=True)
            raise ResumeRefused("epoch") from None
        if not self.admit():
            await claim.journal.close(delete=False)
            raise ResumeRefused("evicted")
        live = LiveSession(restored, pool, self._metrics, self._changed)
        live.summary.principal = restored.principal
        live.detached_at = now
        self._live[session] = live
        live.start(claim.journal)
        live.schedule()
        log.info("session restored", session=session, epoch=epoch)
        return live

    async def end(self, live: LiveSession, outcome: str, *, keep: bool = False) -> None:
        """A session is over."""
        if self._live.pop(live.session.id, None) is not None:
            self.release()
        self._count_detached()
        await live.end(outcome, keep=keep)

    def _changed(self, live: LiveSession) -> None:
        """A session without connection was left, grew, failed or grew old."""
        if live.session.id not in self._live:
            return
        if isinstance(live.failure, ResumeRefused):
            self._drop(live, "not restored", live.failure)
        elif live.failure is not None:
            self._drop(live, live.failure.code if isinstance(live.failure, ProtocolError) else "failed")
        elif live.expired:
            self._drop(live, "expired", ResumeRefused("expired"))
        else:
            while self._detached_bytes() > self._budget and self._evict_oldest():
                pass
        self._count_detached()

    def _detached(self) -> list[LiveSession]:
        return [live for live in self._live.values() if live.carrier is None]

    def _detached_bytes(self) -> int:
        return sum(live.session.delivery.ring.bytes for live in self._detached())

    def _count_detached(self) -> None:
        self._metrics.detached.set(len(self._detached()))
        self._metrics.detached_bytes.set(self._detached_bytes())

    def _evict_oldest(self) -> bool:
        """Whether there was one to evict."""
        oldest = min(self._detached(), key=lambda live: live.detached_at, default=None)
        if oldest is None:
            return False
        self._drop(oldest, "evicted", ResumeRefused("evicted"))
        return True

    def _drop(self, live: LiveSession, outcome: str, why: ResumeRefused | None = None) -> None:
        """End a session that has no connection; its client will hear why."""
        self._live.pop(live.session.id)
        self.release()
        if why is not None:
            self._ended[live.session.id] = why
            while len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        task = asyncio.ensure_future(live.end(outcome))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # ---- the end ----

    @contextmanager
    def member(self, member: Stoppable) -> Iterator[None]:
        """Meanwhile `member` is among those that `stop` tells."""
        self._members.add(member)
        try:
            yield
        finally:
            self._members.discard(member)

    async def stop(self, deadline_ms: int) -> None:
        """Stop them all, side by side. What a store keeps can go on in the next process."""
        self._stopping = True
        await asyncio.gather(*(member.stop(deadline_ms) for member in list(self._members)))
        await asyncio.gather(*self._claiming.values(), return_exceptions=True)
        await asyncio.gather(*(self.end(live, "stopped", keep=True) for live in list(self._live.values())))
        await asyncio.gather(*self._ending)
        await self.store.close()
