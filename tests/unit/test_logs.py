"""One stream of log lines, from our code and from libraries."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from server.observe.logs import configure_logs


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
    for stream, shape in ((io.StringIO(), "json"), (Terminal(), "auto")):
        configure_logs(shape, "info", stream)
        try:
            raise RuntimeError("cause")
        except RuntimeError:
            structlog.get_logger("server.x").exception("failed")
            logging.getLogger("websockets.server").exception("failed too")
        text = stream.getvalue()
        assert text.count("RuntimeError: cause") == 2
        if shape == "json":
            assert "Traceback" in str(lines(stream)[0]["exception"])
            assert len(text.splitlines()) == 2


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
