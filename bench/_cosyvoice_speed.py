"""How fast sound comes: this engine, and what it is compared with."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch

from bench._cosyvoice_model import TEXT, Speaker
from server.engines.base import Chunk, Job, SegmentFailed
from server.engines.cosyvoice.flow.matching import FlowPass
from server.engines.cosyvoice.jobs import CosyVoiceJob
from server.engines.cosyvoice.llm.jobs import CodeJob, CodeLimits, Manner

RATE: Final = 24_000
_CHUNKS: Final = (25, 50, 100)  # codes, as upstream's driver cuts them; the last one repeats
_LOOKAHEAD: Final = 3


@dataclass(frozen=True, slots=True)
class Spoken:
    """One utterance: when each chunk was there, seconds since it was asked for, and how many samples it had."""

    times: list[float]
    lengths: list[int]

    @property
    def first_s(self) -> float:
        """Until the first samples."""
        return self.times[0]

    @property
    def audio_s(self) -> float:
        """Seconds of sound."""
        return sum(self.lengths) / RATE

    @property
    def costs(self) -> list[float]:
        """Seconds from each chunk to the next."""
        return [after - before for before, after in pairwise([0.0, *self.times])]


def speak(
    speaker: Speaker, sessions: int, codes: int, seed: int = 0, chunk_ms: tuple[int, ...] = (), apart_s: float = 0.0
) -> list[Spoken]:
    """Utterances that are asked for all at once, or `apart_s` after each other. Those without sound are served first,
    the oldest before the others; then those whose listener would run dry first: as the server's scheduler does it.
    """
    spoken: dict[Job, Spoken] = {}
    asked: dict[Job, float] = {}
    live: list[CosyVoiceJob] = []
    start = time.perf_counter()
    while live or len(spoken) < sessions:
        while len(spoken) < sessions and time.perf_counter() >= (due := start + apart_s * len(spoken)):
            job = speaker.job(codes, seed + len(spoken), chunk_ms=chunk_ms)
            spoken[job], asked[job] = Spoken([], []), due
            live.append(job)
        live.sort(key=lambda job: (bool(spoken[job].times), _dry_at(asked[job], spoken[job])))
        for event in speaker.engine.step(live[: speaker.engine.capabilities.batch_max]):
            if isinstance(event, SegmentFailed):
                raise event.error
            if isinstance(event, Chunk) and len(event.samples):
                spoken[event.job].times.append(time.perf_counter() - asked[event.job])
                spoken[event.job].lengths.append(len(event.samples))
        live = [job for job in live if not job.over]
    return list(spoken.values())


def _dry_at(asked: float, spoken: Spoken) -> float:
    """When its listener has heard everything; when it was asked for, while there is nothing to hear."""
    return asked + spoken.times[0] + spoken.audio_s if spoken.times else asked


def speak_uncached(speaker: Speaker, codes: int, seed: int = 0, before_s: float = 0.0) -> Spoken:
    """Our own modules without what the engine adds: the language model for this one alone, and every chunk solved again
    from the prompt's first code on, in the chunks of upstream's driver. `before_s`: how long it stood in line.
    """
    model, decoder, prompt = speaker.loaded.model, speaker.loaded.decoder, speaker.prompt
    begun = time.perf_counter() - before_s
    work = CodeJob(
        speaker.config.llm, speaker.text_ids(TEXT), prompt_text=prompt.text, prompt_codes=prompt.codes, seed=seed,
        limits=CodeLimits(least_per_token=codes, most_per_token=codes, most=codes), manner=Manner(watch=False),
    )  # fmt: skip
    vocoder = model.vocoder.start(seed)
    spoken = Spoken([], [])
    cut, number = 0, 0
    while cut < codes:
        end = min(codes, cut + _CHUNKS[min(number, len(_CHUNKS) - 1)])
        last = end + _LOOKAHEAD > codes
        end = codes if last else end
        while not work.done and len(work.codes) < end + _LOOKAHEAD:
            decoder.advance([work])
        given = torch.tensor(work.codes if last else work.codes[: end + _LOOKAHEAD], dtype=torch.int64)
        solving: FlowPass = model.flow.whole(given, speaker.flow_prompt, streaming=True, final=last)
        samples = model.vocoder.push(vocoder, solving.solve()[2 * cut :], last)
        spoken.times.append(time.perf_counter() - begun)
        spoken.lengths.append(len(samples))
        cut, number = end, number + 1
    return spoken


def rate(spoken: Sequence[Spoken]) -> float:
    """Seconds of audio a second, of utterances that were asked for at once."""
    return sum(each.audio_s for each in spoken) / max(each.times[-1] for each in spoken)
