"""Tells who keeps something of learnt voices which of them are gone, whichever process deleted them."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from server.voices.store import VoiceStore

log = structlog.get_logger(__name__)

EVERY_S: Final = 1.0
_SETTLED_NS: Final = 2_000_000_000
"""A folder that was changed so short ago may have changed again at the same time of its clock."""


class VoiceWatch:
    """Looks at the folder once a second, and lists it where it changed. Made inside the running event loop; `close` it.

    `on_gone` is called, on the event loop, with the id of each voice that was deleted since it looked last.
    """

    def __init__(self, store: VoiceStore, on_gone: Callable[[str], None], every_s: float = EVERY_S) -> None:
        self._store = store
        self._on_gone = on_gone
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._known = store.ids()
        self._changed_ns = -1
        self._timer: asyncio.TimerHandle | None = None
        if store.path is not None:
            self._timer = self._loop.call_later(every_s, self._look_again)

    def look(self) -> None:
        """Look now."""
        try:
            changed_ns = self._store.path.stat().st_mtime_ns if self._store.path is not None else -1
        except OSError:
            changed_ns = 0  # no folder (yet, or any more)
        if changed_ns == self._changed_ns and time.time_ns() - changed_ns > _SETTLED_NS:
            return
        self._changed_ns = changed_ns
        known = self._known | self._store.take_found()  # first: what is found from here on is looked for the next time
        self._known = self._store.ids()
        for voice in known - self._known:
            try:
                self._on_gone(voice)
            except Exception:  # whatever an engine does wrong here, the next voice must be let go, too
                log.exception("a voice that was deleted may still be kept")

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self.look()
        self._timer = self._loop.call_later(self._every_s, self._look_again)
