"""Opus for mono speech: finding libopus, an encoder and a decoder whose lengths are exact to the sample.

Words: *coded samples* are what the decoder gives out, *timeline samples* are the audio itself. The codec delays by
`pre_skip` samples, so coded sample `pre_skip + i` is timeline sample `i`. Packet `k` covers coded samples
`[k * N, (k + 1) * N)` with `N = samples_per_packet`.

`opuslib` calls libopus through `ctypes`, which releases the GIL, so encoders in several threads run in parallel. One
encoder or decoder object must only ever be used by one thread at a time. PCM is s16 in host order; every platform that
we run on is little-endian.
"""

import ctypes
import ctypes.util
import importlib
import importlib.metadata
import sys
import threading
import warnings
from types import ModuleType
from typing import Final, TypeAlias

from protocol.limits import BITRATE, FRAME_MS_OPUS, SAMPLE_RATES_OPUS

Buffer: TypeAlias = bytes | bytearray | memoryview

_COMPLEXITY: Final = 5  # of 0-10; 10 takes a third more time and brings 0.1 dB of log-spectral distance
# What follows was chosen by log-spectral distance on synthetic speech at 16, 24 and 48 kHz. The application `voip`
# never won: its high-pass filter changes the lowest frequencies. With `audio` and the signal declared a voice, libopus
# uses linear prediction up to 64 kbit/s; at 24 and 32 kbit/s that is 0.7 dB nearer below 1.5 kHz (1.4 against 2.1 dB at
# 24 kHz). From 48 kbit/s on transform coding is nearer over the whole band (1.3 against 1.8 dB at 24 kHz), in a third
# of the time.
_VOICE_BELOW: Final = 40_000  # bit/s
_MAX_PACKET_BYTES: Final = 4000  # the output size that libopus's documentation recommends
_MAX_PACKET_MS: Final = 120  # RFC 6716, section 3.2.5: no packet lasts longer
_BYTES_PER_SAMPLE: Final = 2

_SONAMES: Final = {"linux": "libopus.so.0", "darwin": "libopus.0.dylib"}
_HELP: Final = (
    "Opus needs the C library libopus and none could be loaded. Install it with one of: apt-get install libopus0 "
    "(Debian, Ubuntu), dnf install opus (Fedora), apk add opus (Alpine), brew install opus (macOS), or pip install av, "
    "whose wheel carries a copy."
)


class OpusUnavailableError(RuntimeError):
    """Opus cannot be used on this machine; the text says what to install."""


class OpusDataError(ValueError):
    """A packet is not valid Opus."""


# --- loading --------------------------------------------------------------------------------------------------------

_load_lock = threading.Lock()
_loaded: ModuleType | None = None
_unavailable = ""  # why it could not be loaded


def load_opuslib() -> ModuleType:
    """The `opuslib` package, bound to the first libopus that loads. Thread-safe; only the first call does any work.

    Raises OpusUnavailableError, without another search where the first was in vain.
    """
    global _loaded, _unavailable
    with _load_lock:
        if _unavailable:
            raise OpusUnavailableError(_unavailable)
        if _loaded is None:
            try:
                _loaded = sys.modules.get("opuslib") or _import_opuslib(find_libopus())
            except OpusUnavailableError as error:
                _unavailable = str(error)
                raise
            _declare_variadics(_loaded)
        return _loaded


def find_libopus() -> str:
    """Name or path of a libopus that loads: the system's, else the one inside PyAV's wheel.

    Raises OpusUnavailableError.
    """
    failures = []
    for candidate in (_SONAMES.get(sys.platform), *_bundled_libraries(), ctypes.util.find_library("opus")):
        if candidate is None:
            continue
        try:
            ctypes.CDLL(candidate)
        except OSError as error:
            failures.append(str(error))
        else:
            return candidate
    raise OpusUnavailableError(f"{_HELP} Tried: {'; '.join(failures) or 'nothing to try'}.")


def _bundled_libraries() -> list[str]:
    """Paths of libopus inside PyAV's wheel, from its file list.

    PyAV itself is never imported: its FFmpeg may be built under the GPL. libopus is a separate BSD library.
    """
    try:
        files = importlib.metadata.files("av")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [str(file.locate()) for file in files or () if file.name.startswith(("libopus-", "libopus."))]


