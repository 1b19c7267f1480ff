"""The parts of a segment that recovers: what each is rendered from, how far it got."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final, Self

from server.audio.clip import clip_pcm, seam_length
from server.cluster.base import PoolUnavailable, SegmentStream, Urgency, WorkerLost
from server.engines.base import Capabilities, EngineError, WordTiming
from server.engines.rendering import Part, RenderedChunk, SegmentRequest
from server.scheduler.recovery import Failure, Task
from server.text.pieces import part_of, tokens_of
from server.text.speaking_time import position_after, usual_duration

FAILURES: Final = (EngineError, WorkerLost, PoolUnavailable)
UNREAD_S: Final = 0.2
"""For each character of a text that no rule could read: about what a Hanzi takes."""
CLIP_CHUNK_S: Final = 1.0


@dataclass(eq=False, slots=True)
class Rendering:
    """A task being done. `first`: the segment's sample at which its own sample 0 is; `part`: still to be told; `until`:
    where another one takes over, in a known recipe.
    """

    task: Task
    stream: SegmentStream
    engine: str
    first: int = 0
    part: Part | None = None
    until: int | None = None
    began: int = 0  # the segment's sample at which this attempt began
    began_at: float = 0.0  # on the event loop's clock
    again: bool = False  # it is the second one, which may tell words of the first one anew
    broken_off: int = 0  # the value of the sample before it, where it takes over in the middle of a sound
    plain: bool = False  # its chunks are those of the segment as they are
    words: list[WordTiming] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)  # that came of it


def failure_of(error: Exception, seconds: float, *, alone: bool) -> Failure:
    """One of `FAILURES`, as the recovery sees it. `alone`: there is no other engine that could do it instead, so that a
    pool without any engine at work is asked again.
    """
    if isinstance(error, EngineError):
        return Failure(error.kind, error.transient, seconds)
    if isinstance(error, WorkerLost):
        return Failure(error.kind, False, seconds)  # the pool has tried again already
    return Failure("worker_lost", alone, seconds)


def part_request(request: SegmentRequest, task: Task) -> SegmentRequest:
    """What the same engine is asked for: a part is a segment of its own, without context."""
    if task.whole:
        return replace(request, parts=()) if request.parts else request
    return replace(request, cut=part_of(request.cut, task.start, task.end), before="", parts=(), codes=())


def fallback_request(request: SegmentRequest, task: Task, capabilities: Capabilities) -> SegmentRequest | None:
    """What an engine of other abilities is asked for; None where it has no voice of the language."""
    language = request.cut.language
    voices = [voice for voice in capabilities.voices if language in voice.languages]
    if not voices:
        return None
    voice = next((voice for voice in voices if voice.languages[0] == language), voices[0])
    can = capabilities.parameters
    return replace(
        part_request(request, task),
        voice=voice.id,
        speed=request.speed if "speed" in can else 1.0,
        pitch=request.pitch if "pitch" in can else 1.0,
        seed=request.seed if "seed" in can else 0,
        instruct=request.instruct if "instruct" in can else "",
    )


def fits(capabilities: Capabilities) -> Callable[[str], bool]:
    """Whether a text is short enough for an engine. Where it cannot count one, it is asked, and fails if it must."""

    def short_enough(text: str) -> bool:
        try:
            return capabilities.count_tokens(text) <= capabilities.max_tokens
        except Exception:  # noqa: BLE001  # an engine's fault, whatever it is, must not end the session
            return True

    return short_enough


def placed(words: tuple[WordTiming, ...], doing: Rendering) -> tuple[WordTiming, ...]:
    """Words of whoever speaks, at their samples of the segment, without those that were told before."""
    at = doing.first
    # of lists, not of generators: docs/decisions.md, "Tuples of lists"
    if at:
        words = tuple([replace(w, first_sample=at + w.first_sample, end_sample=at + w.end_sample) for w in words])
    return tuple([word for word in words if word not in doing.words]) if doing.again else words


def reached(
    request: SegmentRequest,
    task: Task,
    words: Sequence[WordTiming],
    first_sample: int,
    sample: int,
    *,
    from_middle: bool = False,
) -> int:
    """Up to where the text of a task, whose part began at `first_sample`, is said when the segment is at `sample`; in
    the middle of a word, up to that. `words` are those told of the part, with the segment's samples; `from_middle`: the
    first ones are missing, as it was not rendered from its beginning. Without any, it is estimated.
    """
    if sample <= first_sample:
        return task.start
    if words:
        unsaid = next((word for word in words if word.end_sample > sample), None)
        if unsaid is None:
            return words[-1].end
        first = unsaid is words[0] and not from_middle
        return task.start if first and first_sample == 0 and task.whole else unsaid.start
    seconds = (sample - first_sample) / request.sample_rate * request.speed
    at = position_after(tokens_of(part_of(request.cut, task.start, task.end), request.lexicon) or (), seconds)
    return task.start if at is None else at


class ClipStream:
    """A SegmentStream of the clip that stands for a request's text, from `start_sample` on."""

    def __init__(self, request: SegmentRequest, start_sample: int) -> None:
        self.urgency = Urgency()
        self._rate, self._volume = request.sample_rate, request.volume
        tokens = tokens_of(request.cut, request.lexicon)
        unread_s = UNREAD_S * len(request.cut.text)
        usual_s = unread_s if tokens is None else usual_duration(tokens, request.cut.boundary)
        self._length = round(usual_s / request.speed * request.sample_rate)
        self._at = start_sample

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        await asyncio.sleep(0)  # others have their turn: nothing else here waits
        end = self._at + round(CLIP_CHUNK_S * self._rate)
        pcm = clip_pcm(self._at, end, self._length, self._rate, self._volume)
        if not pcm:
            raise StopAsyncIteration
        self._at += len(pcm) // 2
        return RenderedChunk(pcm)

    def cancel(self) -> None:
        """See SegmentStream."""
        self._at = self._length


def rendered_from(request: SegmentRequest, start_sample: int) -> int:
    """The sample from which a recipe must be rendered to know those from `start_sample` on: within a seam, it is the
    last one before that.
    """
    seam = seam_length(request.sample_rate)
    for part in reversed(request.parts):
        if 0 < part.first_sample <= start_sample < part.first_sample + seam:
            start_sample = part.first_sample - 1
    return start_sample


def known_recipe(request: SegmentRequest, start_sample: int) -> deque[tuple[Task, Part | None, int | None]]:
    """What `request.parts` says is to be done from a sample on: each task, its part unless it is the segment as it was
    asked for, and the sample where the next one takes over.
    """
    cut, parts = request.cut, request.parts
    steps: deque[tuple[Task, Part | None, int | None]] = deque()
    if parts and parts[0].first_sample > start_sample:
        steps.append((Task("engine", cut.start, cut.end, whole=True), None, parts[0].first_sample))
    for part, following in zip_longest(parts, parts[1:]):
        until = None if following is None else following.first_sample
        if until is None or until > start_sample:
            steps.append((Task(part.source, part.start, part.end, piece=True), part, until))
    return steps
