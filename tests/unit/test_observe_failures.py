"""What is logged and counted of segments that an engine failed at."""

import pytest
import structlog.testing

from server.cluster.failures import Attempt, FailedSegment, Outcome
from server.cluster.segment import as_engine_error, trace_of
from server.engines.base import EngineError, FailureKind
from server.engines.rendering import SegmentRequest
from server.observe.account import SessionAccount
from server.observe.failures import FailureWatch, raised_at
from server.observe.line_limit import BURST
from server.observe.metrics import Metrics
from server.text.tokens import Boundary, Cut, CutCause

SECRET = "谁也不能看到的话"


def failed(outcome: Outcome = "fallback", kind: FailureKind = "exception", trace: str = "") -> FailedSegment:
    cut = Cut(40, 40 + len(SECRET), SECRET, Boundary.CLAUSE, CutCause.PUNCTUATION, "zh")
    attempts = (
        Attempt("big", 40, 48, 0, 1.5, kind, f"cannot say {SECRET}", trace),
        Attempt("small", 42, 48, 9_000, 0.1),
    )
    return FailedSegment(SegmentRequest(3, cut, "v", 24_000, origin="abc/1"), "me", "big", "big-1", attempts, outcome)


def figure(metrics: Metrics, name: str) -> float:
    lines = metrics.render().decode().splitlines()
    return next((float(line.split(" ")[1]) for line in lines if line.startswith(f"cosystream_{name} ")), 0.0)


def test_a_line_and_two_counters() -> None:
    metrics = Metrics()
    watch = FailureWatch(metrics, lambda: 0.0)
    with structlog.testing.capture_logs() as logs:
        watch.told(failed())
        watch.told(failed("recovered", "out_of_memory"))
        watch.told(failed("abandoned"))
        watch.told(failed("cut_short", "time_out"))
    assert figure(metrics, 'failed_segments_total{reason="exception"}') == 2
    assert figure(metrics, 'failed_segments_total{reason="out_of_memory"}') == 1
    assert figure(metrics, 'degraded_segments_total{outcome="fallback"}') == 1
    assert figure(metrics, 'degraded_segments_total{outcome="cut_short"}') == 1  # the session says so, too
    assert "recovered" not in metrics.render().decode().replace("# ", "")
    assert logs[0] == {
        "event": "a segment failed",
        "log_level": "warning",
        "reason": "exception",
        "outcome": "fallback",
        "attempts": ["big: exception", "small: said"],
        "origin": "abc/1",
        "characters": 8,
        "at_sample": 0,
        "where": "",
        "lost_s": 1.5,
    }
    assert not [line for line in logs if SECRET[:2] in str(line)]


def test_a_flood_of_one_kind_is_not_logged() -> None:
    metrics, now = Metrics(), 0.0
    watch = FailureWatch(metrics, lambda: now)
    with structlog.testing.capture_logs() as logs:
        for _ in range(BURST + 30):
            watch.told(failed())
        assert len(logs) == BURST
        watch.told(failed(kind="silent"))
        now = 5.0
        watch.told(failed())
        assert len(logs) == BURST + 2
    assert figure(metrics, "log_lines_left_out_total") == 30


def test_where_an_engine_raised_and_nothing_of_what_it_said() -> None:
    def speak() -> None:
        raise RuntimeError(f'cannot say {SECRET}\n  File "{SECRET}", line 1, in nowhere')

    with pytest.raises(RuntimeError) as raised:
        speak()
    where = raised_at(trace_of(as_engine_error(raised.value)))
    assert where.startswith(f"{__file__}:")
    assert where.endswith(" speak")
    assert raised_at(trace_of(EngineError("only told"))) == ""
    assert raised_at("") == ""


def test_a_session_with_a_degraded_segment_is_degraded() -> None:
    account = SessionAccount()
    before = account.degraded
    account.degraded_segment(2, 1.0, "silent: by the fallback engine")
    account.degraded_segment(2, 2.0, "exception: a clip")
    assert (before, account.degraded) == (False, True)
    assert account.degraded_segments == 2
    (detail,) = account.detail()["utterances"]
    assert detail["degraded_why"] == "exception: a clip"
