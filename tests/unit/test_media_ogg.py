"""Ogg Opus files: read back by a small reader of our own, and by libsndfile."""

import io
import struct
from dataclasses import dataclass

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.limits import FRAME_MS_OPUS, SAMPLE_RATES_OPUS
from protocol.media.ogg import OggOpusWriter, ogg_crc
from protocol.media.ogg_reading import OpusHead, packet_samples, read_head
from protocol.media.ogg_reading import read_pages as pages_of
from protocol.media.opus import OpusEncoder


def slow_crc(data: bytes) -> int:
    """Ogg's checksum straight from its definition, bit by bit."""
    crc = 0
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = ((crc << 1) ^ 0x04C11DB7 if crc & 0x80000000 else crc << 1) & 0xFFFFFFFF
    return crc


@dataclass
class Page:
    flags: int
    granule: int
    serial: int
    sequence: int
    packets: list[bytes]


def read_pages(data: bytes) -> list[Page]:
    pages = []
    while data:
        magic, version, flags, granule, serial, sequence, crc, count = struct.unpack_from("<4sBBqIIIB", data)
        assert (magic, version) == (b"OggS", 0)
        lacing = data[27 : 27 + count]
        size = 27 + count + sum(lacing)
        assert len(data) >= size, "a page is cut short"
        assert slow_crc(data[:22] + b"\0\0\0\0" + data[26:size]) == crc
        assert not lacing or lacing[-1] < 255, "packets end on their page"
        packets, body, length = [], data[27 + count : size], 0
        for segment in lacing:
            length += segment
            if segment < 255:
                packets.append(body[:length])
                body, length = body[length:], 0
        pages.append(Page(flags, granule, serial, sequence, packets))
        data = data[size:]
    return pages


def sound(sample_rate: int, samples: int) -> bytes:
    return (9000 * np.sin(2 * np.pi * 440 * np.arange(samples) / sample_rate)).astype("<i2").tobytes()


def write_file(sample_rate: int, frame_ms: float, samples: int, per_page: int, bitrate: int = 64_000) -> bytes:
    encoder = OpusEncoder(sample_rate, frame_ms, bitrate)
    writer = OggOpusWriter(sample_rate, encoder.pre_skip, 0xC051, per_page)
    data = writer.headers()
    data += writer.write(encoder.push(sound(sample_rate, samples)), encoder.samples_per_packet)
    return data + writer.finish(encoder.finish(), encoder.samples_per_packet, samples)


@given(st.binary(max_size=400))
def test_checksum_is_the_definition(data: bytes) -> None:
    assert ogg_crc(data) == slow_crc(data)


def test_checksum_of_a_known_page() -> None:
    assert ogg_crc(b"123456789") == 0x89A1897F  # CRC-32/MPEG-2's check value with a start of 0 and no inversion


