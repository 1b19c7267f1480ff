"""Joins inside sentences, as a listener of the whole text hears them: no click, and no pause that nothing calls for.

A click is a step from one sample to the next, or a burst of high frequencies, that the speech beside it does not have;
both are given in terms of that speech.
`bench.joins` looks at pitch, level and rhythm.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import numpy as np

from bench._common import Report, percentile, run, server_process
from bench._longtext_failing import Book, hear
from bench._longtext_texts import breathless, chinese, english, text_of
from server.engines.embedded.pieces import PAUSE_MS, Mark

Wave = np.ndarray[tuple[int], np.dtype[np.float64]]

RATE: Final = 24_000
NEAR: Final = RATE * 4 // 1_000  # of the join, to either side
BESIDE: Final = RATE // 2  # the speech that it is compared with
FRAME: Final = 128  # 5 ms
HOP: Final = FRAME // 4
HIGH_HZ: Final = 6_000
QUIET_DB: Final = -35.0  # below the speech beside it
TEXTS: Final[dict[str, tuple[int, Callable[[Random], str]]]] = {
    "zh": (800, chinese), "en": (3_000, english), "sentences without marks": (2_500, breathless),
}  # fmt: skip
INNER: Final = "，,；;：:、"
TOLERANCE_MS: Final = 120.0
"""Before and after a pause there is a stop consonant's closure, or a vowel that dies away, which are quiet as well. The
English voice makes pauses of up to 400 ms by itself where a new thought begins, and they may fall on a join.
"""


@dataclass(frozen=True, slots=True)
class Join:
    """`step`: the largest from sample to sample, over the largest in the speech beside it. `high_db`: likewise, the
    energy of high frequencies. `pause_ms`: quiet without a break.
    """

    after_mark: bool
    step: float
    high_db: float
    pause_ms: float


def measure(wave: Wave, at: int, *, after_mark: bool) -> Join:
    """The join before sample `at` of speech at RATE."""
    near = wave[at - NEAR : at + NEAR]
    beside = wave[max(0, at - BESIDE) : at - NEAR], wave[at + NEAR : at + BESIDE]
    step = _step(near) / max(1e-9, *map(_step, beside))
    high = 10 * np.log10(_high(near).max() / max(_high(each).max() for each in beside))
    return Join(after_mark, step, float(high), _pause_ms(wave, at))


def joins(text: str, book: Book) -> Iterator[Join]:
    """Those inside sentences, of a text that was spoken."""
    wave = np.frombuffer(b"".join(each.pcm for each in book.segments), "<i2") / 32_768
    at = 0
    for each in book.segments[:-1]:
        at += len(each.pcm) // 2
        mark = text[: each.end].rstrip()[-1:]
        if mark not in ".?!。？！" and BESIDE <= at <= len(wave) - BESIDE:
            yield measure(wave, at, after_mark=mark in INNER)


def _frames(wave: Wave, hop: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.lib.stride_tricks.sliding_window_view(wave, FRAME)[::hop]


def _step(wave: Wave) -> float:
    return float(np.abs(np.diff(wave)).max())


def _high(wave: Wave) -> Wave:
    spectrum = np.abs(np.fft.rfft(_frames(wave, FRAME // 2) * np.hanning(FRAME), axis=1)) ** 2
    energy: Wave = spectrum[:, HIGH_HZ * FRAME // RATE :].sum(axis=1) + 1e-12
    return energy


def _pause_ms(wave: Wave, at: int) -> float:
    """How long it is quiet around a sample."""
    begin = max(0, at - BESIDE)
    place = at - begin
    runs = [run for run in quiet(wave[begin : at + BESIDE]) if run[0] - FRAME <= place <= run[1] + FRAME]
    return max((1_000 * (end - first) / RATE for first, end in runs), default=0.0)


def quiet(wave: Wave) -> list[tuple[int, int]]:
    """Stretches that are quiet against the rest of it, [first sample, end)."""
    level = 10 * np.log10((_frames(wave, HOP) ** 2).mean(axis=1) + 1e-12)
    is_quiet = np.concatenate([[False], level < np.percentile(level, 90) + QUIET_DB, [False]])
    edges = np.flatnonzero(np.diff(is_quiet.astype(np.int8)))
    return [
        (int(first) * HOP, int(last - 1) * HOP + FRAME) for first, last in zip(edges[::2], edges[1::2], strict=True)
    ]


def longest_inside_ms(book: Book) -> float:
    """The longest pause that a voice makes by itself, between words that are no join."""
    found = [0.0]
    for each in book.segments:
        wave = np.frombuffer(each.pcm, "<i2") / 32_768
        if len(wave) > BESIDE:
            runs = [run for run in quiet(wave) if run[0] > FRAME and run[1] < len(wave) - 2 * FRAME]
            found += [1_000 * (end - first) / RATE for first, end in runs]
    return max(found)


def listen(report: Report, share: float = 1.0) -> None:
    """Both languages, by the embedded voices."""
    options: dict[str, Any] = {"sample_rate": RATE, "mode": "stream"}
    with server_process("--engine", "embedded") as server:
        for name, (characters, make) in TEXTS.items():
            text = text_of(round(share * characters), make, seed=11)
            book = run(hear(server.url, text, **options))
            found = list(joins(text, book))
            inside_ms = longest_inside_ms(book)
            for after_mark, where in ((True, "behind a mark"), (False, "between words")):
                those = [each for each in found if each.after_mark == after_mark]
                if those:
                    called_for = PAUSE_MS[Mark.COLON] if after_mark else inside_ms
                    title = f"{name}, {len(those)} joins {where}"
                    report.add(f"{title}: sample step", max(each.step for each in those), "", 1)
                    report.add("  high frequencies", max(each.high_db for each in those), "dB", 0)
                    report.add("  pause, median", percentile([each.pause_ms for each in those], 0.5), "ms")
                    report.add("  the longest", max(each.pause_ms for each in those), "ms", called_for + TOLERANCE_MS)
            report.add(f"{name}: the longest pause that is no join", inside_ms, "ms")
