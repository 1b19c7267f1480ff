"""Memory and CPU time by the length of the text: neither may know how long the text is."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from typing import Final

from bench._common import RESULTS, Report, ServerProcess, server_process
from bench._longtext_run import Sample, Spoken, speak
from bench._longtext_texts import both, english, longest_sentences, text_of
from server.settings import Settings

CURVES: Final = RESULTS / "longtext_curves.json"
GROWTH: Final = 1.05  # peak memory with the longest text over that with the shortest
CPU_PERCENT: Final = 10.0  # CPU time of a character, with the longest text against the second longest
STARTS: Final = 3  # of a client that says little: what starting and ending one takes
FILLS: Final = 12  # texts at most, until the caches are full
FULL: Final = "cosystream_cache_evictions_total"
USUAL_CACHE_MB: Final = Settings().audio_cache_mb


@dataclass(frozen=True, slots=True)
class Kind:
    """What is measured together, by one server."""

    name: str
    engine: str
    form: str  # of the audio
    sizes: Sequence[int]  # characters, rising
    make: Callable[[Random], str]
    fill: int  # characters of each text that fills the caches
    evictions: int  # so many, until the heap that they live in has its shape
    options: Sequence[str] = ()  # of the client


KINDS: Final = (
    # Twice as fast, there is half as much audio of each character: the longest text is done in half a minute.
    Kind("tone, PCM", "tone", "pcm", (10_000, 100_000, 1_000_000), english, 20_000, 1_000, ("--speed", "2")),
    Kind("tone, Opus", "tone", "opus", (10_000, 100_000, 1_000_000), english, 20_000, 1_000, ("--speed", "2")),
    Kind("embedded, PCM", "embedded", "pcm", (1_000, 5_000, 20_000), both, 500, 1, ("--speed", "2")),
)
HEAD: Final = (
    "", "characters", "tokens", "seconds", "audio s", "server MiB", "client MiB", "first ms", "server us/char",
    "client us/char",
)  # fmt: skip


def memory(report: Report, share: float = 1.0, *, strict: bool = True) -> None:
    """Every kind; `share` of the lengths. The curves go to CURVES. `strict`: CPU time is asked for, too."""
    curves: dict[str, dict[int, tuple[Sample, ...]]] = {}
    rows: list[tuple[str, ...]] = [HEAD]
    for kind in KINDS:
        spoken, start_s = measured(kind, share)
        figures(report, kind, spoken, start_s, strict=strict)
        rows += [row(kind.name, each, start_s) for each in spoken]
        curves[kind.name] = {each.characters: each.curve for each in (spoken[0], spoken[1], spoken[3])}
    report.note("\n" + table(rows))
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = {name: {size: [asdict(each) for each in curve] for size, curve in by.items()} for name, by in curves.items()}
    CURVES.write_text(json.dumps(kept) + "\n", encoding="utf-8")


def measured(kind: Kind, share: float) -> tuple[list[Spoken], float]:
    """A text of every size, and more of the middle size on either side of the longest, since single runs of it last
    only seconds; and what starting a client takes, in CPU seconds.
    """
    cache_mb = max(1, round(share * USUAL_CACHE_MB))
    with server_process("--engine", kind.engine, "--audio-cache-mb", str(cache_mb)) as server:
        start_s = warm_up(server, kind)
        short, middle, long = kind.sizes
        sizes = (short, middle, middle, long, middle, middle)
        return [
            speak(server, text_of(round(size * share), kind.make, seed), kind.form, *kind.options)
            for seed, size in enumerate(sizes)
        ], start_s


def warm_up(server: ServerProcess, kind: Kind) -> float:
    """The longest sentences, then so much that the caches are full. What starting a client takes, in CPU seconds."""
    texts = (longest_sentences(kind.make, seed) for seed in range(STARTS))
    start_s = median(speak(server, text, kind.form, *kind.options).client_cpu_s for text in texts)
    for seed in range(FILLS):
        speak(server, text_of(kind.fill, kind.make, 1_000 + seed), "pcm", *kind.options)
        if server.metric(FULL) >= kind.evictions:
            break
    return start_s


def figures(report: Report, kind: Kind, spoken: Sequence[Spoken], start_s: float, *, strict: bool) -> None:
    """What is asked of them."""
    shortest, first, second, longest, third, fourth = spoken
    middle = (first, second, third, fourth)
    report.add(f"{kind.name}: server's peak with {longest.characters:,} characters", longest.server_peak_mb, "MiB")
    over = f"over that with {shortest.characters:,}"
    report.add(f"  {over}", longest.server_peak_mb / shortest.server_peak_mb, "times", GROWTH)
    report.add("  client's peak", longest.client_peak_mb, "MiB")
    report.add(f"  {over}", longest.client_peak_mb / shortest.client_peak_mb, "times", GROWTH)
    if kind.engine != "tone":  # next to a real engine, nothing else can be seen
        return
    limit = CPU_PERCENT if strict else None
    for name, cost in (("server", server_us), ("client", lambda each: client_us(each, start_s))):
        change = change_percent(cost(longest), [cost(each) for each in middle])
        report.add(f"  {name}'s CPU time of a character, change from {first.characters:,}", change, "%", limit)


def change_percent(value: float, others: Sequence[float]) -> float:
    """How far a value is from the median of what was measured before and after it, since the machine drifts meanwhile;
    NaN where that is nothing.
    """
    usual = median(others)
    return abs(100 * value / usual - 100) if usual > 0 else math.nan


def server_us(spoken: Spoken) -> float:
    """The server's CPU time of a character."""
    return 1e6 * spoken.server_cpu_s / spoken.characters


def client_us(spoken: Spoken, start_s: float) -> float:
    """The client's, without what it takes to start and end one."""
    return 1e6 * max(0.0, spoken.client_cpu_s - start_s) / spoken.characters


def row(name: str, spoken: Spoken, start_s: float) -> tuple[str, ...]:
    """A line of the table."""
    return (
        name, f"{spoken.characters:,}", f"{spoken.tokens:,}", f"{spoken.seconds:.1f}", f"{spoken.audio_s:,.0f}",
        f"{spoken.server_peak_mb:.1f}", f"{spoken.client_peak_mb:.1f}", f"{spoken.first_ms:.0f}",
        f"{server_us(spoken):.1f}", f"{client_us(spoken, start_s):.1f}",
    )  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns, the first to the left and the others to the right."""
    return "\n".join(_aligned(rows))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def read_curves() -> Mapping[str, Mapping[int, Sequence[Sample]]]:
    """Those that were measured last: by kind and by characters. Raises OSError where there are none."""
    kept = json.loads(CURVES.read_text(encoding="utf-8"))
    return {
        name: {int(size): [Sample(**each) for each in curve] for size, curve in by.items()} for name, by in kept.items()
    }
