"""The server's Opus packets in Ogg, not encoded again; from where another encoder goes on, encoded here."""

import random
from collections import deque
from typing import BinaryIO, Final

from client.decode import UtteranceDecoder
from client.errors import OutputFailed
from client.items import Audio
from client.sinks.base import CannotContinue
from client.splice import HISTORY, SplicedEncoder
from protocol.media.ogg import OggOpusWriter
from protocol.media.ogg_reading import Page, packet_samples, read_head, read_pages
from protocol.media.opus import OpusDataError, OpusUnavailableError

PACKETS_PER_PAGE: Final = 50  # files; a second at 20 ms


class OggEncoding:
    """One logical stream, whatever happens: many readers stop at a second one. Its length is exact.

    Where another encoder begins (another session says the rest, or the file is that of an earlier run), its delay
    would be heard as a gap of some ms. From there on this class decodes what comes, if it comes as Opus, and encodes
    it with an encoder of its own, which goes on in the middle of the sound (`client.splice`).
    `bitrate` in bit/s, of that encoder. `live`: a page per packet.
    """

    def __init__(self, *, live: bool, bitrate: int) -> None:
        self._packets_per_page = 1 if live else PACKETS_PER_PAGE
        self._bitrate = bitrate
        self._writer: OggOpusWriter | None = None
        self._rate = 0
        self._pre_skip = 0  # of the file
        self._kept: list[bytes] = []  # the last packet: only the end says how much of it is sound
        self._per_packet = 0
        self._packets = 0  # in the file, or kept
        self._history: deque[bytes] = deque(maxlen=HISTORY)  # the last ones
        self._encoder: SplicedEncoder | None = None
        self._decoder: UtteranceDecoder | None = None
        self._total: int | None = None  # samples, once all is given out

    @property
    def replaces_flushed(self) -> bool:
        """It stays."""
        return False

    @property
    def samples(self) -> int:
        """What is on whole pages."""
        if self._total is not None:
            return self._total
        return max(0, self._writer.samples_given - self._pre_skip) if self._writer is not None else 0

    @property
    def _coded(self) -> int:
        return self._packets * self._per_packet

    def head(self, sample_rate: int, pre_skip: int) -> bytes:
        """The two header pages."""
        self._rate, self._pre_skip = sample_rate, pre_skip
        self._writer = OggOpusWriter(sample_rate, pre_skip, random.getrandbits(32), self._packets_per_page)
        return self._writer.headers()

    def resume(self, file: BinaryIO, sample_rate: int, pre_skip: int, at_sample: int) -> tuple[int, bytes]:
        """Cuts behind the last packet that can stay; what is lost with its page is the first thing to append."""
        pages = read_pages(file)
        head = read_head(pages)
        if head is None:
            raise CannotContinue("is no Opus file that this program began")
        if head.sample_rate != sample_rate:
            raise CannotContinue(f"has {head.sample_rate} samples a second, not {sample_rate}")
        self._rate, self._pre_skip = sample_rate, head.pre_skip
        needed = at_sample + head.pre_skip  # coded samples
        recent: deque[tuple[int, Page]] = deque()  # the last pages, and the number of the first packet of each
        packets = 0
        for page in pages:
            if not page.packets:
                break
            self._per_packet = self._per_packet or packet_samples(page.packets[0], sample_rate)
            recent.append((packets, page))
            packets += len(page.packets)
            while len(recent) > 1 and recent[1][0] <= packets - len(page.packets) - HISTORY:
                recent.popleft()
            if packets * self._per_packet >= needed:
                break
        if packets * self._per_packet < needed:
            held = max(0, packets * self._per_packet - head.pre_skip)
            raise CannotContinue(f"holds {held} samples, not {at_sample}")
        return self._go_on(recent, at_sample, pre_skip)

    def _go_on(self, recent: "deque[tuple[int, Page]]", at_sample: int, pre_skip: int) -> tuple[int, bytes]:
        first = recent[0][0]
        history = [packet for _, page in recent for packet in page.packets]
        self._splice(history[: -(-(at_sample + self._pre_skip) // self._per_packet) - first], first, at_sample)
        assert self._encoder is not None
        self._decoder = UtteranceDecoder(self._rate, pre_skip)
        self._packets = keep = self._encoder.keep
        self._kept = history[max(0, keep - 1 - first) : keep - first]
        begin, page = next((begin, page) for begin, page in reversed(recent) if begin <= max(0, keep - 1))
        self._writer = OggOpusWriter(self._rate, self._pre_skip, page.serial, self._packets_per_page)
        self._writer.go_on(page.sequence, begin * self._per_packet)
        stay = history[begin - first : max(0, keep - 1 - first)]
        return page.offset, self._writer.write(stay, self._per_packet) + self._writer.flush()

    def body(self, audio: Audio) -> bytes:
        """The pages that are full."""
        assert self._writer is not None
        if self._encoder is None and audio.packets:
            self._per_packet = audio.count // len(audio.packets)
            overlap = max(0, self._coded - audio.first_sample)
            if overlap % self._per_packet == 0:
                return self._take(audio.packets[overlap // self._per_packet :])  # some may be sent again to warm up
            heard = self._coded - self._pre_skip
            self._splice(list(self._history), self._packets - len(self._history), heard)
            self._decoder = UtteranceDecoder(self._rate, self._pre_skip, heard)
        if self._encoder is None:
            return b""
        assert self._decoder is not None
        return self._take(tuple(p for pcm in self._decoder.decode(audio) for p in self._encoder.push(pcm.pcm)))

    def _take(self, packets: tuple[bytes, ...]) -> bytes:
        assert self._writer is not None
        if not packets:
            return b""
        self._packets += len(packets)
        self._history += packets
        ready, self._kept = [*self._kept, *packets[:-1]], [packets[-1]]
        return self._writer.write(ready, self._per_packet)

    def _splice(self, history: list[bytes], first: int, cut: int) -> None:
        try:
            self._encoder = SplicedEncoder(
                history,
                first,
                cut,
                sample_rate=self._rate,
                pre_skip=self._pre_skip,
                per_packet=self._per_packet,
                bitrate=self._bitrate,
            )
        except (OpusUnavailableError, OpusDataError) as error:
            raise OutputFailed(f"cannot go on with an Opus file: {error}") from error

    def flush(self) -> bytes:
        """A page of what waits for a full one."""
        return self._writer.flush() if self._writer is not None else b""

    def tail(self, samples: int | None) -> bytes:
        """The last page."""
        assert self._writer is not None
        pages = b""
        if self._encoder is None:
            total = max(0, self._coded - self._pre_skip) if samples is None else samples
        else:
            assert self._decoder is not None
            if samples is not None:
                rest = [p for pcm in self._decoder.finish(samples) for p in self._encoder.push(pcm.pcm)]
                pages += self._take(tuple(rest))
            pages += self._take(tuple(self._encoder.finish()))
            total = self._encoder.samples
        pages += self._writer.finish(self._kept, self._per_packet, total)
        self._total = total
        return pages

    def header(self) -> bytes:
        """An Ogg page says what it holds."""
        return b""


def kept(file: BinaryIO) -> tuple[int, int]:
    """The sample rate, and how many samples of the timeline whole pages hold. Raises CannotContinue."""
    pages = read_pages(file)
    head = read_head(pages)
    if head is None:
        raise CannotContinue("is no Opus file that this program began")
    granule = 0
    for page in pages:
        granule = max(granule, page.granule)
    return head.sample_rate, max(0, granule * head.sample_rate // 48_000 - head.pre_skip)
