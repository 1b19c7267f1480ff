"""Whether an ONNX file is whole, as far as that can be told without loading it: it may have a gigabyte."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from server.engines.cosyvoice.sections import ModelError

_GRAPH: Final = 7  # numbers of fields, from the format's definition
_NODE: Final = 1
_OUTPUT: Final = 12
_LENGTH, _FIXED = 2, {1: 8, 5: 4}  # how a field's value is kept: its length before it, or always so many bytes
_MOST_FIELDS: Final = 1_000_000  # a large graph has some ten thousand


def check_onnx(file: Path) -> None:
    """That `file` is one model whose fields, and those of its graph, end exactly where they should: thus neither
    truncated nor empty nor something else. Takes milliseconds; a changed weight is not noticed. Raises ModelError.
    """
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            graphs = [span for field, *span in _fields(data, 0, len(data)) if field == _GRAPH]
            if len(graphs) != 1:
                raise ValueError
            names = {field for field, *_ in _fields(data, *graphs[0])}
            if not {_NODE, _OUTPUT} <= names:
                raise ValueError
    except OSError as problem:
        raise ModelError(f"{file}: cannot be read: {problem.strerror}") from None
    except (ValueError, IndexError):  # an empty file cannot be mapped: ValueError
        raise ModelError(f"{file}: is no ONNX model, or truncated; get the file again") from None


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field of a message. Raises ValueError: one is none, or reaches beyond `end`."""
    for _ in range(_MOST_FIELDS):
        if at == end:
            return
        key, at = _whole(data, at)
        kind, size = key & 7, 0
        if kind == _LENGTH:
            size, at = _whole(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        elif kind == 0:
            _, at = _whole(data, at)
        else:
            raise ValueError
        if not key >> 3 or at + size > end:
            raise ValueError
        yield key >> 3, at, at + size
        at += size
    raise ValueError


def _whole(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A number in the format's own way, seven bits to a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError
