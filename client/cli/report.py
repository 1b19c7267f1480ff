"""The measurements of a run, for `--stats`, and small files that are written whole or not at all."""

from pathlib import Path
from time import monotonic
from typing import Any

import orjson

from client.errors import ClientError, OutputFailed
from client.shell import Session
from client.utterance import Utterance


def report(
    session: Session | None,
    utterance: Utterance | None,
    samples: int,
    wall_s: float,
    stalls: int | None,
    error: ClientError | None,
) -> dict[str, Any]:
    """What `--stats` writes (docs/client.md). `samples`: received so far, `stalls`: of a real player, if one played."""
    result: dict[str, Any] = {"ok": error is None, "error": str(error) if error else None, "wall_s": round(wall_s, 3)}
    if session is None or utterance is None:
        return result
    statistics = utterance.statistics
    samples = statistics.samples if error is None else samples
    audio_s = samples / session.sample_rate
    line, end = session.line, statistics.finished or monotonic()
    busy_s = (statistics.finished or 0.0) - (statistics.first_text or statistics.started)
    return result | {
        "ttfa_ms": _ms(statistics.ttfa_s),
        "ttfa_clause_ms": _ms(statistics.ttfa_clause_s),
        "audio_s": round(audio_s, 3),
        "rtf": round(busy_s / audio_s, 4) if audio_s and statistics.finished else None,
        "stalls": statistics.stalls if stalls is None else stalls,
        "stall_ms": _ms(statistics.stall_s),
        "bytes": statistics.bytes,
        "frames": statistics.frames,
        "segments": statistics.segments,
        "characters": statistics.characters,
        "samples": samples,
        "sample_rate": session.sample_rate,
        "digest": statistics.digest,
        "voice": session.config.get("voice"),
        "format": session.config.get("format"),
        "server": statistics.server,
        "resumes": line.resumes,
        "restarts": statistics.restarts,
        "outage_s": round(line.outage_seconds(monotonic()), 3),
        "resent_bytes": line.resent_bytes,
        "modes": {mode: round(seconds, 3) for mode, seconds in line.mode_seconds(end).items()},
        "mode_switches": line.mode_switches,
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Raises OutputFailed."""
    _write(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def write_text(path: Path, text: str) -> None:
    """Raises OutputFailed."""
    _write(path, text.encode())


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".part")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a pipe or a device has no other name
            return
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise OutputFailed(f"cannot write {path}: {error.strerror or error}") from error


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
