"""A generator of samples becomes an engine."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from server.cluster import InProcessPool
from server.engines import Capabilities, Chunk, RenderPlan, Segment, SegmentEnd, Voice
from server.engines.base import Samples
from server.engines.rendering import SegmentRequest
from server.engines.simple import SimpleEngine
from server.text.tokens import Boundary, Cut, CutCause, Token


class Counting(SimpleEngine):
    """Speaks 0.00, 0.01, 0.02... ten samples for each token."""

    def __init__(self) -> None:
        self.closed = 0

    @property
    def capabilities(self) -> Capabilities:
        voices = (Voice("count", "Count", ("en",), "Counts.", "Apache-2.0"),)
        return Capabilities("counting", ("en",), 24_000, voices, 40, len, "counting-1", equality="exact")

    def synthesize(self, segment: Segment, seed: int) -> Iterator[Samples]:
        try:
            for number in range(len(segment.tokens)):
                yield ((np.arange(10) + 10 * number) / 100).astype(np.float32)
        finally:
            self.closed += 1


def segment(tokens: int) -> Segment:
    return Segment(0, tuple(Token("a", n, n + 1, "en") for n in range(tokens)), Boundary.CLAUSE, "count")


def whole(engine: Counting, tokens: int, start: int = 0) -> list[float]:
    job = engine.prepare(segment(tokens), RenderPlan(), start_sample=start)
    found: list[float] = []
    while True:
        for event in engine.step([job]):
            if isinstance(event, SegmentEnd):
                return found
            assert isinstance(event, Chunk)
            found += event.samples.tolist()


def test_pieces_in_order_and_an_end() -> None:
    assert whole(Counting(), 3) == (np.arange(30) / 100).astype(np.float32).tolist()
    assert whole(Counting(), 0) == []


def test_a_start_inside_leaves_out_what_comes_before() -> None:
    engine = Counting()
    everything = whole(engine, 3)
    for start in (0, 1, 9, 10, 11, 29, 30, 40):
        assert whole(engine, 3, start) == everything[start:]


def test_cancel_ends_the_generator() -> None:
    engine = Counting()
    job = engine.prepare(segment(3), RenderPlan())
    engine.step([job])
    engine.cancel(job)
    assert engine.closed == 1


async def test_it_works_in_a_pool() -> None:
    engine = Counting()
    pool = InProcessPool(engine, threads=1)
    cut = Cut(0, 9, "one, two.", Boundary.SENTENCE, CutCause.END, "en")
    chunks = [chunk async for chunk in pool.synthesize(SegmentRequest(0, cut, "count", 24_000))]
    await pool.close()
    assert sum(chunk.samples for chunk in chunks) == 40  # two words and two marks
    assert engine.closed == 1


def test_the_example_in_the_docs_is_an_engine() -> None:
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    blocks = re.findall(r"```python simple-engine\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    engine = names["create"]({})
    job = engine.prepare(segment(2), RenderPlan())
    samples = 0
    while not isinstance(event := engine.step([job])[0], SegmentEnd):
        assert event.samples.dtype == np.float32
        samples += len(event.samples)
    assert samples == 2 * 6_000 + 7_200