def _import_opuslib(library: str) -> ModuleType:
    """Import `opuslib` so that it binds to `library`.

    It looks the library up while it is imported and offers no other way to choose one. Other threads that call
    `find_library` meanwhile get what they would have got, unless they ask for opus too.
    """
    find_library = ctypes.util.find_library

    def find(name: str) -> str | None:
        return library if name == "opus" else find_library(name)

    ctypes.util.find_library = find
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # opuslib 3.0.1 compares numbers with `is`
            return importlib.import_module("opuslib")
    except ImportError as error:
        raise OpusUnavailableError("Opus needs the Python package opuslib: pip install opuslib") from error
    finally:
        ctypes.util.find_library = find_library


def _declare_variadics(opuslib: ModuleType) -> None:
    """Give opuslib's `*_ctl` functions the fixed argument types it leaves out.

    They are variadic in C. On arm64 macOS variadic arguments travel on the stack, and ctypes only knows where they
    begin when the fixed ones are declared; without this every setting there is garbage.
    """
    for module, function, pointer in (
        (opuslib.api.encoder, "libopus_ctl", "EncoderPointer"),
        (opuslib.api.decoder, "libopus_ctl", "DecoderPointer"),
    ):
        getattr(module, function).argtypes = (getattr(module, pointer), ctypes.c_int)


# --- lengths --------------------------------------------------------------------------------------------------------


def samples_per_packet(sample_rate: int, frame_ms: float) -> int:
    """Samples in one packet. Raises ValueError for a rate or a length that Opus does not have."""
    if sample_rate not in SAMPLE_RATES_OPUS:
        raise ValueError(f"Opus sample rate must be one of {SAMPLE_RATES_OPUS}, not {sample_rate}")
    if frame_ms not in FRAME_MS_OPUS:
        raise ValueError(f"Opus frame_ms must be one of {FRAME_MS_OPUS}, not {frame_ms}")
    return round(sample_rate * frame_ms / 1000)


