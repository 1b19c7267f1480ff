"""WAV headers, read back by the standard library."""

import io
import struct
import wave

import pytest

from protocol.limits import SAMPLE_RATES_PCM
from protocol.media.wav import FILE_HEADER_BYTES, HEADER_BYTES, WavFile, read_wav_file, wav_file_header, wav_header


@pytest.mark.parametrize("samples", [0, 1, 24_001])
@pytest.mark.parametrize("sample_rate", SAMPLE_RATES_PCM)
def test_known_length(sample_rate: int, samples: int) -> None:
    data = wav_header(sample_rate, samples) + bytes(2 * samples)
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8
    with wave.open(io.BytesIO(data)) as reader:
        assert reader.getparams()[:4] == (1, 2, sample_rate, samples)
        assert len(reader.readframes(samples + 10)) == 2 * samples


def test_a_stream() -> None:
    data = wav_header(16_000)
    assert len(data) == HEADER_BYTES
    assert struct.unpack_from("<I", data, 4)[0] == 0xFFFFFFFF
    assert struct.unpack_from("<I", data, 40)[0] == 0xFFFFFFFF


def test_a_stream_is_readable_before_its_correction() -> None:
    with wave.open(io.BytesIO(wav_header(16_000) + bytes(200))) as reader:
        assert len(reader.readframes(1 << 20)) == 200


def test_a_stream_of_more_than_four_gibibytes_reads_to_the_end() -> None:
    assert wav_header(48_000, 1 << 32) == wav_header(48_000)
    largest = (0xFFFFFFFF - 37) // 2
    assert struct.unpack_from("<I", wav_header(48_000, largest), 40)[0] == 2 * largest
    assert wav_header(48_000, largest + 1) == wav_header(48_000)


@pytest.mark.parametrize("samples", [0, 1, 24_001])
def test_a_file(samples: int) -> None:
    data = wav_file_header(24_000, samples) + bytes(2 * samples)
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8
    with wave.open(io.BytesIO(data)) as reader:
        assert reader.getparams()[:4] == (1, 2, 24_000, samples)
    assert read_wav_file(data[:FILE_HEADER_BYTES], len(data)) == WavFile(24_000, samples)
    assert read_wav_file(data[:FILE_HEADER_BYTES], len(data) + 3) == WavFile(24_000, samples + 1)  # a torn sample


def test_a_file_of_more_than_four_gibibytes_is_rf64() -> None:
    largest = (0xFFFFFFFF - 73) // 2
    assert wav_file_header(24_000, largest)[:4] == b"RIFF"
    head = wav_file_header(24_000, largest + 1)
    assert len(head) == FILE_HEADER_BYTES
    assert head[:4] == b"RF64"
    assert struct.unpack_from("<4sIQQQI", head, 12) == (
        b"ds64", 28, 2 * (largest + 1) + 72, 2 * (largest + 1), largest + 1, 0,
    )  # fmt: skip
    assert struct.unpack_from("<I", head, 76)[0] == 0xFFFFFFFF
    assert read_wav_file(head, FILE_HEADER_BYTES + 200) == WavFile(24_000, 100)


@pytest.mark.parametrize("head", [b"", wav_header(24_000, 50) + bytes(100), wav_file_header(24_000, 1)[:79]])
def test_a_file_of_another_program(head: bytes) -> None:
    assert read_wav_file(head, 1_000) is None
