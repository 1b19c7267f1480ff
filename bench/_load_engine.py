"""The engine alone, in this process: what every figure of the server is compared with, because machines differ, and
from one minute to the next.
"""

import itertools
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from bench._load_talker import Script
from server.cluster.segment import tokens_before
from server.engines.base import Chunk, Engine, RenderPlan, Segment, SegmentEnd
from server.engines.embedded.counting import MAX_TOKENS, count_tokens
from server.engines.rendering import SegmentRequest
from server.settings import Settings
from server.text.normaliser import normalise
from server.text.overlap import Overlap
from server.text.segmenter import Segmenter, SegmentLimits

THREADS: Final = len(os.sched_getaffinity(0))


def segments_of(engine: Engine, script: Script) -> list[Segment]:
    """What the server makes of a text, ready to render."""
    segmenter = Segmenter(limits=SegmentLimits(max_tokens=MAX_TOKENS, count_tokens=count_tokens))
    segmenter.feed(script.text)
    segmenter.end()
    voice, rate = engine.capabilities.voices[0].id, engine.capabilities.sample_rate
    overlap = Overlap(min(Settings().block_overlap_tokens, engine.capabilities.context_tokens), count_tokens)
    found: list[Segment] = []
    while (cut := segmenter.next()) is not None:
        request = SegmentRequest(len(found), cut, voice, rate, before=overlap.before(cut))
        found.append(Segment(request.id, normalise(cut), cut.boundary, voice, before=tokens_before(request)))
    return found


def first_chunk_ms(engine: Engine, segment: Segment) -> float:
    """`prepare` and the steps up to the first chunk."""
    begun = time.perf_counter()
    job = engine.prepare(segment, RenderPlan())
    while not isinstance(engine.step([job])[0], Chunk):
        pass
    taken = 1000 * (time.perf_counter() - begun)
    engine.cancel(job)
    return taken


def render_s(engine: Engine, segments: Sequence[Segment]) -> float:
    """Seconds of audio in these segments, rendered in the steps that the server takes for a listener."""
    samples = 0
    for segment in segments:
        job = engine.prepare(segment, RenderPlan())
        while not isinstance(event := engine.step([job])[0], SegmentEnd):
            assert isinstance(event, Chunk)
            samples += len(event.samples)
    return samples / engine.capabilities.sample_rate


def first_chunks_ms(engine: Engine, scripts: Sequence[Script]) -> list[float]:
    """The first chunk of each text, one after the other with nothing beside them."""
    return [first_chunk_ms(engine, segments_of(engine, script)[0]) for script in scripts]


class Costs:
    """What each text costs a thread while all threads are at work."""

    def __init__(self, engine: Engine, scripts: Sequence[Script]) -> None:
        self._engine = engine
        self._texts = [segments_of(engine, script) for script in scripts]
        self._audio_s = [0.0] * len(scripts)
        self._spent_s = [0.0] * len(scripts)
        self._lock = threading.Lock()

    def measure(self, seconds: float) -> None:
        """Render every text, at least once, for about so long. May be called again."""
        numbers = itertools.cycle(range(len(self._texts)))
        limit = time.perf_counter() + seconds

        def work(thread: int) -> None:
            count = 0
            while count < len(self._texts) or time.perf_counter() < limit:
                number = next(numbers)
                begun = time.perf_counter()
                audio_s = render_s(self._engine, self._texts[number])
                with self._lock:
                    self._spent_s[number] += time.perf_counter() - begun
                    self._audio_s[number] += audio_s
                count += THREADS

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(work, range(THREADS)))

    def of(self, script: int, audio_s: float) -> float:
        """Seconds of one thread for so much audio of a text."""
        return audio_s * self._spent_s[script] / self._audio_s[script]

    @property
    def streams(self) -> float:
        """How many streams of these texts all threads together make in real time."""
        return THREADS * sum(self._audio_s) / sum(self._spent_s)
