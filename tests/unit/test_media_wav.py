"""WAV headers, read back by the standard library."""

import io
import struct
import wave

import pytest

from protocol.limits import SAMPLE_RATES_PCM
from protocol.media.wav import HEADER_BYTES, patch_sizes, wav_header


@pytest.mark.parametrize("samples", [0, 1, 24_001])
@pytest.mark.parametrize("sample_rate", SAMPLE_RATES_PCM)
def test_known_length(sample_rate: int, samples: int) -> None:
    data = wav_header(sample_rate, samples) + bytes(2 * samples)
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8
    with wave.open(io.BytesIO(data)) as reader:
        assert reader.getparams()[:4] == (1, 2, sample_rate, samples)
        assert len(reader.readframes(samples + 10)) == 2 * samples


def test_stream_and_its_correction() -> None:
    pcm = bytes(range(200))
    file = io.BytesIO()
    file.write(wav_header(16_000))
    assert file.tell() == HEADER_BYTES
    assert struct.unpack_from("<I", file.getvalue(), 4)[0] == 0xFFFFFFFF
    assert struct.unpack_from("<I", file.getvalue(), 40)[0] == 0xFFFFFFFF
    file.write(pcm)
    patch_sizes(file, 100)
    assert file.tell() == HEADER_BYTES + len(pcm)
    assert file.getvalue() == wav_header(16_000, 100) + pcm


def test_a_stream_is_readable_before_its_correction() -> None:
    with wave.open(io.BytesIO(wav_header(16_000) + bytes(200))) as reader:
        assert len(reader.readframes(1 << 20)) == 200


def test_more_than_four_gibibytes_reads_to_the_end() -> None:
    assert wav_header(48_000, 1 << 32) == wav_header(48_000)
    largest = (0xFFFFFFFF - 37) // 2
    assert struct.unpack_from("<I", wav_header(48_000, largest), 40)[0] == 2 * largest
    assert wav_header(48_000, largest + 1) == wav_header(48_000)
    file = io.BytesIO(wav_header(48_000, 0))
    patch_sizes(file, 1 << 33)
    assert file.getvalue() == wav_header(48_000)
