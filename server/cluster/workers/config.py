"""What a worker process must know, as its parent writes it on the worker's standard input: one line of JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One engine in a process of its own, and how its logs look. `threads`: of the one worker."""

    engine: str
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    step_timeout_s: float = 5.0
    context_cache_blocks: int = 0
    context_cache_mb: int = 64
    voices: str = ""  # the folder of learnt voices; empty: there is none
    log_format: str = "auto"
    log_level: str = "info"

    def line(self, *, number: int, listener: int) -> bytes:
        """For worker `number`, which inherits the listening socket `listener`. Raises ValueError, one line, for an
        engine option that only this process can use.
        """
        try:
            told = {**asdict(self), "engine_options": dict(self.engine_options)}
            return json.dumps({**told, "number": number, "listener": listener}).encode() + b"\n"
        except TypeError as error:
            raise ValueError(f"an engine option cannot be given to a worker process: {error}") from error


@dataclass(frozen=True, slots=True)
class Assignment:
    """A `WorkerConfig` and the one worker's part."""

    config: WorkerConfig
    number: int
    listener: int

    @classmethod
    def parse(cls, line: bytes) -> "Assignment":
        """What `WorkerConfig.line` wrote. Raises ValueError."""
        told = json.loads(line)
        number, listener = told.pop("number"), told.pop("listener")
        return cls(WorkerConfig(**told), number, listener)