@pytest.mark.parametrize("per_page", [1, 5, 50])
@pytest.mark.parametrize("frame_ms", FRAME_MS_OPUS)
@pytest.mark.parametrize("sample_rate", SAMPLE_RATES_OPUS)
def test_pages(sample_rate: int, frame_ms: float, per_page: int) -> None:
    samples = sample_rate // 3 + 1
    pages = read_pages(write_file(sample_rate, frame_ms, samples, per_page))
    assert {page.serial for page in pages} == {0xC051}
    assert [page.sequence for page in pages] == list(range(len(pages)))
    assert [page.flags for page in pages] == [2] + [0] * (len(pages) - 2) + [4]
    assert [page.granule for page in pages[:2]] == [0, 0]
    head = struct.unpack("<8sBBHIhB", pages[0].packets[0])
    assert head == (b"OpusHead", 1, 1, 312, sample_rate, 0, 0)
    assert pages[1].packets[0].startswith(b"OpusTags")
    per_packet = round(48 * frame_ms)
    carried = 0
    for page in pages[2:-1]:
        carried += len(page.packets)
        assert 0 < len(page.packets) <= per_page
        assert page.granule == carried * per_packet
    assert pages[-1].granule - 312 == samples * (48_000 // sample_rate)
    assert carried * per_packet < pages[-1].granule <= (carried + len(pages[-1].packets)) * per_packet


@pytest.mark.parametrize("samples", [1, 479, 480, 481, 24_000])
@pytest.mark.parametrize("frame_ms", [2.5, 20, 60])
def test_another_reader_hears_the_same_length(samples: int, frame_ms: float) -> None:
    heard, rate = soundfile.read(io.BytesIO(write_file(24_000, frame_ms, samples, 3)))
    assert len(heard) / rate == samples / 24_000
    if samples > 5000:
        expected = np.frombuffer(sound(24_000, samples), "<i2") / 32768
        assert np.corrcoef(heard[:: rate // 24_000][:samples], expected)[0, 1] > 0.99


def test_an_empty_stream_ends() -> None:
    pages = read_pages(write_file(24_000, 20, 0, 1))
    assert [page.flags for page in pages] == [2, 0, 4]
    assert (pages[-1].packets, pages[-1].granule) == ([], -1)


@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=40), per_page=st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_any_packets_come_back(sizes: list[int], per_page: int) -> None:
    """Sizes beside multiples of 255 and pages full of segments included."""
    packets = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    packets += [b"\x01" * 255, b"\x02" * 510, b"\x03" * 254]
    writer = OggOpusWriter(48_000, 312, 1, per_page)
    data = writer.headers() + writer.write(packets[:-1], 960)
    data += writer.finish(packets[-1:], 960, 960 * len(packets) - 312)
    pages = read_pages(data)
    assert [packet for page in pages[2:] for packet in page.packets] == packets


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="22050"):
        OggOpusWriter(22_050, 0, 1)
    with pytest.raises(ValueError, match="packets_per_page"):
        OggOpusWriter(24_000, 0, 1, 0)
    writer = OggOpusWriter(24_000, 156, 1)
    with pytest.raises(ValueError, match="headers"):
        writer.write([b"a"], 480)
    writer.headers()
    with pytest.raises(ValueError, match="headers"):
        writer.headers()
    with pytest.raises(ValueError, match="does not fit"):
        writer.write([bytes(255 * 255)], 480)
    with pytest.raises(ValueError, match="last packet"):
        writer.finish([], 480, 100)
    writer.finish([], 480, 0)
    with pytest.raises(ValueError, match="finished"):
        writer.write([b"a"], 480)


# ---- reading back ----


@pytest.mark.parametrize("frame_ms", FRAME_MS_OPUS)
@pytest.mark.parametrize("sample_rate", SAMPLE_RATES_OPUS)
def test_a_packet_tells_how_long_it_is(sample_rate: int, frame_ms: float) -> None:
    for bitrate in (16_000, 96_000):
        encoder = OpusEncoder(sample_rate, frame_ms, bitrate)
        packets = [*encoder.push(sound(sample_rate, sample_rate)), *encoder.finish()]
        assert {packet_samples(packet, sample_rate) for packet in packets} == {encoder.samples_per_packet}


@pytest.mark.parametrize("packet", [b"", b"\x03"])
def test_what_is_no_packet(packet: bytes) -> None:
    with pytest.raises(ValueError, match="Opus packet"):
        packet_samples(packet, 48_000)


def ogg_file(packets_per_page: int) -> tuple[bytes, list[bytes]]:
    encoder = OpusEncoder(24_000, 20, 32_000)
    packets = [*encoder.push(sound(24_000, 24_000)), *encoder.finish()]
    writer = OggOpusWriter(24_000, encoder.pre_skip, 7, packets_per_page)
    data = writer.headers() + writer.write(packets[:-1], 480)
    assert writer.samples_given == (len(packets) - 1) // packets_per_page * packets_per_page * 480
    data += writer.flush() + writer.flush()
    assert writer.samples_given == 480 * (len(packets) - 1)
    return data + writer.finish(packets[-1:], 480, 24_000), packets


def test_pages_are_read_back_up_to_where_they_are_torn() -> None:
    data, packets = ogg_file(7)
    whole = list(pages_of(io.BytesIO(data)))
    assert [packet for page in whole[2:] for packet in page.packets] == packets
    assert [page.sequence for page in whole] == list(range(len(whole)))
    ends = [*(page.offset for page in whole[1:]), len(data)]
    for size in range(0, len(data) + 1, 97):
        assert list(pages_of(io.BytesIO(data[:size]))) == whole[: sum(end <= size for end in ends)]
    damaged = bytearray(data)
    damaged[whole[4].offset + 100] ^= 1
    assert list(pages_of(io.BytesIO(damaged))) == whole[:4]


def test_the_head_is_read_back() -> None:
    data, _ = ogg_file(50)
    assert read_head(pages_of(io.BytesIO(data))) == OpusHead(24_000, 156)
    for other in (b"", data[:40], data[47:], data.replace(b"OpusHead", b"OpusHeat")):
        assert read_head(pages_of(io.BytesIO(other))) is None


def test_a_stream_goes_on_at_a_page() -> None:
    data, packets = ogg_file(10)
    third = list(pages_of(io.BytesIO(data)))[4]
    writer = OggOpusWriter(24_000, 156, third.serial, 10)
    writer.go_on(third.sequence, 20 * 480)
    rest = writer.write(packets[20:-1], 480) + writer.flush() + writer.finish(packets[-1:], 480, 24_000)
    assert data[: third.offset] + rest == data
    with pytest.raises(ValueError, match="before anything else"):
        writer.go_on(0, 0)
