"""Failed segments, and what a folder holds of them."""

from pathlib import Path
from typing import Any

from server.cluster.failures import Attempt, FailedSegment
from server.jobs import Letter, LetterFolder, Resolved
from server.jobs.letters import encode
from tests.support.pools import request

MIB = 1024 * 1024
TIME = "2026-02-03T04:05:06.789Z"
ATTEMPT = Attempt("tone", 0, 11, 0, 0.25, "exception", "scripted", "Traceback\n  File x\nEngineError: scripted\n")


def failed_segment(text: str = "你好世界。", **fields: Any) -> FailedSegment:
    """A segment that the engine `tone` failed at; fields of the request, or of the failure."""
    of_failure = {
        "principal": "ann",
        "engine": "tone",
        "fingerprint": "tone-1",
        "attempts": (ATTEMPT,),
        "outcome": "clip",
    }
    told = {name: fields.pop(name, value) for name, value in of_failure.items()}
    return FailedSegment(request(text, **{"origin": "s-1/1", **fields}), **told)


def letter(identity: str = "0123456789ab", text: str = "你好世界。", **fields: Any) -> Letter:
    """A letter about it."""
    return Letter(identity, TIME, failed_segment(text, **fields))


def folder_with(path: Path, *entries: Letter | Resolved, max_bytes: int = 4 * MIB) -> LetterFolder:
    """A folder in which these are written."""
    folder = LetterFolder(path, max_bytes)
    folder.open()
    lines = [encode(entry, folder.max_line_bytes) for entry in entries]
    assert folder.append(lines) == (len(lines), None)
    return folder


def ids(folder: LetterFolder) -> list[str]:
    """Of the letters in it, the oldest first."""
    return [entry.id for entry in folder.read() if isinstance(entry, Letter)]
