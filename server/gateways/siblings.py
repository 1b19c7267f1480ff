"""The other gateways of this server, as one of them sees them: who lives, where to reach them, what they say."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import orjson

from server.gateways.asking import NoAnswer, ask
from server.gateways.names import index_of, owner_of

ANSWER_TIMEOUT_S: Final = 0.5
GONE_TIMEOUT_S: Final = 2.0
HOLDS_PATH: Final = "/gateway/holds"
"""At a gateway's unix socket: whether it has the session whose id is the query. Clients may send any characters there,
also those that no path of a route matches."""


class Unsure(Exception):
    """A gateway that lives does not answer: it may know what nobody else does."""


class Siblings:
    """Who lives is told by the parent (`update`): a gateway that is not named any more has ended, and with it all its
    locks on files are gone.
    """

    def __init__(self, name: str, folder: Path) -> None:
        """`name` is this gateway's; `folder` has the sockets."""
        self.name = name
        self.index = index_of(name)
        self._folder = folder
        self._living: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def socket_of(self, name: str) -> Path:
        """Where this gateway, which may be ourselves, listens for the others."""
        return self._folder / name

    def update(self, living: Iterable[str]) -> None:
        """These live, ourselves included or not."""
        self._living = frozenset(living) - {self.name}
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def others(self) -> list[str]:
        """The names of the others that live."""
        return sorted(self._living, key=index_of)

    def owner_of(self, session: str) -> str | None:
        """The other gateway that made this session, where it lives."""
        owner = owner_of(session)
        return owner if owner in self._living else None

    async def has_ended(self, name: str, within_s: float = GONE_TIMEOUT_S) -> bool:
        """Wait until the parent says that this gateway has ended; False where it does not within this time."""
        try:
            async with asyncio.timeout(within_s):
                while name in self._living:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def collect(self, target: str, timeout_s: float = ANSWER_TIMEOUT_S) -> list[tuple[str, bytes]]:
        """What the others answer to GET `target`, each with its name. Those who do not answer in time are left out."""
        names = self.others
        answers = await asyncio.gather(*(self._ask(name, target, timeout_s) for name in names))
        return [(name, answer) for name, answer in zip(names, answers, strict=True) if isinstance(answer, bytes)]

    async def holder_of(self, session: str) -> str | None:
        """The other gateway that has this session, whoever made it. Raises Unsure."""
        target = f"{HOLDS_PATH}?{quote(session, safe='')}"
        names = self.others
        answers = await asyncio.gather(*(self._ask(name, target, ANSWER_TIMEOUT_S) for name in names))
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, bytes) and orjson.loads(answer):
                return name
        # Without a socket it has just been started, and has no session.
        if any(isinstance(answer, NoAnswer) and not answer.absent for answer in answers):
            raise Unsure
        return None

    async def _ask(self, name: str, target: str, timeout_s: float) -> bytes | NoAnswer:
        try:
            return await ask(self.socket_of(name), target, timeout_s)
        except NoAnswer as problem:
            return problem
