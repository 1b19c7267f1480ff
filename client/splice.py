"""One Opus encoder that goes on where another one broke off: the packets follow each other as if of one encoder. Pure,
apart from loading libopus.

An encoder delays what it is given by `pre_skip` samples. Packets of two encoders in a row would therefore hold a few
milliseconds of nothing between them. Here the second encoder is first given what the first one's packets sound like,
so that at the cut both are in the middle of the same sound; its packets up to the cut are dropped.
"""

from collections.abc import Sequence
from typing import Final

from protocol.media.opus import OpusDecoder, OpusEncoder

WARM_PACKETS: Final = 15  # given to the new encoder before the first packet that counts
SETTLE_PACKETS: Final = 10  # given to the decoder before those: it begins in the middle, too
HISTORY: Final = WARM_PACKETS + SETTLE_PACKETS + 2  # packets before a cut that are needed at most


class SplicedEncoder:
    """`history`: the packets from number `first` on, of `per_packet` samples, up to the one that holds the timeline's
    sample `cut`; packets from `keep` on are to be replaced by those of `push` and `finish`.

    Raises OpusUnavailableError without libopus, OpusDataError for broken packets, ValueError for a length Opus has not.
    """

    def __init__(
        self,
        history: Sequence[bytes],
        first: int,
        cut: int,
        *,
        sample_rate: int,
        pre_skip: int,
        per_packet: int,
        bitrate: int,
    ) -> None:
        self.keep = (cut + pre_skip) // per_packet
        self._encoder = OpusEncoder(sample_rate, per_packet * 1_000 / sample_rate, bitrate)
        self.samples = cut  # of the timeline, given so far
        begin = max(first, self.keep - WARM_PACKETS)
        self._drop = self.keep - begin
        decoder = OpusDecoder(sample_rate)
        heard = b"".join([decoder.decode(packet) for packet in history])  # begins at coded sample first * per_packet
        # The new encoder may delay more, or less, than the first one did (another libopus): what it gives as packet
        # `begin` must decode to that place of the timeline.
        start = begin * per_packet + self._encoder.pre_skip - first * per_packet
        end = cut + pre_skip - first * per_packet
        self._skip = max(0, start - end)  # samples after the cut that fall into packets before `keep`
        self._drop -= len(self._encoder.push(heard[2 * start : 2 * end]))

    def push(self, pcm: bytes) -> list[bytes]:
        """The packets that are full, from number `keep` on."""
        self.samples += len(pcm) // 2
        skipped = min(self._skip, len(pcm) // 2)
        self._skip -= skipped
        return self._wanted(self._encoder.push(pcm[2 * skipped :]))

    def finish(self) -> list[bytes]:
        """The last packets."""
        return self._wanted(self._encoder.finish())

    def _wanted(self, packets: list[bytes]) -> list[bytes]:
        dropped = min(self._drop, len(packets))
        self._drop -= dropped
        return packets[dropped:]