def packet_count(samples: int, pre_skip: int, per_packet: int) -> int:
    """Packets that carry `samples` timeline samples, the codec's delay included; none for no samples."""
    return -(-(samples + pre_skip) // per_packet) if samples else 0


def timeline_sample(coded_sample: int, pre_skip: int, samples: int | None = None) -> int:
    """The timeline sample that comes out of the decoder as `coded_sample`: how far a listener is who heard up to there.

    `pre_skip` is 0 for PCM, whose samples are those of the timeline. `samples`: the timeline's length, None while it is
    unknown; then the padding of the last packet counts too.
    """
    sample = max(0, coded_sample - pre_skip)
    return sample if samples is None else min(sample, samples)


def trim(pcm: Buffer, first_coded_sample: int, pre_skip: int, samples: int | None = None) -> memoryview:
    """The part of decoded `pcm` (s16le) that belongs to the timeline, without a copy.

    `first_coded_sample` is the position of `pcm`'s first sample among the coded samples; `samples` the timeline's
    length, None while it is unknown.
    """
    view = memoryview(pcm).cast("B")
    begin = max(0, pre_skip - first_coded_sample)
    end = len(view) // _BYTES_PER_SAMPLE
    if samples is not None:
        end = min(end, pre_skip + samples - first_coded_sample)
    return view[begin * _BYTES_PER_SAMPLE : max(begin, end) * _BYTES_PER_SAMPLE]


# --- codec ----------------------------------------------------------------------------------------------------------


class OpusEncoder:
    """Encodes one mono s16le timeline; the next one takes a new encoder.

    `sample_rate` in Hz, `frame_ms` the length of a packet, `bitrate` in bit/s (variable around that mean). Raises
    ValueError for what Opus does not have, OpusUnavailableError without libopus.
    """

    def __init__(self, sample_rate: int, frame_ms: float, bitrate: int) -> None:
        self.samples_per_packet: Final = samples_per_packet(sample_rate, frame_ms)
        self.sample_rate: Final = sample_rate
        self.frame_ms: Final = frame_ms
        opuslib = load_opuslib()
        self._encode = opuslib.api.encoder.libopus_encode
        self._encoder = opuslib.Encoder(sample_rate, 1, opuslib.APPLICATION_AUDIO)
        self._signal_voice: int = opuslib.SIGNAL_VOICE
        self._signal_auto: int = opuslib.AUTO
        self._encoder.complexity = _COMPLEXITY
        self.set_bitrate(bitrate)
        self.pre_skip: Final[int] = self._encoder.lookahead
        """The codec's delay in samples at `sample_rate`: how much to drop from the start of what is decoded."""
        self._frame = (ctypes.c_int16 * self.samples_per_packet)()
        self._frame_bytes = memoryview(self._frame).cast("B")
        self._filled = 0  # bytes of `_frame` that wait for the rest of the packet
        self._packet = ctypes.create_string_buffer(_MAX_PACKET_BYTES)
        self._packet_bytes = memoryview(self._packet).cast("B")
        self._packets = 0
        self._samples = 0  # once finished
        self._finished = False

    @property
    def bitrate(self) -> int:
        """Target in bit/s."""
        return int(self._encoder.bitrate)

    @property
    def packets(self) -> int:
        """Packets given out."""
        return self._packets

    @property
    def samples(self) -> int:
        """Timeline samples taken in."""
        return self._samples if self._finished else self._coded_samples

    @property
    def _coded_samples(self) -> int:
        return self._packets * self.samples_per_packet + self._filled // _BYTES_PER_SAMPLE

    def set_bitrate(self, bitrate: int) -> None:
        """Change the target from the next packet on. Raises ValueError outside `limits.BITRATE`."""
        lowest, highest = BITRATE
        if not lowest <= bitrate <= highest:
            raise ValueError(f"Opus bitrate must be {lowest} to {highest} bit/s, not {bitrate}")
        self._encoder.bitrate = bitrate
        self._encoder.signal = self._signal_voice if bitrate < _VOICE_BELOW else self._signal_auto

    def push(self, pcm: Buffer) -> list[bytes]:
        """Take s16le samples, any number; return the packets that are now full.

        Raises ValueError for half a sample, or after `finish`.
        """
        if self._finished:
            raise ValueError("the encoder is finished: make another one")
        view = memoryview(pcm).cast("B")
        if len(view) % _BYTES_PER_SAMPLE:
            raise ValueError(f"{len(view)} bytes are not a whole number of 16-bit samples")
        packets = []
        taken = 0
        size = len(self._frame_bytes)
        while taken < len(view):
            part = view[taken : taken + size - self._filled]
            self._frame_bytes[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            taken += len(part)
            if self._filled == size:
                packets.append(self._encode_frame())
        return packets

    def finish(self) -> list[bytes]:
        """End the timeline: the last packets, padded with silence until all samples are through the codec's delay.

        Their number makes `packets == packet_count(samples, pre_skip, samples_per_packet)`: at least one, unless the
        timeline is empty.
        """
        if self._finished:
            raise ValueError("the encoder is finished: make another one")
        self._samples = self._coded_samples
        self._finished = True
        total = packet_count(self._samples, self.pre_skip, self.samples_per_packet)
        packets = []
        while self._packets < total:
            self._frame_bytes[self._filled :] = bytes(len(self._frame_bytes) - self._filled)
            packets.append(self._encode_frame())
        return packets

    def _encode_frame(self) -> bytes:
        length = self._encode(
            self._encoder.encoder_state, self._frame, self.samples_per_packet, self._packet, _MAX_PACKET_BYTES
        )
        if length < 0:
            raise RuntimeError(f"libopus could not encode: error {length}")
        self._filled = 0
        self._packets += 1
        return bytes(self._packet_bytes[:length])


class OpusDecoder:
    """Decodes mono packets to s16le samples at `sample_rate` Hz, which need not be the encoder's."""

    def __init__(self, sample_rate: int) -> None:
        if sample_rate not in SAMPLE_RATES_OPUS:
            raise ValueError(f"Opus sample rate must be one of {SAMPLE_RATES_OPUS}, not {sample_rate}")
        self.sample_rate: Final = sample_rate
        opuslib = load_opuslib()
        self._decode = opuslib.api.decoder.libopus_decode
        self._decoder = opuslib.Decoder(sample_rate, 1)
        self._capacity = sample_rate * _MAX_PACKET_MS // 1000
        self._pcm = (ctypes.c_int16 * self._capacity)()
        self._pcm_bytes = memoryview(self._pcm).cast("B")

    def decode(self, packet: Buffer) -> bytes:
        """A packet's coded samples, the codec's delay still in them (see `trim`). Raises OpusDataError."""
        data = bytes(packet)
        if not data:
            raise OpusDataError("an Opus packet cannot be empty")  # libopus would take it for a lost packet
        samples = self._decode(self._decoder.decoder_state, data, len(data), self._pcm, self._capacity, 0)
        if samples < 0:
            raise OpusDataError(f"not a valid Opus packet ({len(data)} bytes, libopus error {samples})")
        return bytes(self._pcm_bytes[: samples * _BYTES_PER_SAMPLE])

    def reset(self) -> None:
        """Forget everything decoded so far, as for a new timeline."""
        self._decoder.reset_state()
