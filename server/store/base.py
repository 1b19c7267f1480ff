"""The contract of a session store: append-only journals, and how a process takes one over from another that died."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

FIRST_EPOCH: Final = 1
"""The epoch of a session in the process that created it; every claim adds one."""


class StoreError(Exception):
    """The store cannot be used at all; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What one group of writes was, for metrics."""

    lines: int = 0
    bytes: int = 0
    """As they lie in the files, with what guards them."""
    files: int = 0
    seconds: float = 0.0
    """From taking the group to having written (and synced) all of it."""
    failures: tuple[str, ...] = ()
    """Why journals failed, one text for each; also outside groups (then with nothing written)."""


Observer: TypeAlias = Callable[[Activity], None]
"""Called on the event loop; must not raise."""


class Journal(Protocol):
    """The lines of one session, in order. Everything here is called on the event loop."""

    @property
    def failed(self) -> str | None:
        """Why nothing is kept (any more): disk full, too much waiting, closed. None while all is well.

        A journal that failed stays failed and what it kept is removed: half of a session's past must not be mistaken
        for all of it. The session goes on without protection against a restart.
        """

    def append(self, lines: Sequence[bytes], written: Callable[[], None] | None = None) -> None:
        r"""Keep these lines; returns at once.

        `written` is called exactly once, on the event loop, never before this returns, and in the order of the
        appends: when the lines are in the file (synced, where the store does that) or when `failed` says that they
        never will be. So nothing that waits for it waits for ever.

        Raises:
            ValueError: a line holds a b"\n".
        """

    async def close(self, *, delete: bool) -> None:
        """Give the journal up: for others to claim, or for good. What was appended is written first.

        It is given up even if this call is cancelled. Again is harmless.
        """


@dataclass(frozen=True, slots=True)
class Claim:
    """A session taken over."""

    lines: list[bytes]
    """At least one. All that were written, less those behind a damaged place."""
    journal: Journal
    """To go on with; may have failed from the start (disk full)."""
    epoch: int
    damaged: bool = False
    """Lines behind a damaged place were lost (not just a last one that was never written to its end)."""


class SessionStore(Protocol):
    """Journals by session id. Everything here is called on one event loop."""

    @property
    def keeps(self) -> bool:
        """Whether anything survives this process."""

    def create(self, session: str) -> Journal:
        """A journal for a new session, owned by this process at epoch `FIRST_EPOCH`. Never raises: see `failed`."""

    async def claim(self, session: str) -> Claim | None:
        """Take a session over, at its next epoch; of all who try at once exactly one gets it.

        None: not there, past its time, not readable, or owned by a process that lives (this one, too).
        """

    async def close(self) -> None:
        """Write what waits and give every journal up for others to claim, within 2 seconds."""
