"""The server that anybody writes first, to compare with: text in, cut at sentence ends, each sentence rendered as a
whole on a thread, then sent. `python -m bench.plain_server PORT`; a text message is a text to speak, binary messages
are s16le at the engine's rate, the text message `done` ends it. `bench.load` measures ours beside it.
"""

import asyncio
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import cpu_count

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from bench._common import run
from protocol import SUBPROTOCOL
from server.engines import registry
from server.engines.base import Chunk, Engine, RenderPlan, Segment, SegmentEnd
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause, Language


def render(engine: Engine, sentence: str) -> bytes:
    """All of a sentence."""
    language: Language = "en" if sentence.isascii() else "zh"
    tokens = normalise(Cut(0, len(sentence), sentence, Boundary.SENTENCE, CutCause.END, language))
    job = engine.prepare(Segment(0, tokens, Boundary.SENTENCE, engine.capabilities.voices[0].id), RenderPlan("block"))
    parts = []
    while not isinstance(event := engine.step([job])[0], SegmentEnd):
        assert isinstance(event, Chunk)
        parts.append((event.samples.clip(-1, 1) * 32_767).astype("<i2").tobytes())
    return b"".join(parts)


async def main(port: int) -> None:
    """Serve until the process is ended."""
    engine = registry.create("embedded", {})
    engine.warm_up()
    threads = ThreadPoolExecutor(cpu_count())

    async def speak(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            async for text in connection:
                for sentence in re.findall(r"[^。！？.!?]+[。！？.!?]*\s*", str(text)):
                    pcm = await asyncio.get_running_loop().run_in_executor(threads, render, engine, sentence)
                    await connection.send(pcm)
                await connection.send("done")

    async with serve(speak, "127.0.0.1", port, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None) as server:
        await server.serve_forever()


if __name__ == "__main__":
    run(main(int(sys.argv[1])))
