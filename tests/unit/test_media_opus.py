"""Opus: where libopus comes from, exact lengths, alignment, every rate and packet length."""

import importlib.metadata
import itertools
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.limits import FRAME_MS_OPUS, SAMPLE_RATES_OPUS
from protocol.media import opus

REPOSITORY = Path(__file__).parents[2]


def voice_like(sample_rate: int, samples: int) -> npt.NDArray[np.int16]:
    """Harmonics of a gliding pitch up to 3 kHz, pulsing, over a little noise: aperiodic enough to align by."""
    time = np.arange(samples) / sample_rate
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 2 * time)) / sample_rate
    sound = sum(np.sin(k * phase) / k for k in range(1, 21)) * (0.55 + 0.45 * np.sin(2 * np.pi * 4 * time))
    sound += 0.02 * np.random.default_rng(7).standard_normal(samples)
    return np.round(sound / 3 * 16000).astype("<i2")


def encode(encoder: opus.OpusEncoder, pcm: bytes) -> list[bytes]:
    return encoder.push(pcm) + encoder.finish()


def decode(packets: list[bytes], sample_rate: int, pre_skip: int, samples: int) -> npt.NDArray[np.int16]:
    decoder = opus.OpusDecoder(sample_rate)
    pcm = b"".join(decoder.decode(packet) for packet in packets)
    return np.frombuffer(opus.trim(pcm, 0, pre_skip, samples), "<i2")


def lag_of(decoded: npt.NDArray[np.int16], original: npt.NDArray[np.int16]) -> int:
    """Where the cross-correlation peaks: samples by which `decoded` comes late."""
    size = 2 * len(original)
    spectrum = np.fft.rfft(decoded, size) * np.conj(np.fft.rfft(original, size))
    peak = int(np.argmax(np.fft.irfft(spectrum, size)))
    return peak - size if peak > size // 2 else peak


