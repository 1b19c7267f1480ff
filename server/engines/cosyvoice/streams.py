"""The flow's states of segments that are being streamed, and how much memory they may take together.

A state holds what its segment was made of so far: hundreds of megabytes at full size. A segment that is not spoken on
for a while, because whoever listens has enough, can do without: its state is made again, piece by piece as before.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from server.engines.cosyvoice.flow.matching import FlowModel
from server.engines.cosyvoice.jobs import CosyVoiceJob
from server.engines.cosyvoice.llm.decoding import Decoder
from server.engines.cosyvoice.shelf import VoiceShelf

REST_STEPS: Final = 50  # about a second: who was at work since then is likely to be so again
PATIENCE_STEPS: Final = 250  # a segment waits for others at work no longer than that


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that an engine holds for segments and voices, besides its weights."""

    slots: int  # of the language model: keys and values of segments at work
    aside: int  # the same of segments that wait, in main memory
    streams: int  # of the flow: states of segments that are streamed
    streams_most: int
    streams_dropped: int  # states so far that had to make room; a number, not bytes
    voices: int


class StreamStates:
    """Use it from one thread at a time; the numbers may be read from any.

    Together the states take at most `max_bytes`, or what the segments of one step need, if that is more; a state may
    grow beyond it until the next step. Where there is no room, the state of the segment that was at work longest ago is
    dropped. One that was at work just now keeps it, and the newcomer waits for a while: or segments in turns would take
    it from each other and get nowhere.
    """

    def __init__(self, flow: FlowModel, shelf: VoiceShelf, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.dropped = 0  # so far
        self._flow, self._shelf = flow, shelf
        self._holders: set[CosyVoiceJob] = set()
        self._working: Collection[CosyVoiceJob] = ()
        self._step = 0

    @property
    def bytes(self) -> int:
        """What is held now, besides what voices share."""
        return sum(flow.bytes for job in list(self._holders) if (flow := job.flow) is not None)

    def memory_use(self, decoder: Decoder, voices: int) -> MemoryUse:
        """With what the language model holds, and `voices` bytes."""
        return MemoryUse(decoder.slots.bytes, decoder.aside_bytes, self.bytes, self.max_bytes, self.dropped, voices)

    def begin_step(self, jobs: Collection[CosyVoiceJob]) -> None:
        """These are at work now, but for those that wait for their text."""
        self._step += 1
        self._working = {job for job in jobs if not job.idle}
        for job in self._working:
            job.stepped = self._step
        if not self._holders <= self._working:
            self._make_room(REST_STEPS)

    def start(self, job: CosyVoiceJob) -> bool:
        """See that the job has a state. False where it has to wait: for room, or for what is kept of its voice."""
        if job.flow is not None:
            return True
        assert job.voice is not None
        prefix = self._shelf.flow_prefix(job.voice)
        if prefix is None:
            return False
        since = self._step if job.waits_since is None else job.waits_since
        if not self._make_room(0 if self._step - since >= PATIENCE_STEPS else REST_STEPS):
            job.waits_since = since
            return False
        job.flow, job.in_flow, job.waits_since = self._flow.start(prefix), 0, None
        self._holders.add(job)
        return True

    def let_go(self, job: CosyVoiceJob) -> None:
        """Its state is not needed any more."""
        self._holders.discard(job)
        job.flow = None

    def _make_room(self, rest: int) -> bool:
        """Drop states of segments that were not at work for `rest` steps. False where others stand in the way."""
        while self.bytes >= self.max_bytes:
            others = self._holders.difference(self._working)
            rested = [job for job in others if self._step - job.stepped >= rest]
            if not rested:
                return not others
            oldest = min(rested, key=lambda job: job.stepped)
            self._holders.remove(oldest)
            oldest.drop_flow()
            self.dropped += 1
        return True
