"""What a gateway and a worker process say to each other, as plain values. `wire.py` turns them into bytes and back.

A gateway asks for one chunk at a time (`Next`), and only once the one before is there. That is all the flow control
there is: neither side ever has more than one chunk of a stream on its way. Streams are numbered by the gateway, for its
connection alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from server.cluster.base import Capacity, StepReport
from server.engines.base import FailureKind
from server.engines.rendering import RenderedChunk, SegmentRequest

WIRE_VERSION: Final = 3
"""Changes with every change of these messages: a worker that was restarted may come from a newer installation."""

ErrorKind = Literal["engine", "unavailable", "lost", "recording"]
LeavingReason = Literal["stopping", "hung"]


@dataclass(frozen=True, slots=True)
class Synthesize:
    """A new stream: one segment, without its samples before `start_sample`."""

    stream: int
    request: SegmentRequest
    start_sample: int = 0
    principal: str = ""


@dataclass(frozen=True, slots=True)
class Next:
    """The stream's next chunk is wanted. `slack_s`: when its listener runs dry, in seconds from now (inf: nobody
    listens). `first`: nothing of the utterance is heard yet.
    """

    stream: int
    slack_s: float
    first: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop working on a stream; nothing more is said about it."""

    stream: int


@dataclass(frozen=True, slots=True)
class Learn:
    """Make a voice of a recording. `stream`: a number as streams have; the answer is `Learnt` or `Failed`."""

    stream: int
    recording: bytes
    text: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Is anybody there?"""


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's first message: it is warm and takes streams. `capabilities` as `describe` makes them."""

    pid: int
    capabilities: Mapping[str, Any]
    version: int = WIRE_VERSION


@dataclass(frozen=True, slots=True)
class Audio:
    """The chunk that was asked for."""

    stream: int
    chunk: RenderedChunk


@dataclass(frozen=True, slots=True)
class End:
    """The stream is complete, in place of a chunk."""

    stream: int


@dataclass(frozen=True, slots=True)
class Learnt:
    """The voice that was asked for."""

    stream: int
    voice: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream ended with an error, in place of a chunk. `failure` and `trace`: kind and origin of an EngineError.
    Of the kind `recording` is what is wrong with what a voice was to be learnt from.
    """

    stream: int
    kind: ErrorKind
    message: str
    transient: bool = False
    retry_after_s: float = 0.0
    failure: FailureKind = "exception"
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """How the worker is doing. `streams_elsewhere`: open streams of other gateways."""

    capacity: Capacity
    streams_elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step of the engine; told to one gateway only, so that their figures add up."""

    report: StepReport


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping. `steps`: of the engine, since the worker began."""

    steps: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker ends: it takes no new stream. Chunks already asked for still come, unless it hangs because of a step
    with the streams `culprits`.
    """

    reason: LeavingReason
    culprits: tuple[int, ...] = ()


FromGateway: TypeAlias = Synthesize | Next | Cancel | Learn | Ping
FromWorker: TypeAlias = Hello | Audio | End | Learnt | Failed | Load | Stepped | Pong | Leaving
Message: TypeAlias = FromGateway | FromWorker
