"""The embedded engine alone, in one thread: real-time factor, step times, first chunks, loudness."""

import sys
import time
from dataclasses import dataclass, field

import numpy as np

from bench._common import Report, arguments, percentile
from server.engines import registry
from server.engines.base import Chunk, Engine, RenderMode, RenderPlan, Segment, SegmentEnd
from server.text.normaliser import normalise
from server.text.segmenter import Segmenter

TEXTS = {
    "zh": "今天天气很好，我们一起去公园散步。湖边的柳树已经发芽了，孩子们在草地上放风筝，老人坐在长椅上晒太阳。"
    "下午三点钟，天空忽然飘来几朵云，不过一会儿又放晴了。",
    "en": "The weather is lovely today, so we went for a walk in the park. The willows by the lake are green again, "
    "children are flying kites on the grass, and old people are sitting in the sun. At three o'clock a few clouds "
    "came, but they soon went.",
    "mixed": "我们用Python写了一个server，然后把它部署到cloud上面。这个project的performance很好，latency只有几十毫秒。",
}
SPEECH_LEVEL = 10 ** (-45 / 20)


@dataclass(slots=True)
class Rendering:
    """Steps of one text."""

    first_ms: list[float] = field(default_factory=list)
    later_ms: list[float] = field(default_factory=list)
    samples: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = field(default_factory=list)

    @property
    def work_s(self) -> float:
        """All steps."""
        return (sum(self.first_ms) + sum(self.later_ms)) / 1000


def render(engine: Engine, text: str, mode: RenderMode) -> Rendering:
    """A whole text, segment by segment."""
    result = Rendering()
    segmenter = Segmenter()
    segmenter.feed(text)
    segmenter.end()
    while (cut := segmenter.next()) is not None:
        segment = Segment(0, normalise(cut), cut.boundary, engine.capabilities.voices[0].id)
        job = engine.prepare(segment, RenderPlan(mode))
        times = result.first_ms
        while True:
            begun = time.perf_counter()
            event = engine.step([job])[0]
            times.append(1000 * (time.perf_counter() - begun))
            times = result.later_ms
            if isinstance(event, Chunk):
                result.samples.append(event.samples)
            if isinstance(event, SegmentEnd):
                break
    return result


def active_level(samples: np.ndarray[tuple[int], np.dtype[np.float32]], rate: int) -> float:
    """RMS of the windows of 20 ms in which someone speaks, dBFS."""
    size = rate // 50
    power = (samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64) ** 2).mean(axis=1)
    return float(10 * np.log10(power[power > SPEECH_LEVEL**2].mean()))


def main() -> int:
    """The exit status is always 0: nothing is asked of the engine alone but the voices' balance."""
    chosen = arguments(__doc__, rounds=(4, "how often each text is rendered"))
    report = Report("voices")
    engine = registry.create("embedded", {})
    engine.warm_up()
    loudness = {}
    modes: tuple[RenderMode, ...] = ("stream", "block")
    for language, text in TEXTS.items():
        for mode in modes:
            rounds = [render(engine, text, mode) for _ in range(chosen.rounds)]
            samples = np.concatenate(rounds[0].samples)
            audio_s = len(samples) / engine.capabilities.sample_rate
            if mode == "stream":
                loudness[language] = active_level(samples, engine.capabilities.sample_rate)
                firsts = [ms for each in rounds for ms in each.first_ms]
                report.spread(f"{language}: first step of a segment", firsts, "ms")
                report.spread(f"{language}: later steps", [ms for each in rounds for ms in each.later_ms], "ms")
            report.add(
                f"{language}: real-time factor, {mode}", percentile([r.work_s / audio_s for r in rounds], 0.5), ""
            )
    for language, level in loudness.items():
        report.add(f"{language}: active level", level, "dBFS")
    report.add("difference of the voices' levels", abs(loudness["zh"] - loudness["en"]), "dB", 2)
    engine.close()
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(main())
