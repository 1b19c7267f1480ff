"""The measurements of a run, for `--stats`, and the file they go to, whole or not at all."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from client.cli.telling import told
from client.errors import ClientError, OutputFailed
from client.line import LineStatistics
from client.statistics import UtteranceStatistics

if TYPE_CHECKING:
    from client.cli.reading import Reading


class Totals:
    """Measurements of a run's utterances and sessions, added up. `busy_s`: from first texts to ends."""

    def __init__(self) -> None:
        self.ttfa_s: float | None = None
        self.ttfa_clause_s: float | None = None
        self.bytes = self.frames = self.segments = self.characters = self.stalls = self.restarts = 0
        self.stall_s = self.busy_s = self.outage_s = 0.0
        self.resumes = self.resent_bytes = self.mode_switches = 0
        self.modes: dict[str, float] = {}
        self.digest: str | None = None
        self.server: dict[str, Any] = {}
        self._utterances = 0

    def add(self, statistics: UtteranceStatistics) -> None:
        """An utterance is over, one way or the other."""
        if not self._utterances:
            self.ttfa_s, self.ttfa_clause_s = statistics.ttfa_s, statistics.ttfa_clause_s
        self._utterances += 1
        for name in ("bytes", "frames", "segments", "characters", "stalls", "restarts", "stall_s"):
            setattr(self, name, getattr(self, name) + getattr(statistics, name))
        self.busy_s += (statistics.finished or 0.0) - (statistics.first_text or statistics.started)
        self.digest, self.server = statistics.digest, statistics.server

    def add_line(self, line: LineStatistics, now: float) -> None:
        """A session is over."""
        self.resumes += line.resumes
        self.outage_s += line.outage_seconds(now)
        self.resent_bytes += line.resent_bytes
        self.mode_switches += line.mode_switches
        for mode, seconds in line.mode_seconds(now).items():
            self.modes[mode] = self.modes.get(mode, 0.0) + seconds


def report(reading: "Reading", wall_s: float, error: ClientError | None) -> dict[str, Any]:
    """What `--stats` writes (docs/client.md)."""
    result: dict[str, Any] = {"ok": error is None, "error": told(error) if error else None, "wall_s": round(wall_s, 3)}
    session, totals, device = reading.session, reading.totals, reading.outputs.device
    if session is None:
        return result
    audio_s = (reading.samples - reading.begun_at.samples) / session.sample_rate
    return result | {
        "ttfa_ms": _ms(totals.ttfa_s),
        "ttfa_clause_ms": _ms(totals.ttfa_clause_s),
        "audio_s": round(audio_s, 3),
        "rtf": round(totals.busy_s / audio_s, 4) if audio_s > 0 and error is None else None,
        "stalls": totals.stalls if device is None else device.stalls,
        "stall_ms": _ms(totals.stall_s),
        "bytes": totals.bytes,
        "frames": totals.frames,
        "segments": totals.segments,
        "characters": totals.characters,
        "degraded": {
            "segments": reading.degraded.segments,
            "first": [{"character": at, "reason": reason} for at, reason in reading.degraded.places],
        },
        "samples": reading.samples,
        "resumed_from": {"samples": reading.begun_at.samples, "characters": reading.begun_at.text},
        "sample_rate": session.sample_rate,
        "digest": totals.digest,
        "voice": session.config.get("voice"),
        "format": session.config.get("format"),
        "server": totals.server,
        "resumes": totals.resumes,
        "restarts": totals.restarts,
        "outage_s": round(totals.outage_s, 3),
        "resent_bytes": totals.resent_bytes,
        "modes": {mode: round(seconds, 3) for mode, seconds in totals.modes.items()},
        "mode_switches": totals.mode_switches,
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Raises OutputFailed."""
    _write(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


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
