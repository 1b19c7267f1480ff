"""FLAC: what goes in comes out of libFLAC and FFmpeg, bit by bit."""

import hashlib
import io

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.media.flac import (
    BLOCK,
    HEADER_BYTES,
    SYNC,
    FlacEncoder,
    crc16,
    frame_header,
    read_stream_header,
    stream_header,
)
from protocol.media.flac_reading import decode_frame, read_frame_head

RATE = 24_000


def encode(samples: NDArray[np.int16], rate: int = RATE, piece: int = 1_000) -> bytes:
    encoder = FlacEncoder(rate)
    pcm = samples.astype("<i2").tobytes()
    frames = b"".join(encoder.push(pcm[at : at + piece]) for at in range(0, len(pcm), piece)) + encoder.finish()
    return stream_header(rate, encoder.samples, encoder.md5) + frames


def speech(samples: int) -> NDArray[np.int16]:
    rng = np.random.default_rng(5)
    t = np.arange(samples) / RATE
    tone = sum(np.sin(2 * np.pi * 120 * k * t) / k for k in range(1, 30))
    return np.asarray(3_000 * tone * np.sin(3 * t) + rng.normal(0, 30, samples)).astype(np.int16)


def shapes() -> dict[str, NDArray[np.int16]]:
    rng = np.random.default_rng(6)
    return {
        "nothing": np.zeros(0, np.int16),
        "one": np.array([-32_768], np.int16),
        "few": np.array([1, 2, 4, 8, -16], np.int16),
        "silence": np.zeros(3 * BLOCK, np.int16),
        "constant": np.full(5_000, -7, np.int16),
        "noise": rng.integers(-32_768, 32_768, 2 * BLOCK + 1).astype(np.int16),
        "speech": speech(3 * BLOCK),
        "square": np.where(np.arange(9_000) // 50 % 2, 32_767, -32_768).astype(np.int16),
        "ramp": np.arange(-32_768, 32_767, 5).astype(np.int16),
        "click": np.where(np.arange(BLOCK) == 2_000, 30_000, 0).astype(np.int16),
    }


@pytest.mark.parametrize("name", shapes())
def test_every_sample_comes_back(name: str) -> None:
    samples = shapes()[name]
    data = encode(samples)
    if len(samples):
        found, rate = soundfile.read(io.BytesIO(data), dtype="int16")
        assert rate == RATE
        np.testing.assert_array_equal(found, samples)
        with av.open(io.BytesIO(data), "r") as file:
            frames = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
        np.testing.assert_array_equal(frames, samples)
    at = HEADER_BYTES
    read: list[bytes] = []
    while at < len(data):
        head = read_frame_head(data[at : at + 16], RATE)
        assert head is not None
        assert head.number == len(read)
        pcm, size = decode_frame(data[at:], head)
        read.append(pcm)
        at += size
    assert b"".join(read) == samples.astype("<i2").tobytes()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-32_768, 32_767), min_size=1, max_size=300), st.integers(1, 40))
def test_any_samples_come_back(values: list[int], repeat: int) -> None:
    samples = np.tile(np.array(values, np.int16), repeat)
    np.testing.assert_array_equal(soundfile.read(io.BytesIO(encode(samples)), dtype="int16")[0], samples)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000])
def test_rates(rate: int) -> None:
    data = encode(speech(5_000), rate)
    assert soundfile.read(io.BytesIO(data))[1] == rate
    assert read_stream_header(data) == rate


def test_about_as_small_as_the_reference_encoder_makes_it() -> None:
    samples = speech(100_000)
    reference = io.BytesIO()
    soundfile.write(reference, samples, RATE, format="FLAC", subtype="PCM_16")
    assert len(encode(samples)) < 1.03 * len(reference.getvalue())


def test_the_header_tells_length_and_digest() -> None:
    samples = speech(10_000)
    data = encode(samples)
    assert soundfile.info(io.BytesIO(data)).frames == 10_000
    assert data[26:42] == hashlib.md5(samples.astype("<i2").tobytes()).digest()
    assert read_stream_header(data[:41]) is None
    assert read_stream_header(b"fLaX" + data[4:]) is None


@pytest.mark.parametrize("number", [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x1FFFFF, 0x200000, 0x7FFFFFFF])
def test_frame_numbers(number: int) -> None:
    head = frame_header(number, BLOCK, RATE)
    if number < 0x10000 and not 0xD800 <= number < 0xE000:
        assert head[4:-1] == chr(number).encode()  # coded as in UTF-8
    found = read_frame_head(head + b"more", RATE)
    assert found is not None
    assert (found.number, found.count, found.size) == (number, BLOCK, len(head))
    assert read_frame_head(head[:-1] + bytes((head[-1] ^ 1,)), RATE) is None


def test_a_torn_or_damaged_frame_is_noticed() -> None:
    data = encode(speech(BLOCK))[HEADER_BYTES:]
    head = read_frame_head(data, RATE)
    assert head is not None
    for broken in (data[:-1], data[:20], data[: head.size], data[:100] + b"\0\xff\0" + data[103:]):
        with pytest.raises(ValueError, match="cut short"):
            decode_frame(broken, head)


@given(st.binary(max_size=700))
def test_the_checksum(data: bytes) -> None:
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x8005 if crc & 0x8000 else crc << 1) & 0xFFFF
    assert crc16(data) == crc
    assert crc16(data + crc.to_bytes(2, "big")) == 0


def test_samples_that_look_like_a_frame_are_none() -> None:
    for first in range(0x80, 0x100):
        found = read_frame_head(SYNC + bytes((0xC7, 0x08, first)) + bytes((0xBF,)) * 11, 24_000)
        assert found is None or found.number < 1 << 36
