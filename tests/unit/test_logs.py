"""One stream of log lines, from our code and from libraries."""

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from server.engines.base import EngineError
from server.observe.logs import configure_logs, log_loop_fault
from server.observe.traces import trace_without_messages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Put logging back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("server", "cosystream"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_hold_everything() -> None:
    stream = io.StringIO()
    configure_logs("auto", "info", stream)
    structlog.get_logger("server.app").info("session ended", audio_s=1.5, code=b"x", text="你好")
    structlog.get_logger("server.app").debug("not shown")
    (entry,) = lines(stream)
    assert str(entry.pop("timestamp")).endswith("Z")
    assert entry == {
        "event": "session ended",
        "level": "info",
        "logger": "server.app",
        "audio_s": 1.5,
        "code": "b'x'",
        "text": "你好",
    }


def test_libraries_are_heard_from_warning_up() -> None:
    stream = io.StringIO()
    configure_logs("json", "debug", stream)
    for name in ("websockets.server", "asyncio", "some.library"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("%s is odd", "it", extra={"port": 7})
    logging.getLogger("server.gateway").debug("ours")
    found = lines(stream)
    assert [entry["event"] for entry in found] == ["it is odd"] * 3 + ["ours"]
    assert found[0]["port"] == 7
    assert found[0]["logger"] == "websockets.server"


def test_an_exception_is_one_line_of_json_and_readable_on_a_console() -> None:
    for level, shown in (("info", False), ("debug", True)):
        for stream, shape in ((io.StringIO(), "json"), (Terminal(), "auto")):
            configure_logs(shape, level, stream)
            fail_and_log("".join(["what ", "was said"]))
            text = stream.getvalue()
            assert text.count("RuntimeError(message)") == 2
            assert text.count("in fail_and_log") == 2
            assert (text.count("what was said") == 2) is shown
            if shape == "json":
                assert "Traceback" in str(lines(stream)[0]["exception"])
                assert len(text.splitlines()) == 2


def fail_and_log(message: str) -> None:
    try:
        raise RuntimeError(message)
    except RuntimeError:
        structlog.get_logger("server.x").exception("failed")
        logging.getLogger("websockets.server").exception("failed too")


def trace_of(fail: Callable[[], None]) -> str:
    try:
        fail()
    except Exception as error:  # noqa: BLE001  # it is what is looked at
        return trace_without_messages(error)
    return ""


def test_a_trace_shows_causes_and_places_and_no_messages() -> None:
    def inner() -> None:
        raise KeyError("".join(["sec", "ret"]))

    def outer() -> None:
        try:
            inner()
        except KeyError as error:
            raise EngineError("".join(["it cannot say sec", "ret"])) from error

    trace = trace_of(outer)
    assert trace.index("KeyError") < trace.index("which caused:") < trace.index("server.engines.base.EngineError")
    assert "in inner" in trace
    assert "secret" not in trace


def test_a_trace_keeps_what_the_system_said() -> None:
    def fail() -> None:
        Path("/does not exist/secret").read_bytes()

    trace = trace_of(fail)
    assert trace.endswith("FileNotFoundError: [Errno 2] No such file or directory")


def test_a_trace_is_bounded_and_shows_the_parts_of_a_group() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ExceptionGroup("".join(["sec", "ret"]), [ValueError("".join(["sec", "ret"]))] * 20)

    trace = trace_of(lambda: deep(500))
    assert len(trace) < 6_000
    assert trace.count("ValueError") == 1 + 8  # the line of code, and the first parts
    assert '"secret"' not in trace


def test_a_fault_on_the_event_loop_is_told_without_its_arguments() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    loop = asyncio.new_event_loop()
    message = "Exception in callback deliver('secret')"
    log_loop_fault(loop, {"message": message, "exception": ValueError("secret"), "handle": "secret"})
    loop.close()
    (entry,) = lines(stream)
    assert entry["what"] == "Exception in callback deliver"
    assert entry["exception"] == "ValueError"
    assert "secret" not in stream.getvalue()


def test_a_terminal_gets_colours_and_a_pipe_none() -> None:
    for stream, coloured in ((Terminal(), True), (io.StringIO(), False)):
        configure_logs("console", "info", stream)
        structlog.get_logger("server.x").info("ready", url="http://127.0.0.1")
        assert ("\x1b[" in stream.getvalue()) is coloured
        assert "ready" in stream.getvalue()


def test_configuring_again_replaces() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logs("json", "info", first)
    log = structlog.get_logger("server.x")
    log.info("one")
    configure_logs("json", "error", second)
    log.info("two")
    log.error("three")
    assert [entry["event"] for entry in lines(first)] == ["one"]
    assert [entry["event"] for entry in lines(second)] == ["three"]


def test_a_value_that_is_not_json_is_no_failure() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    structlog.get_logger("server.x").info("odd", thing=object(), number=2**70, broken="\udc80", keys={1: 2})
    (entry,) = lines(stream)
    assert (entry["event"], entry["number"], entry["keys"]) == ("odd", 2**70, {"1": 2})
