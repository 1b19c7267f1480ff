"""The contract between the server and a voice engine.

An engine renders one *segment* (a clause or a sentence) into samples, in bounded steps that may serve several jobs at
once. It runs off the event loop, knows nothing about sessions or sockets, and never guesses the future: everything it
may use arrives with the segment. See docs/engines.md for how to add one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from server.cache.keys import BlockKey
from server.text.tokens import Boundary, Language, Token

Samples: TypeAlias = npt.NDArray[np.float32]
"""Mono audio, shape `[n]`, at the engine's own rate. Full scale is [-1, 1]; louder peaks are bent smoothly by the
server, so an engine needs no limiter of its own. A segment with samples beyond 1000, which cannot be sound, fails."""

RenderMode = Literal["stream", "block"]


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice a user can ask for by `id`."""

    id: str
    name: str
    languages: tuple[Language, ...]
    description: str
    license: str
    notice: str = ""  # what a user must know before using it, e.g. "non-commercial use only"
    lacks: tuple[str, ...] = ()  # of `Capabilities.parameters`: those that this voice does not follow


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; fixed for its lifetime.

    `equality` says how a segment's streamed and block renderings compare: `exact` (same samples), `lsb` (they differ
    by at most one 16-bit step) or `none`. `fingerprint` names everything that may change samples: model hash, library
    versions, CPU features.
    """

    name: str
    languages: tuple[Language, ...]
    sample_rate: int
    voices: tuple[Voice, ...]
    max_tokens: int
    count_tokens: Callable[[str], int]
    fingerprint: str
    parameters: frozenset[str] = frozenset()  # of "speed", "pitch", "instruct", "seed"
    timings: bool = False
    cloning: bool = False
    batch_max: int = 1
    equality: Literal["exact", "lsb", "none"] = "none"
    context_tokens: int = 0  # of the text before a segment that help it; 0: the engine uses none
    device_memory: int = field(default=0, compare=False)  # bytes of the accelerator it runs on; 0: it runs on the CPU
    lanes: int = 0  # steps that may run side by side; 0: as many as there are engine threads
    continuous: bool = False  # segments of any length share a step, and join and leave at any: nothing is padded
    markup: frozenset[str] = frozenset()  # marks in a text that it reads besides words, such as "[laughter]"
    voice_kind: str = ""  # of learnt voices; those of another kind are not offered; "": by the engine's name

    def voice(self, voice_id: str) -> Voice | None:
        """The voice with this id, or None."""
        return next((v for v in self.voices if v.id == voice_id), None)


@dataclass(frozen=True, slots=True)
class Segment:
    """One engine job's text: what to say, in which voice, and what ends it.

    `before`: what was said just before in the same sentence, at most `Capabilities.context_tokens` of it; empty where a
    sentence begins. It is context alone: it helps to speak the segment as its continuation, and is never spoken.
    `codes`: the first of the speech codes (`Chunk.codes`) that it was rendered of before, all of them or fewer. An
    engine that samples takes them instead of sampling anew, and goes on from there; any other one ignores them.
    """

    id: int
    tokens: tuple[Token, ...]
    boundary: Boundary
    voice: str
    speed: float = 1.0  # 2.0 = twice as fast
    pitch: float = 1.0  # factor on the fundamental frequency
    instruct: str = ""
    before: tuple[Token, ...] = ()
    codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RenderPlan:
    """How a segment is rendered; fixed when its synthesis starts and used again whenever it is rendered again.

    `chunk_ms` gives the length of the first, second, ... chunk; the last entry repeats. Empty: the engine's default.
    """

    mode: RenderMode = "stream"
    chunk_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WordTiming:
    """When a word sounds: samples at the engine's rate, counted from the segment's first sample."""

    text: str
    start: int  # code points of the source text
    end: int
    first_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next samples of a job, with the timings that became known. It may be empty: more is to come. `codes`: the
    speech codes that were sampled since the last chunk, for `Segment.codes` of a later rendering: never those that the
    segment came with. They may be ahead of the samples, not behind them. Each from 0 to 65,535.
    """

    job: "Job"
    samples: Samples
    words: tuple[WordTiming, ...] = ()
    codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """A job is complete; nothing follows."""

    job: "Job"


@dataclass(frozen=True, slots=True)
class SegmentFailed:
    """One job of a batch failed; the others go on. `transient` says whether trying again may help."""

    job: "Job"
    error: Exception
    transient: bool = False


StepEvent: TypeAlias = Chunk | SegmentEnd | SegmentFailed


