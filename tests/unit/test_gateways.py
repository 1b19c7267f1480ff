"""Several gateways: names, shares, turns, and metrics that are added up."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from server.gateways.control import (
    Alive,
    CannotStart,
    Launch,
    Ready,
    members_line,
    pack_launch,
    parse_members,
    parse_report,
    receive_launch,
    report_line,
)
from server.gateways.loads import Loads
from server.gateways.merging import merge
from server.gateways.names import gateway_name, index_of, owner_of, session_prefix
from server.gateways.routes import OF_WORKERS
from server.gateways.shares import share_of
from server.observe.metrics import Metrics
from server.settings import Settings


def test_a_session_id_names_its_owner() -> None:
    name = gateway_name(12, "00ab34ef")
    assert index_of(name) == 12
    assert owner_of(session_prefix(name) + "x-_.y") == name
    assert session_prefix("") == ""
    with pytest.raises(ValueError, match="no gateway"):
        index_of("g1-0")


@given(st.text())
def test_an_id_that_anybody_made_up_names_nobody(text: str) -> None:
    owner = owner_of(text)
    assert owner is None or text.startswith(owner + ".")
    assert owner_of("g1-00ab34eG." + text) is None
    assert owner_of("/g1-00ab34ef." + text) is None
    assert owner_of("g1-00ab34ef") is None


def test_bounds_are_divided_and_no_bound_stays_none() -> None:
    settings = Settings(max_sessions=100, sessions_per_principal=2, session_rate=3.0, engine_threads=2, quota_chars=7)
    share = share_of(settings, 3)
    assert (share.max_sessions, share.sessions_per_principal, share.engine_threads) == (34, 1, 1)
    assert (share.session_rate, share.quota_chars) == (1.0, 3)
    assert (share.quota_audio_s, share.max_streams) == (0.0, 0.0)
    assert share.host == settings.host


def test_whose_turn_it_is_to_accept() -> None:
    descriptor = Loads.make_file(3)
    first, second = Loads(descriptor, 3), Loads(descriptor, 3)
    os.close(descriptor)
    assert not first.others_serve(1)
    first.set(1, 2)
    assert first.has_least(1)
    assert second.others_serve(2)
    second.set(2, 1)
    assert not first.has_least(1)
    assert second.has_least(2)
    second.clear(2)
    assert first.has_least(1)
    assert not first.others_serve(1)


def test_parent_and_gateway_understand_each_other(tmp_path: Path) -> None:
    launch = Launch(Settings(engine_options={"a": 1}), "g1-00ab34ef", 2, tmp_path, (3, 4), 5, ("w",))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(pack_launch(launch) + members_line(["g1-00ab34ef"]))
        assert receive_launch(theirs) == launch
        assert parse_members(theirs.recv(1000)) == ["g1-00ab34ef"]
        for report in (Ready("tone", 2), Alive(), CannotStart("“no”")):
            assert parse_report(report_line(report)) == report
        ours.close()
        with pytest.raises(EOFError):
            receive_launch(theirs)


def metrics(sessions: int, *outcomes: str, steps: tuple[float, ...] = ()) -> bytes:
    made = Metrics()
    made.sessions.set(sessions)
    for outcome in outcomes:
        made.resumes.labels(outcome=outcome).inc()
    for step in steps:
        made.step_seconds.labels(engine="e").observe(step)
    return made.render()


def samples(text: bytes) -> dict[tuple[str, str], float]:
    return {
        (sample.name, ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_metrics_are_sums() -> None:
    merged = merge(
        [
            ("1", metrics(3, "resumed", "unknown", steps=(0.004, 0.3))),
            ("2", metrics(4, "resumed", 'a "b"\n\\ c', steps=(0.004,))),
        ]
    )
    found = samples(merged)
    assert found["cosystream_sessions_open", ""] == 7
    assert found["cosystream_gateways", ""] == 2
    assert found["cosystream_resumes_total", "outcome=resumed"] == 2
    assert found["cosystream_resumes_total", "outcome=unknown"] == 1
    assert found["cosystream_resumes_total", 'outcome=a "b"\n\\ c'] == 1
    assert found["cosystream_step_seconds_bucket", "engine=e,le=0.005"] == 2
    assert found["cosystream_step_seconds_bucket", "engine=e,le=+Inf"] == 3
    assert found["cosystream_step_seconds_count", "engine=e"] == 3
    assert found["cosystream_step_seconds_sum", "engine=e"] == pytest.approx(0.308)
    lines = merged.decode().splitlines()
    assert len(lines) == len(set(lines))


def test_the_figures_of_a_process_stay_its_own() -> None:
    found = samples(merge([("1", metrics(1)), ("2", metrics(1))]))
    assert {labels for name, labels in found if name == "cosystream_process_cpu_seconds_total"} == {
        "gateway=1",
        "gateway=2",
    }


def test_one_of_one_is_what_it_was() -> None:
    text = metrics(3, "resumed", steps=(0.1,))
    merged = samples(merge([("1", text)]))
    assert {key: value for key, value in merged.items() if "process" not in key[0]} == {
        key: value for key, value in samples(text).items() if "process" not in key[0]
    }


def test_figures_that_are_the_same_for_all_are_not_added() -> None:
    text = b"# TYPE a gauge\na 2.0\n# TYPE b gauge\nb 3.0\n"
    other = b"# TYPE a gauge\na 1.0\n# TYPE b gauge\nb 3.0\n"
    assert merge([("1", text), ("2", other)], greatest={"a"}) == b"# TYPE a gauge\na 2.0\n# TYPE b gauge\nb 6.0\n"


def test_of_a_family_a_single_series_may_be_the_same_for_all() -> None:
    text = b'# TYPE a gauge\na{of="all"} 2.0\na{of="one"} 3.0\n'
    merged = merge([("1", text), ("2", text)], greatest={'a{of="all"}'})
    assert merged == b'# TYPE a gauge\na{of="all"} 2.0\na{of="one"} 6.0\n'


def test_what_workers_keep_is_not_added_up() -> None:
    metrics = Metrics()
    for cache, size in (("context", 7), ("audio", 5)):
        metrics.cache_entries.labels(cache).set(1)
        metrics.cache_bytes.labels(cache).set(size)
    merged = merge([("1", metrics.render()), ("2", metrics.render())], OF_WORKERS).decode()
    assert 'cosystream_cache_bytes{cache="context"} 7.0' in merged
    assert 'cosystream_cache_entries{cache="context"} 1.0' in merged
    assert 'cosystream_cache_bytes{cache="audio"} 10.0' in merged


@pytest.mark.parametrize("text", [b"# TYPE a gauge\na x\n", b"# TYPE a gauge\nalone\n", b"#\n", b"a 1\n"])
def test_what_is_no_metrics_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        merge([("1", text)])


@pytest.mark.parametrize(("value", "written"), [(b"NaN", "NaN"), (b"+Inf", "+Inf"), (b"-Inf", "-Inf"), (b"5", "5.0")])
def test_numbers_are_written_as_prometheus_reads_them(value: bytes, written: str) -> None:
    comment = b"# TYPE a gauge\n"
    assert merge([("1", comment + b"a " + value + b"\n")]) == comment + f"a {written}\n".encode()