@pytest.mark.parametrize("frame_ms", FRAME_MS_OPUS)
@pytest.mark.parametrize("sample_rate", SAMPLE_RATES_OPUS)
def test_every_format_comes_back_in_place_and_whole(sample_rate: int, frame_ms: float) -> None:
    encoder = opus.OpusEncoder(sample_rate, frame_ms, 64_000)
    original = voice_like(sample_rate, sample_rate // 2 + 17)
    packets = encode(encoder, original.tobytes())
    assert encoder.samples_per_packet == sample_rate * frame_ms / 1000
    assert encoder.pre_skip == sample_rate * 65 // 10_000  # 6.5 ms at every rate
    assert len(packets) == encoder.packets
    assert len(packets) == opus.packet_count(len(original), encoder.pre_skip, encoder.samples_per_packet)
    decoded = decode(packets, sample_rate, encoder.pre_skip, len(original))
    assert len(decoded) == len(original)
    assert lag_of(decoded, original) == 0
    assert np.corrcoef(decoded, original)[0, 1] > 0.99


@pytest.mark.parametrize("bitrate", [16_000, 24_000, 32_000, 128_000])
@pytest.mark.parametrize("sample_rate", SAMPLE_RATES_OPUS)
def test_every_coding_mode_is_aligned(sample_rate: int, bitrate: int) -> None:
    """Low bitrates use the linear-prediction coder, which keeps its place only to a fraction of a millisecond."""
    encoder = opus.OpusEncoder(sample_rate, 20, bitrate)
    original = voice_like(sample_rate, sample_rate)
    packets = encode(encoder, original.tobytes())
    assert abs(lag_of(decode(packets, sample_rate, encoder.pre_skip, len(original)), original)) <= sample_rate / 12_000
    assert 0.6 * bitrate < sum(map(len, packets)) * 8 < 1.2 * bitrate


@pytest.mark.parametrize("sample_rate", SAMPLE_RATES_OPUS)
@pytest.mark.parametrize("beyond", ["0", "1", "N-1", "N", "N+1", "N-skip", "N-skip+1", "3N"])
def test_short_timelines_have_exact_lengths(sample_rate: int, beyond: str) -> None:
    encoder = opus.OpusEncoder(sample_rate, 20, 32_000)
    size, skip = encoder.samples_per_packet, encoder.pre_skip
    length, expected = {
        "0": (0, 0),
        "1": (1, 1),
        "N-1": (size - 1, 2),
        "N": (size, 2),
        "N+1": (size + 1, 2),
        "N-skip": (size - skip, 1),
        "N-skip+1": (size - skip + 1, 2),
        "3N": (3 * size, 4),
    }[beyond]
    packets = encode(encoder, bytes(2 * length))
    assert len(packets) == expected
    assert encoder.samples == length
    assert len(decode(packets, sample_rate, skip, length)) == length


def test_the_end_is_not_cut_off() -> None:
    """A burst in the very last samples comes out: the codec's delay is flushed."""
    encoder = opus.OpusEncoder(24_000, 20, 64_000)
    original = np.zeros(960 * 3, "<i2")
    original[-100:] = (8000 * np.sin(np.arange(100) / 3)).astype("<i2")
    decoded = decode(encode(encoder, original.tobytes()), 24_000, encoder.pre_skip, len(original))
    assert np.corrcoef(decoded[-100:], original[-100:])[0, 1] > 0.9


@given(cuts=st.lists(st.integers(0, 4000), max_size=12))
@settings(max_examples=30, deadline=None)
def test_packets_do_not_depend_on_how_samples_arrive(cuts: list[int]) -> None:
    pcm = voice_like(24_000, 4000).tobytes()
    whole = encode(opus.OpusEncoder(24_000, 20, 32_000), pcm)
    encoder = opus.OpusEncoder(24_000, 20, 32_000)
    edges = [0, *sorted(cuts), 4000]
    parts: list[bytes] = []
    for begin, end in itertools.pairwise(edges):
        parts += encoder.push(memoryview(pcm)[2 * begin : 2 * end])
        assert encoder.samples == end
    assert parts + encoder.finish() == whole


def test_a_decoder_that_was_reset_is_as_good_as_new() -> None:
    decoder = opus.OpusDecoder(24_000)
    first = encode(opus.OpusEncoder(24_000, 20, 24_000), voice_like(24_000, 12_345).tobytes())
    sound = [decoder.decode(packet) for packet in first]
    decoder.reset()
    assert [decoder.decode(packet) for packet in first] == sound


def test_bitrate_changes_from_the_next_packet_on() -> None:
    pcm = voice_like(24_000, 48_000).tobytes()
    steady = encode(opus.OpusEncoder(24_000, 20, 96_000), pcm)
    encoder = opus.OpusEncoder(24_000, 20, 96_000)
    before = encoder.push(pcm[: 480 * 2 * 40 + 100])
    encoder.set_bitrate(16_000)
    assert encoder.bitrate == 16_000
    after = encoder.push(pcm[480 * 2 * 40 + 100 :])
    assert before == steady[:40]
    assert sum(map(len, after)) < sum(map(len, steady[40:])) / 3


def test_decoding_at_another_rate() -> None:
    original = voice_like(48_000, 48_000)
    encoder = opus.OpusEncoder(48_000, 20, 64_000)
    packets = encode(encoder, original.tobytes())
    decoded = decode(packets, 16_000, encoder.pre_skip // 3, 16_000)
    assert len(decoded) == 16_000
    assert np.corrcoef(decoded, original[::3])[0, 1] > 0.99


def test_trim_follows_the_position_of_each_packet() -> None:
    coded = np.arange(100, dtype="<i2")
    packets = [(first, coded[first : first + 20].tobytes()) for first in range(0, 100, 20)]
    kept = b"".join(bytes(opus.trim(pcm, first, 25, 50)) for first, pcm in packets)
    assert kept == coded[25:75].tobytes()
    unknown = b"".join(bytes(opus.trim(pcm, first, 25)) for first, pcm in packets)
    assert unknown == coded[25:].tobytes()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((22_050, 20, 32_000), "22050"),
        ((24_000, 30, 32_000), "frame_ms"),
        ((24_000, 20, 15_999), "15999"),
        ((24_000, 20, 128_001), "128001"),
    ],
)
def test_what_opus_does_not_have_is_refused(arguments: tuple[int, float, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        opus.OpusEncoder(*arguments)


def test_coded_samples_are_told_as_timeline_samples() -> None:
    assert [opus.timeline_sample(coded, 156) for coded in (0, 100, 156, 480)] == [0, 0, 0, 324]
    assert opus.timeline_sample(960, 156, 700) == 700
    assert opus.timeline_sample(480, 156, 700) == 324
    assert opus.timeline_sample(480, 0, 700) == 480


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="11025"):
        opus.OpusDecoder(11_025)
    encoder = opus.OpusEncoder(24_000, 20, 32_000)
    with pytest.raises(ValueError, match="3 bytes"):
        encoder.push(b"abc")
    encoder.finish()
    with pytest.raises(ValueError, match="finished"):
        encoder.push(b"")
    with pytest.raises(ValueError, match="finished"):
        encoder.finish()


@pytest.mark.parametrize("packet", [b"", b"\x03", b"\xff" * 3])
def test_bad_packets_are_an_error_and_the_decoder_goes_on(packet: bytes) -> None:
    decoder = opus.OpusDecoder(24_000)
    with pytest.raises(opus.OpusDataError):
        decoder.decode(packet)
    good = encode(opus.OpusEncoder(24_000, 20, 32_000), bytes(960))
    assert len(decoder.decode(good[0])) == 960


# --- where libopus comes from ---------------------------------------------------------------------------------------


def run_python(code: str) -> str:
    """A fresh interpreter, for what can only happen once in a process."""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()


def test_without_a_system_library_the_bundled_one_is_loaded_and_pyav_is_not() -> None:
    code = """
import ctypes.util, sys, threading
original = ctypes.util.find_library = lambda name: None
from protocol.media import opus
opus._SONAMES.clear()
threads = [threading.Thread(target=opus.load_opuslib) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
import opuslib.api
assert ctypes.util.find_library is original, "find_library was not put back"
assert "av" not in sys.modules
assert opus.OpusEncoder(24000, 20, 32000).pre_skip == 156
print(opuslib.api.libopus._name)
"""
    assert Path(run_python(code)).name.startswith("libopus")


def test_without_any_library_the_error_says_what_to_install() -> None:
    code = """
import ctypes.util
ctypes.util.find_library = lambda name: None
from protocol.media import opus
opus._SONAMES.clear()
opus._bundled_libraries = lambda: ["/nonexistent/libopus.so"]
try:
    opus.OpusEncoder(24000, 20, 32000)
except opus.OpusUnavailableError as error:
    print(error)
"""
    message = run_python(code)
    assert "apt-get install libopus0" in message
    assert "/nonexistent/libopus.so" in message
    assert "\n" not in message


def test_the_system_library_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = opus._bundled_libraries()
    assert bundled, "PyAV is installed with the project and carries libopus"
    monkeypatch.setitem(opus._SONAMES, sys.platform, bundled[0])
    monkeypatch.setattr(opus, "_bundled_libraries", lambda: ["/nonexistent"])
    assert opus.find_libopus() == bundled[0]


def test_a_library_that_does_not_load_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libopus.so.0"
    broken.write_bytes(b"not a library")
    bundled = opus._bundled_libraries()
    monkeypatch.setitem(opus._SONAMES, sys.platform, str(broken))
    monkeypatch.setattr(opus, "_bundled_libraries", lambda: [str(broken), *bundled])
    assert opus.find_libopus() == bundled[0]


def test_a_machine_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    assert opus._bundled_libraries() == []


def test_settings_reach_the_codec() -> None:
    """opuslib declares no argument types for variadic calls; where that matters, settings were silently garbage."""
    encoder = opus.OpusEncoder(24_000, 20, 40_000)
    assert encoder._encoder.bitrate == 40_000
    assert encoder._encoder.complexity == 5
    assert encoder._encoder.sample_rate == 24_000
    assert encoder._encoder.signal == opus.load_opuslib().AUTO
    encoder.set_bitrate(24_000)
    assert encoder._encoder.signal == opus.load_opuslib().SIGNAL_VOICE
    assert opus.load_opuslib().api.encoder.libopus_ctl.argtypes is not None
    assert opus.load_opuslib().api.decoder.libopus_ctl.argtypes is not None


def test_two_threads_encode_independently() -> None:
    pcm = voice_like(24_000, 24_000).tobytes()
    expected = encode(opus.OpusEncoder(24_000, 20, 32_000), pcm)
    results: list[list[bytes]] = []
    threads = [
        threading.Thread(target=lambda: results.append(encode(opus.OpusEncoder(24_000, 20, 32_000), pcm)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4
