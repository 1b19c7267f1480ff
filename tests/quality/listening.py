"""A real server in a thread, and what a client of it hears."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import client
from protocol.server_messages import Done, Event, SegmentBegin, SegmentEnd, Timing, Word
from tests.support.server import running_server

RATE: Final = 24_000
START_TIMEOUT_S: Final = 120.0  # with voices to build


@dataclass(frozen=True, slots=True)
class Speech:
    """One utterance as the client got it. Positions are samples of `pcm`, shape [n], s16."""

    text: str
    pcm: npt.NDArray[np.int16]
    rate: int
    words: tuple[Word, ...]
    segments: tuple[SegmentBegin, ...]
    digest: str

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.pcm) / self.rate

    @property
    def floats(self) -> npt.NDArray[np.float64]:
        """Samples in [-1, 1]."""
        return self.pcm.astype(np.float64) / 32_768


@contextmanager
def server_in_thread(**settings: Any) -> Iterator[str]:
    """The URL of a server that runs in an event loop of its own."""
    started = threading.Event()
    state: dict[str, Any] = {}

    async def serve() -> None:
        async with running_server(**settings) as url:
            state["url"], state["loop"], state["stop"] = url, asyncio.get_running_loop(), asyncio.Event()
            started.set()
            await state["stop"].wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as error:  # noqa: BLE001  # handed to whoever waits
            state["error"] = error
        finally:
            started.set()

    thread = threading.Thread(target=run, name="server")
    thread.start()
    try:
        assert started.wait(START_TIMEOUT_S), "the server did not start"
        if "error" in state:
            raise state["error"]
        yield state["url"]
    finally:
        if "stop" in state:
            state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join()
        if "stop" in state and "error" in state:
            raise state["error"]


def speak(url: str, text: str | Iterable[str], *, per_second: float | None = None, **options: Any) -> Speech:
    """Have the server say a text, at once or at `per_second` characters a second; options are those of `connect`."""
    return asyncio.run(_speak(url, text, per_second, options))


async def _speak(url: str, text: str | Iterable[str], per_second: float | None, options: dict[str, Any]) -> Speech:
    events: list[Event] = []
    whole = text if isinstance(text, str) else "".join(text)
    writing = text if per_second is None else _slowly(whole, per_second)
    async with client.connect(url, **options) as session:
        parts = [audio.pcm async for audio in session.speak(writing, on_event=events.append)]
        rate = session.sample_rate
    pcm = np.frombuffer(b"".join(parts), "<i2")
    done = next(event for event in events if isinstance(event, Done))
    assert len(pcm) == done.samples, f"{len(pcm)} samples came, {done.samples} were announced"
    assert sum(isinstance(event, SegmentEnd) for event in events) == done.statistics["segments"]
    return Speech(
        whole,
        pcm,
        rate,
        tuple(word for event in events if isinstance(event, Timing) for word in event.words),
        tuple(event for event in events if isinstance(event, SegmentBegin)),
        done.digest,
    )


async def _slowly(text: str, per_second: float) -> AsyncIterator[str]:
    """Character by character, at a steady pace."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number, character in enumerate(text):
        await asyncio.sleep(max(0.0, begun + number / per_second - loop.time()))
        yield character