@dataclass(eq=False, slots=True)
class Job:
    """An engine's handle on one segment being rendered. Engines subclass it to carry their state."""

    segment: Segment
    plan: RenderPlan = field(default_factory=RenderPlan)


FailureKind = Literal["exception", "out_of_memory", "time_out", "not_finite", "silent", "repeated", "worker_lost"]
"""Why a segment could not be rendered: the engine raised, had no memory left, took too long, made numbers that are no
sound, made silence of words, said the same over and over, or died."""
FAILURE_KINDS: Final[tuple[FailureKind, ...]] = get_args(FailureKind)


class EngineError(Exception):
    """An engine could not render a segment. `transient` says whether trying the same again may help."""

    def __init__(self, message: str, *, transient: bool = False, kind: FailureKind = "exception") -> None:
        super().__init__(message)
        self.transient = transient
        self.kind: FailureKind = kind
        self.trace = ""  # where it came from, if that was another process


class Engine(Protocol):
    """See the module text. `step` may be called from several threads, but never twice at once for the same job."""

    @property
    def capabilities(self) -> Capabilities: ...

    def warm_up(self) -> None:
        """Do everything slow once, so that the first user waits for none of it."""

    def prepare(self, segment: Segment, plan: RenderPlan, seed: int = 0, start_sample: int = 0) -> Job:
        """Take a segment. Cheap: the work happens in `step`. Samples before `start_sample` (engine rate) are not
        emitted, those from there on are the same as without it. Words that ended before it are left out, where they
        are known ahead; times count from the segment's first sample as ever.
        """

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        """One bounded piece of work for a batch of at most `batch_max` jobs. Each job yields at least one event."""

    def cancel(self, job: Job) -> None:
        """Forget a job, also one whose `step` raised. Called on an engine thread, never during the job's `step`;
        harmless when the job has ended.
        """

    def close(self) -> None:
        """Free everything."""


class ContextCache(Protocol):
    """Keeps what an engine computed for a block, for whoever needs the same again: the block after it, another session,
    or the same one after a fault. Bounded; safe to use from several engine threads.
    """

    def get(self, key: BlockKey) -> object | None:
        """What was kept, None where nothing is (any more)."""

    def put(self, key: BlockKey, value: object, size: int) -> None:
        """Keep `value`, which takes `size` bytes and must not be changed any more."""


@runtime_checkable
class UsesContextCache(Protocol):
    """An engine that can make use of a context cache. Results must not depend on whether anything is found there."""

    def use_context_cache(self, cache: ContextCache) -> None:
        """Called once, before the engine speaks."""


@runtime_checkable
class TakesLateText(Protocol):
    """An engine that can begin with a segment before all of its text is there. The samples depend on the text alone,
    not on when it came. The server does not use this, since its segments are whole: it is for programs that use an
    engine directly.
    """

    def prepare_late(self, segment: Segment, plan: RenderPlan, seed: int = 0) -> Job:
        """`prepare` for a segment whose tokens may be few or none so far. Its boundary counts at the end."""

    def add_text(self, job: Job, tokens: Sequence[Token]) -> None:
        """More of it. Never during the job's `step`."""

    def end_text(self, job: Job) -> None:
        """That was all. Until then a job with nothing to do yields empty chunks, and holds nothing that others need."""


@runtime_checkable
class ClonesVoices(Protocol):
    """An engine that can learn a voice from a recording (`Capabilities.cloning`). What it learns is kept by the server,
    as bytes that the engine alone understands: see `server/voices/`.
    """

    def make_voice(self, recording: bytes, text: str) -> bytes:
        """What the engine needs to speak like the recording, in which `text` is said (empty: not told). `recording`: a
        whole sound file as it was sent in, from whoever may use the server: trust nothing in it. Slow; called on a
        thread of its own, one at a time, while others do steps. Raises ValueError, one line for its sender that says
        what is wrong and what is allowed; it begins with "text" where the text is at fault.
        """

    def use_voices(self, read: Callable[[str], bytes | None]) -> None:
        """Called once, before the engine speaks. `read(id)` gives the bytes of the voice that is called so now, None
        where there is none (any more); from any thread. An id never stands for another voice later.
        """

    def forget_voice(self, voice: str) -> None:
        """A voice was deleted: let go of whatever is kept of it, but for jobs at work. Quick; from any thread, also
        for ids that the engine never heard of.
        """


EngineFactory: TypeAlias = Callable[[Mapping[str, Any]], Engine]
"""What an entry point of the group `cosystream.engines` names: options in, engine out."""
