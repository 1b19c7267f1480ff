"""The plain parts of worker processes: what an engine says of itself, when one starts again, what a worker is told."""

import dataclasses
import json
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from server.cluster.workers.capabilities import describe, restore
from server.cluster.workers.config import Assignment, WorkerConfig
from server.cluster.workers.restarts import Backoff
from server.engines import Capabilities, EngineError, Voice
from server.engines.embedded import counting
from server.engines.loading import start_engine

FULL = Capabilities(
    name="full",
    languages=("en", "zh"),
    sample_rate=22_050,
    voices=(
        Voice("a", "A", ("en",), "first", "MIT", "note", ("speed",)),
        Voice("b", "B", ("zh", "en"), "second", "Apache-2.0"),
    ),
    max_tokens=33,
    count_tokens=counting.count_tokens,
    fingerprint="full-1",
    parameters=frozenset({"speed", "seed"}),
    markup=frozenset({"[breath]", "<strong>"}),
    timings=True,
    cloning=True,
    batch_max=16,
    equality="lsb",
    context_tokens=8,
    device_memory=24 << 30,
    lanes=1,
    continuous=True,
    voice_kind="full-voices-1",
)


def test_capabilities_travel_whole() -> None:
    for field in dataclasses.fields(Capabilities):
        assert getattr(FULL, field.name) != field.default, f"the example leaves {field.name} at its default"
    restored = restore(json.loads(json.dumps(describe(FULL))))
    assert restored == FULL
    assert restored.device_memory == FULL.device_memory  # workers may differ in it
    assert restored.count_tokens is counting.count_tokens


def test_counting_loads_no_model() -> None:
    """A gateway imports what counts the tokens: that must not bring the engine with it."""
    assert "onnxruntime" not in Path(counting.__file__).read_text()
    assert counting.count_tokens("你好, it's 5 o'clock") == 5


class Counter:
    def count(self, text: str) -> int:
        return len(text)


@pytest.mark.parametrize(
    "function", [lambda text: 1, Counter().count, partial(len)], ids=["lambda", "method", "partial"]
)
def test_a_count_that_others_cannot_import_is_refused_in_one_line(function: Any) -> None:
    with pytest.raises(EngineError, match="the engine full cannot run in a worker process") as raised:
        describe(dataclasses.replace(FULL, count_tokens=function))
    assert "\n" not in str(raised.value)


def test_builtins_count_too() -> None:
    assert restore(describe(dataclasses.replace(FULL, count_tokens=len))).count_tokens is len


@pytest.mark.parametrize(
    "damage",
    [
        {"count_tokens": "no.such.module:x"},
        {"count_tokens": "os:no_such_name"},
        {"count_tokens": ":"},
        {"count_tokens": "os:sep"},
        {"surprise": 1},
        {"voices": [{"id": "a"}]},
    ],
)
def test_what_an_engine_cannot_be_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        restore({**describe(FULL), **damage})


def test_restarts_that_do_not_help_are_put_off_for_longer() -> None:
    backoff = Backoff()
    delays = [backoff.next_delay_s(0.0) for _ in range(12)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0])


@pytest.mark.parametrize("lived_s", [1.0, 2.5, 5.0, 12.0, 60.0])
def test_a_worker_that_is_killed_now_and_then_is_away_for_a_tenth_of_the_time(lived_s: float) -> None:
    backoff = Backoff()
    away_s = sum(backoff.next_delay_s(lived_s) for _ in range(100))
    assert away_s <= 0.1 * 100 * lived_s + 0.1


def test_after_half_a_minute_all_is_forgotten() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.next_delay_s(0.0)
    assert backoff.next_delay_s(29.0) == 30.0
    assert backoff.next_delay_s(30.0) == 0.1


def test_a_worker_is_told_everything() -> None:
    config = WorkerConfig("tone", {"script": [{"match": "x"}]}, 3, 2.5, 30, 128, "json", "debug")
    assert Assignment.parse(config.line(number=2, listener=9)) == Assignment(config, 2, 9)


def test_an_option_that_only_this_process_can_use_is_one_line() -> None:
    with pytest.raises(ValueError, match="an engine option cannot be given to a worker process"):
        WorkerConfig("tone", {"since": date(2026, 1, 1)}).line(number=0, listener=3)


def test_an_engine_that_breaks_as_it_starts_is_an_engine_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(name: str, options: dict[str, Any]) -> None:
        raise KeyError("weights")

    monkeypatch.setattr("server.engines.registry.create", broken)
    with pytest.raises(EngineError, match="the engine mine cannot start: KeyError: 'weights'"):
        start_engine("mine", {})
