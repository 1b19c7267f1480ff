"""Logging: one stream of events on stderr, as console lines or as JSON, from our code and from the libraries alike.

No text that a client had spoken is in it: our lines have none, and tracebacks come without the exceptions' messages,
which may quote one (see `traces.py`). Level debug shows those.
"""

import asyncio
import logging
import sys
from typing import Any, Final, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from server.json_text import dumps
from server.observe.traces import trace_without_messages, write_trace

OUR_LOGGERS: Final = ("server", "cosystream")
LIBRARY_LEVEL: Final = logging.WARNING

log = structlog.get_logger(__name__)


def configure_logs(log_format: str = "auto", log_level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (stderr). `log_format` is console, json, or auto: console on a terminal, else json.

    Our own events are logged from `log_level` up, those of libraries from WARNING up. Times are UTC, ISO 8601. Calling
    it again replaces what it set before.
    """
    target = stream or sys.stderr
    console = log_format == "console" or (log_format == "auto" and target.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    in_full = log_level == "debug"
    render: list[Processor]
    if console:
        formatter_of_traces = structlog.dev.plain_traceback if in_full else write_trace
        render = [structlog.dev.ConsoleRenderer(colors=target.isatty(), exception_formatter=formatter_of_traces)]
    else:
        render = [
            structlog.processors.format_exc_info if in_full else _format_trace,
            structlog.processors.JSONRenderer(serializer=_json),
        ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render]
    )
    handler = _OurHandler(target)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _OurHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LIBRARY_LEVEL)
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(log_level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # so that configuring again reaches loggers already in use
    )


def log_loop_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's exception handler. The loop's own line would show what a callback was called with."""
    what = str(context.get("message", "")).partition("<")[0].partition("(")[0].strip()
    log.error("the event loop met a fault", what=what, exc_info=context.get("exception"))


def _format_trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["exception"] = trace_without_messages(error)
    return event


class _OurHandler(logging.StreamHandler[TextIO]):
    """A handler that `configure_logs` can tell from those of others."""


def _json(event: Any, **_: Any) -> str:
    return dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
