"""Sessions that wait for their client to come back, and which of them makes way."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from server.gateway.live import LiveSession
from server.observe.metrics import Metrics


@dataclass(slots=True)
class _Share:
    """What one principal keeps waiting, the one that waits longest first."""

    sessions: OrderedDict[str, LiveSession] = field(default_factory=OrderedDict)
    bytes: int = 0


class Waiting:
    """Who makes way is the oldest of the principal that keeps most, so that nobody pushes others out by leaving many.

    `budget`: bytes of audio and text that all of them together may hold.
    """

    def __init__(self, metrics: Metrics, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._metrics = metrics
        self._shares: dict[str, _Share] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[LiveSession]:
        return (live for share in self._shares.values() for live in share.sessions.values())

    def keep(self, live: LiveSession) -> None:
        """It waits; or it waited already, and holds more or less than before."""
        session = live.session
        share = self._shares.setdefault(session.principal, _Share())
        if session.id not in share.sessions:
            share.sessions[session.id] = live
            self._count += 1
        self._count_bytes(share, session.kept_bytes - live.counted_bytes)
        live.counted_bytes = session.kept_bytes

    def remove(self, live: LiveSession) -> None:
        """It waits no longer; harmless where it did not."""
        session = live.session
        share = self._shares.get(session.principal)
        if share is None or share.sessions.pop(session.id, None) is None:
            return
        self._count -= 1
        self._count_bytes(share, -live.counted_bytes)
        live.counted_bytes = 0
        if not share.sessions:
            del self._shares[session.principal]

    def over_budget(self) -> LiveSession | None:
        """Who makes way so that the others have memory; None: there is enough, or nobody holds any."""
        if self.bytes <= self.budget:
            return None
        share = max(self._shares.values(), key=lambda each: each.bytes)
        return next((live for live in share.sessions.values() if live.counted_bytes), None)

    def in_the_way(self, principal: str | None = None) -> LiveSession | None:
        """Who makes way for somebody who is there; with a `principal` only one of its own. None: nobody waits."""
        if principal is None:
            share = max(self._shares.values(), key=lambda each: len(each.sessions), default=None)
        else:
            share = self._shares.get(principal)
        return None if share is None else next(iter(share.sessions.values()))

    def _count_bytes(self, share: _Share, by: int) -> None:
        share.bytes += by
        self.bytes += by
        self._metrics.detached.set(self._count)
        self._metrics.detached_bytes.set(self.bytes)
