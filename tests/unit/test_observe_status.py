"""What the status page is told: latencies in slots, one part, and several parts as one."""

import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.observe import latencies, status

NOW = 1_800_000_000.0


@given(st.floats(0.0011, 59))
def test_a_bin_is_exact_to_five_percent(seconds: float) -> None:
    shown = latencies.milliseconds_of(latencies.bin_of(seconds)) / 1000
    assert 0.95 < shown / seconds < 1.05


def test_the_fastest_and_the_slowest_have_a_bin() -> None:
    assert latencies.bin_of(0.0) == latencies.bin_of(0.001) == 0
    assert latencies.bin_of(60.0) <= latencies.bin_of(1e9) < 200


def test_percentiles_of_a_slot() -> None:
    seen = latencies.Latencies()
    for number in range(100):
        seen.add(NOW, 0.05 if number < 90 else 0.5)
    (point,) = latencies.chart(seen.slots(NOW), int(NOW // latencies.SLOT_S))
    assert (point["ago_s"], point["count"]) == (0, 100)
    assert point["p50_ms"] == pytest.approx(50, rel=0.05)
    assert point["p95_ms"] == pytest.approx(500, rel=0.05)


def test_what_is_old_goes() -> None:
    seen = latencies.Latencies()
    for number in range(500):
        seen.add(NOW + number * latencies.SLOT_S, 0.05)
    end = NOW + 499 * latencies.SLOT_S
    assert len(seen.slots(end)) == latencies.SLOTS
    assert len(seen.slots(end + 60)) == latencies.SLOTS - 12
    assert seen.slots(end + 100_000) == {}
    seen.add(NOW, 0.05)  # the clock was put back
    assert len(seen.slots(NOW)) == 1


def row(trouble: tuple[int, float], id: str = "abc") -> dict[str, Any]:
    return {"id": id, "trouble": trouble}


def part(
    name: str = "g1", sessions: list[dict[str, Any]] | None = None, slots: latencies.Slots | None = None, **load: float
) -> status.Part:
    figures = dict.fromkeys((*status._COUNTS, *status._OF_ENGINES, *status._GREATEST), 0.0)
    made = status.part(
        server={"ready": True, "reason": "", "engine": "tone", "version": "1", "uptime_s": 5},
        process={"name": name, "cpu_percent": 3.0},
        load={**figures, **load},
        totals={"underruns": 2, "refusals": 1},
        slots=slots or {},
        sessions=sessions or [],
    )
    return orjson.loads(orjson.dumps(made))  # type: ignore[no-any-return]  # as another process gets it


def test_one_part_merged_is_itself() -> None:
    only = part(sessions=[row((0, -1.0))], speaking=3)
    assert status.merge([only]) == only


def test_counts_add_up_and_times_do_not() -> None:
    whole = status.merge([part("g1", speaking=3, late_ms=40, workers=2), part("g2", speaking=4, late_ms=10, workers=2)])
    assert [each["name"] for each in whole["processes"]] == ["g1", "g2"]
    assert (whole["load"]["speaking"], whole["load"]["late_ms"], whole["load"]["workers"]) == (7, 40, 4)
    assert whole["totals"] == {"underruns": 4, "refusals": 2}


def test_what_processes_share_is_not_added() -> None:
    parts = [part(workers=2, waiting=5, speaking=1), part(workers=2, waiting=4, speaking=1)]
    load = status.merge(parts, shared_engines=True)["load"]
    assert (load["workers"], load["waiting"], load["speaking"]) == (2, 5, 2)


def test_percentiles_are_those_of_all() -> None:
    fast, slow = latencies.Latencies(), latencies.Latencies()
    for _ in range(95):
        fast.add(NOW, 0.05)
    for _ in range(5):
        slow.add(NOW, 1.0)
        slow.add(NOW - 20, 2.0)
    whole = status.merge([part(slots=fast.slots(NOW)), part(slots=slow.slots(NOW))])
    points = status.shown(whole, NOW)["first_audio"]["points"]
    assert [(each["ago_s"], each["count"]) for each in points] == [(20, 5), (0, 100)]
    assert points[1]["p95_ms"] == pytest.approx(50, rel=0.05)


def test_the_worst_sessions_of_all_are_listed() -> None:
    order = [((rank, float(margin)), f"{rank}-{margin}") for rank in range(4) for margin in range(60)]
    random.Random(1).shuffle(order)
    parts = [part(sessions=[row(*each) for each in sorted(order[start::2])]) for start in (0, 1)]
    whole = status.shown(status.merge(parts), NOW)
    assert [each["id"] for each in whole["sessions"]] == [name for _, name in sorted(order)][: status.MOST_LISTED]
    assert not any("trouble" in each for each in whole["sessions"])


def test_one_that_is_not_ready_is_told() -> None:
    late = part()
    late["server"] |= {"ready": False, "reason": "stopping", "uptime_s": 90}
    whole = status.merge([part(), late])
    assert (whole["server"]["ready"], whole["server"]["reason"], whole["server"]["uptime_s"]) == (False, "stopping", 90)
