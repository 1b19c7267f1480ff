"""Opus packets of one utterance to PCM on its timeline, exact to the sample. Pure, apart from loading libopus."""

import dataclasses
from collections.abc import Iterator

from client.errors import ServerMisbehaved
from client.items import Audio
from protocol.media.opus import OpusDataError, OpusDecoder, trim


class UtteranceDecoder:
    """Give it the packets in order, then `finish` with the length from `done`.

    The last packet is padded, and how far only `done` tells: audio marked `last` is held back until then.
    """

    def __init__(self, sample_rate: int, pre_skip: int) -> None:
        self._decoder = OpusDecoder(sample_rate)
        self._pre_skip = pre_skip
        self._next = 0  # coded samples given out
        self._held: list[tuple[int, bytes]] = []
        self._template: Audio | None = None

    def decode(self, audio: Audio) -> Iterator[Audio]:
        """The PCM of these packets, as far as it can be given out. Raises ServerMisbehaved."""
        if not audio.packets:
            return
        if audio.first_sample != self._next:
            self._decoder.reset()  # the server began a new encoder; what overlaps only warms the decoder up
        try:
            pcm = b"".join([self._decoder.decode(packet) for packet in audio.packets])
        except OpusDataError as error:
            raise ServerMisbehaved(f"the server sent broken Opus: {error}") from error
        if len(pcm) != 2 * audio.count:
            raise ServerMisbehaved(f"{audio.count} coded samples were announced, {len(pcm) // 2} decoded")
        first = max(audio.first_sample, self._next)
        pcm = pcm[2 * (first - audio.first_sample) :]
        self._next = audio.end_sample
        self._template = audio
        if audio.last:
            self._held.append((first, pcm))
        else:
            yield from self._trimmed(audio, first, pcm, None)

    def finish(self, samples: int) -> Iterator[Audio]:
        """What was held back, cut where the timeline ends."""
        for first, pcm in self._held:
            assert self._template is not None
            yield from self._trimmed(self._template, first, pcm, samples)
        self._held.clear()

    def _trimmed(self, audio: Audio, first: int, pcm: bytes, samples: int | None) -> Iterator[Audio]:
        kept = bytes(trim(pcm, first, self._pre_skip, samples))
        if kept:
            at = max(0, first - self._pre_skip)
            yield dataclasses.replace(audio, first_sample=at, count=len(kept) // 2, pcm=kept, packets=())
