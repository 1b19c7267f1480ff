"""Tracebacks that show where something failed and never what it was said: an exception's message may quote a text.

`debug` logs show the messages, too.
"""

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Final, TextIO

MOST_CAUSES: Final = 8
MOST_FRAMES: Final = 40  # of one exception; a recursion has thousands

ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


def trace_without_messages(error: BaseException) -> str:
    """As Python prints it, causes first, without the messages. Of an OSError what the system said is kept."""
    return "\n".join(_parts(error, MOST_CAUSES))


def write_trace(stream: TextIO, exc_info: ExcInfo) -> None:
    """For structlog's console."""
    if exc_info[1] is not None:
        stream.write("\n" + trace_without_messages(exc_info[1]))


def _parts(error: BaseException, causes_left: int) -> Iterator[str]:
    cause = error.__cause__
    context = None if error.__suppress_context__ else error.__context__
    if causes_left and cause is not None:
        yield from _parts(cause, causes_left - 1)
        yield "which caused:"
    elif causes_left and context is not None:
        yield from _parts(context, causes_left - 1)
        yield "and while that was handled:"
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), limit=-MOST_FRAMES)
    if frames:
        yield "Traceback (most recent call last):"
        yield "".join(frames.format()).rstrip("\n")
    yield _name(error)
    if isinstance(error, BaseExceptionGroup) and causes_left:
        for each in error.exceptions[:MOST_CAUSES]:
            yield "one of its parts:"
            yield from _parts(each, causes_left - 1)


def _name(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    said = error.strerror if isinstance(error, OSError) and error.errno is not None else None
    return f"{name}: [Errno {error.errno}] {said}" if isinstance(error, OSError) and said else name
