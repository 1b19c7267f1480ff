"""The sessions of this server: how many at a time, which wait for their client, whom to tell when it stops."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import structlog

from protocol import client_messages as c
from protocol.errors import ProtocolError
from server.cluster.base import EnginePool
from server.gateway.doorkeeper import Doorkeeper, Tally
from server.gateway.live import Carrier, LiveSession, make_session
from server.gateway.waiting import Waiting
from server.observe.watch import Watch
from server.scheduler.admission import Refusal
from server.session import Policy, ResumeRefused, Session
from server.session.restore import CannotRestore, belongs_to, restore
from server.store import FIRST_EPOCH, Claim, MemoryStore, SessionStore, StoreError

log = structlog.get_logger(__name__)

CLAIM_PATIENCE_S: Final = 2.0  # how long a stopping server waits for sessions that are being restored
FULL_RETRY_S: Final = 2.0  # nobody knows when a session ends
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
        watch: Watch,
        *,
        store: SessionStore | None = None,
        budget_bytes: int = 256 * 1024 * 1024,
        id_prefix: str = "",
        doorkeeper: Doorkeeper | None = None,
    ) -> None:
        """`id_prefix`: what the ids of new sessions begin with."""
        self.taken = 0
        self._id_prefix = id_prefix
        self.store = store or MemoryStore()
        self.doorkeeper = doorkeeper or Doorkeeper(watch.metrics)
        self._limit = limit
        self._watch = watch
        self._metrics = watch.metrics
        self._members: set[Stoppable] = set()
        self._live: dict[str, LiveSession] = {}
        self._waiting = Waiting(watch.metrics, budget_bytes)  # of these, those without connection
        self._ended: OrderedDict[str, ResumeRefused] = OrderedDict()  # why they cannot be resumed
        self._ending: set[asyncio.Task[None]] = set()
        self._restoring = asyncio.Semaphore(1)  # it takes memory, and time from the others
        self._claiming: dict[str, asyncio.Task[LiveSession | None]] = {}
        self._stopping = False

    # ---- places ----

    def check_open(self, principal: str) -> None:
        """Whether this principal may open a session now. Raises Refused. What is decided holds until the next await."""
        doorkeeper = self.doorkeeper
        if doorkeeper.use.full(principal) and self._waiting.in_the_way(principal) is None:
            raise doorkeeper.refused(doorkeeper.use.too_many(principal))
        if self.taken >= self._limit and not self._waiting:
            raise doorkeeper.refused(_full())
        doorkeeper.check_open(principal)

    def enter(self, session: Session, *, new: bool = True) -> Tally | None:
        """Give a session a place, and take it from one without connection where there is no other; None: there is none.
        `new`: it was opened here. Every Tally needs a `leave`.
        """
        if new and self.doorkeeper.use.full(session.principal):
            self._evict(self._waiting.in_the_way(session.principal))
        if self.taken >= self._limit and not self._evict(self._waiting.in_the_way()):
            return None
        self.taken += 1
        self._metrics.sessions.set(self.taken)
        return self.doorkeeper.enter(session, new=new)

    def leave(self, tally: Tally) -> None:
        """A session gives its place back."""
        self.taken -= 1
        self._metrics.sessions.set(self.taken)
        tally.close()

    # ---- sessions that outlive connections ----

    def new(self, pool: EnginePool, policy: Policy) -> LiveSession:
        """One for a connection that has not said yet what it wants. It takes no place and is not known."""
        return LiveSession(self._made(pool, policy), pool, self._watch, self._changed)

    def _made(self, pool: EnginePool, policy: Policy) -> Session:
        return make_session(pool, policy, recorded=self.store.keeps, id_prefix=self._id_prefix)

    def knows(self, session: str) -> bool:
        """Whether a session is here, or was."""
        return session in self._live or session in self._claiming or session in self._ended

    def holds(self, session: str) -> bool:
        """Whether a session is here, or is being taken over."""
        return session in self._live or session in self._claiming

    def count_refusal(self, refusal: ResumeRefused) -> None:
        """A client that came back does not get its session."""
        self._metrics.resumes.labels(outcome=refusal.reason).inc()

    def keep(self, live: LiveSession) -> None:
        """It is open: give it a place and remember it. Raises Refused when there are too many."""
        assert live.session.principal
        live.tally = self.enter(live.session)
        if live.tally is None:
            raise self.doorkeeper.refused(_full())
        self._live[live.session.id] = live
        live.start(self.store.create(live.session.id) if self.store.keeps else None)

    async def resume(
        self, message: c.Resume, principal: str, carrier: Carrier, pool: EnginePool, policy: Policy
    ) -> LiveSession:
        """Give a client who comes back its session. Raises ResumeRefused, which the caller counts; the session is then
        as before.
        """
        live = self._live.get(message.session) or await self._claim(message, principal, pool, policy)
        if live is None:
            known = self._ended.get(message.session)
            raise ResumeRefused(known.reason, known.utterance, known.position) if known else ResumeRefused("unknown")
        if live.session.principal != principal or not live.session.accepts(message.token):
            raise ResumeRefused("auth")
        if live.failure is not None or live.over:
            raise ResumeRefused("unknown")
        live.resume(message, carrier)
        self._metrics.resumes.labels(outcome="resumed").inc()
        self._waiting.remove(live)
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
        try:
            return await self._restore(message, principal, claim, pool, policy)
        except BaseException:
            await claim.journal.close(delete=False)  # for whoever can make more of it, or its time
            raise

    async def _restore(
        self, message: c.Resume, principal: str, claim: Claim, pool: EnginePool, policy: Policy
    ) -> LiveSession:
        """The session of a journal, waiting for its client. Raises ResumeRefused."""
        session, now = message.session, asyncio.get_running_loop().time()
        if not belongs_to(claim.lines, principal, message.token):
            raise ResumeRefused("auth")  # it is not worth the work
        epoch = claim.epoch - FIRST_EPOCH
        try:
            async with self._restoring:
                restored = await asyncio.to_thread(
                    restore, claim.lines, policy, pool.capabilities, epoch=epoch, now=now
                )
            if restored.id != session:
                raise CannotRestore("the journal is another session's")
        except CannotRestore as error:
            fault = type(error.__cause__ or error).__name__  # its message may quote what the journal holds
            log.warning("a session cannot be restored", session=session, fault=fault)
            raise ResumeRefused("epoch") from None
        if self._stopping:
            raise ResumeRefused("unknown")
        tally = self.enter(restored, new=False)
        if tally is None:
            raise ResumeRefused("evicted")
        live = LiveSession(restored, pool, self._watch, self._changed)
        live.belongs_to(restored.principal)
        live.tally = tally
        self._live[session] = live
        live.start(claim.journal)
        live.schedule()
        self._changed(live)
        log.info("session restored", session=session, epoch=epoch)
        return live

    async def end(self, live: LiveSession, outcome: str, *, keep: bool = False) -> None:
        """A session is over."""
        self._remove(live)
        await asyncio.shield(self._ended_by(live.end(outcome, keep=keep)))

    def _changed(self, live: LiveSession) -> None:
        """A session without connection was left, grew, failed or grew old."""
        if live.session.id not in self._live or live.carrier is not None:
            return
        if isinstance(live.failure, ResumeRefused):
            self._drop(live, "not restored", live.failure)
        elif live.failure is not None:
            self._drop(live, live.failure.code if isinstance(live.failure, ProtocolError) else "failed")
        elif live.expired:
            self._drop(live, "expired", ResumeRefused("expired"))
        elif self._stopping:
            self._hand_over(live)
        else:
            self._waiting.keep(live)
            while self._evict(self._waiting.over_budget()):
                pass

    def _remove(self, live: LiveSession) -> None:
        """It has no place any more; harmless where it had none."""
        self._waiting.remove(live)
        if self._live.get(live.session.id) is live:
            del self._live[live.session.id]
            tally, live.tally = live.tally, None
            assert tally is not None
            self.leave(tally)

    def _evict(self, live: LiveSession | None) -> bool:
        """Give up a session that waits for its client. Whether there was one."""
        if live is None:
            return False
        self._drop(live, "evicted", ResumeRefused("evicted"))
        return True

    def _drop(self, live: LiveSession, outcome: str, why: ResumeRefused | None = None) -> None:
        """End a session that has no connection; its client will hear why."""
        self._remove(live)
        if why is not None:
            self._ended[live.session.id] = why
            while len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        self._ended_by(live.end(outcome))

    def _hand_over(self, live: LiveSession) -> None:
        """Leave a session that has no connection to another process, where there is a store."""
        self._remove(live)
        self._ended_by(live.end("stopped", keep=True))

    def _ended_by(self, end: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A session ends in a task of its own; `stop` waits for it before it closes the store."""
        task = asyncio.create_task(end)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

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
        """Stop them all, side by side. What a store keeps can go on in another process: at once, where no connection
        carries it.
        """
        self._stopping = True
        for live in list(self._waiting):
            self._hand_over(live)
        await self._all(member.stop(deadline_ms) for member in list(self._members))
        if self._claiming:
            await asyncio.wait(self._claiming.values(), timeout=CLAIM_PATIENCE_S)
        await self._all(self.end(live, "stopped", keep=True) for live in list(self._live.values()))
        await self._all(list(self._ending))
        await self.store.close()

    async def _all(self, works: Iterable[Awaitable[None]]) -> None:
        """Wait for all of them; a fault of one must not keep the others, nor what comes after, from happening."""
        for result in await asyncio.gather(*works, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("a session did not stop in order", exc_info=result)


def _full() -> Refusal:
    return Refusal("capacity", FULL_RETRY_S, "the server has as many sessions as it may")
