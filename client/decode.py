"""Audio of one utterance to PCM on its timeline, exact to the sample. Pure, apart from loading libopus."""

import dataclasses
from collections.abc import Iterator

from client.errors import ServerMisbehaved
from client.items import Audio
from protocol.media.opus import OpusDataError, OpusDecoder


class UtteranceDecoder:
    """Give it the audio in order, then `finish` with the length from `done`. PCM passes through; Opus may follow it.

    The last packet is padded, and how far only `done` tells: audio marked `last` is held back until then. `at_sample`:
    of the timeline, where the first audio begins that is wanted.
    """

    def __init__(self, sample_rate: int, pre_skip: int, at_sample: int = 0) -> None:
        self._rate = sample_rate
        self._pre_skip = pre_skip
        self._decoder: OpusDecoder | None = None  # made for the first packet
        self._coded = 0  # where the next packet should begin
        self._given = at_sample  # timeline samples given out, or held
        self._held: list[Audio] = []

    def decode(self, audio: Audio) -> Iterator[Audio]:
        """The PCM, as far as it can be given out. Raises ServerMisbehaved, and OpusUnavailableError without libopus."""
        if not audio.packets:
            self._given = audio.end_sample
            if audio.count:
                yield audio
            return
        decoded = self._decoded(audio)
        first = audio.first_sample - self._pre_skip
        skip = self._given - first  # the codec's delay, or what only warms a new decoder up
        self._given = max(self._given, audio.end_sample - self._pre_skip)
        if skip >= audio.count:
            return
        pcm = dataclasses.replace(
            audio, first_sample=first + skip, count=audio.count - skip, pcm=decoded[2 * skip :], packets=(), reset=False
        )
        if audio.last:
            self._held.append(pcm)
        else:
            yield pcm

    def finish(self, samples: int) -> Iterator[Audio]:
        """What was held back, cut where the timeline ends."""
        for audio in self._held:
            count = min(audio.count, samples - audio.first_sample)
            if count > 0:
                yield dataclasses.replace(audio, count=count, pcm=audio.pcm[: 2 * count])
        self._held.clear()

    def _decoded(self, audio: Audio) -> bytes:
        if self._decoder is None:
            self._decoder = OpusDecoder(self._rate)
        elif audio.reset or audio.first_sample != self._coded:
            self._decoder.reset()  # a new encoder began
        self._coded = audio.end_sample
        try:
            pcm = b"".join([self._decoder.decode(packet) for packet in audio.packets])
        except OpusDataError as error:
            raise ServerMisbehaved(f"the server sent broken Opus: {error}") from error
        if len(pcm) != 2 * audio.count:
            raise ServerMisbehaved(f"{audio.count} coded samples were announced, {len(pcm) // 2} decoded")
        return pcm
