"""`resume` message by message: an open session of its own, and what must come of it."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed

from protocol import server_messages as s
from protocol.frames import AudioFrame
from tests.support.faults import Scene, scene
from tests.support.resumer import Resumer, resumer
from tests.support.server import url_of

FIVE = "第一句话。第二句话。 Sentence number three. 第四句话。最后一句话。"  # 4 s of audio
PAUSE_S = 0.05


@asynccontextmanager
async def session(**settings: Any) -> AsyncIterator[tuple[Scene, Resumer, bytes]]:
    """A scene, an open session, and what `FIVE` sounds like."""
    async with scene(**settings) as there:
        undisturbed = await there.undisturbed(FIVE)
        async with resumer(url_of(there.server)) as bare:
            yield there, bare, undisturbed.pcm


async def to_the_end(bare: Resumer, pcm: bytes) -> s.Done:
    """Everything comes, and is what it should be."""
    done = await bare.until(s.Done)
    assert bytes(bare.pcm) == pcm
    assert done.samples == len(pcm) // 2
    ends = [event.segment for event in bare.events if isinstance(event, s.SegmentEnd)]
    assert ends == list(range(5))
    return done


async def came(bare: Resumer) -> list[Any]:
    """What comes in a moment, but for the mark of the end: whether that arrived `resume` does not say."""
    found = []
    with contextlib.suppress(TimeoutError):
        while True:
            found.append(await bare.receive(0.15))
    return [item for item in found if not (isinstance(item, AudioFrame) and item.count == 0)]


async def drain(bare: Resumer) -> None:
    """Whatever still comes, until the server ends the connection."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await bare.client.receive()
