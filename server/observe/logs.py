"""Logging: one stream of events on stderr, as console lines or as JSON, from our code and from the libraries alike."""

import json
import logging
import sys
from typing import Any, Final, TextIO

import orjson
import structlog
from structlog.typing import Processor

OUR_LOGGERS: Final = ("server", "cosystream")
LIBRARY_LEVEL: Final = logging.WARNING


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
    render: list[Processor]
    if console:
        render = [
            structlog.dev.ConsoleRenderer(colors=target.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    else:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
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


class _OurHandler(logging.StreamHandler[TextIO]):
    """A handler that `configure_logs` can tell from those of others."""


def _json(event: Any, **_: Any) -> str:
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # integers beyond 64 bits, text with half a surrogate pair: slower, but never lost
        return json.dumps(event, default=str)
