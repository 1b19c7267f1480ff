"""Audio frames: they round-trip, and no byte that is missing, added or changed gets through."""

import dataclasses
import struct
from contextlib import suppress
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import (
    HEADER,
    MAX_PACKET_BYTES,
    AudioFrame,
    Codec,
    FrameFlag,
    decode_frame,
    pack_packets,
    unpack_packets,
)
from protocol.limits import U32, U53
from tests.support.protocol_samples import BAD_FRAMES, FRAMES, frame_bytes

LARGEST_U64 = 2**64 - 1
NAMED_FLAGS = st.sampled_from([FrameFlag.NONE, FrameFlag.LAST, FrameFlag.DECODER_RESET])


@st.composite
def any_frame(draw: st.DrawFn) -> AudioFrame:
    codec = draw(st.sampled_from(Codec))
    flags = draw(NAMED_FLAGS) | draw(NAMED_FLAGS)
    count = draw(st.integers(0, U32))
    if codec is Codec.OPUS:
        payload = pack_packets(draw(st.lists(st.binary(min_size=1, max_size=30), max_size=4)))
    elif draw(st.booleans()):
        payload, flags = b"", flags | FrameFlag.SILENCE_RUN
    else:
        payload = draw(st.binary(max_size=60).map(lambda raw: raw[: len(raw) // 2 * 2]))
        count = len(payload) // 2
    utterance, first = draw(st.integers(0, U32)), draw(st.integers(0, U53))
    return AudioFrame(codec, utterance, first, count, payload, flags, draw(st.integers(0, U32)))


def refusal(data: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode_frame(data)
    assert caught.value.code is ErrorCode.BAD_MESSAGE
    assert caught.value.message.startswith("audio frame: ")
    return caught.value


@given(any_frame())
def test_round_trip(frame: AudioFrame) -> None:
    data = frame.encode(frame.generation)
    assert len(data) == HEADER.size + len(frame.payload)
    assert decode_frame(data) == frame


@given(any_frame(), st.integers(0, U32))
def test_the_generation_is_written_when_the_frame_is_sent(frame: AudioFrame, generation: int) -> None:
    again = decode_frame(frame.encode(generation))
    assert again == dataclasses.replace(frame, generation=generation)


def test_the_header_is_28_bytes_big_endian_at_these_offsets() -> None:
    frame = AudioFrame(Codec.OPUS, 0x0A0B0C0D, 0x0102030405060708, 0x11121314, b"\x00\x01\x7f", FrameFlag.LAST)
    data = frame.encode(0x21222324)
    assert HEADER.size == 28
    assert data[0:1] == b"\x01"
    assert data[1:2] == b"\x02"
    assert data[2:4] == b"\x00\x01"
    assert data[4:8] == bytes.fromhex("21222324")
    assert data[8:12] == bytes.fromhex("0a0b0c0d")
    assert data[12:20] == bytes.fromhex("0102030405060708")
    assert data[20:24] == bytes.fromhex("11121314")
    assert data[24:28] == crc32(b"\x00\x01\x7f").to_bytes(4, "big")
    assert data[28:] == b"\x00\x01\x7f"


def test_samples_are_aligned_and_not_copied() -> None:
    data = frame_bytes()
    payload = decode_frame(data).payload
    assert isinstance(payload, memoryview)
    assert payload.obj is data
    assert HEADER.size % 4 == 0


@given(any_frame().filter(lambda frame: len(frame.payload) > 0), st.data())
def test_a_changed_bit_of_the_payload_is_noticed(frame: AudioFrame, data: st.DataObject) -> None:
    wire = bytearray(frame.encode(1))
    bit = data.draw(st.integers(8 * HEADER.size, 8 * len(wire) - 1))
    wire[bit // 8] ^= 1 << bit % 8
    assert refusal(bytes(wire)).field == "frame.crc"


@pytest.mark.parametrize(("name", "frame", "generation"), FRAMES, ids=[name for name, _, _ in FRAMES])
def test_a_frame_cut_after_any_byte_is_refused(name: str, frame: AudioFrame, generation: int) -> None:
    data = frame.encode(generation)
    for length in range(len(data)):
        error = refusal(data[:length])
        assert error.field == ("frame.header" if length < HEADER.size else "frame.crc")
    for more in (b"\0", b"\0\0", data):
        refusal(data + more)


@pytest.mark.parametrize(("name", "data"), BAD_FRAMES, ids=[name for name, _ in BAD_FRAMES])
def test_what_breaks_a_rule_is_refused(name: str, data: bytes) -> None:
    assert str(refusal(data).field).startswith("frame.")


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused_with_its_number(version: int) -> None:
    error = refusal(frame_bytes(version=version))
    assert error.field == "frame.version"
    assert str(version) in error.message


@pytest.mark.parametrize("codec", [0, 3, 255])
def test_another_codec_is_refused_with_its_number(codec: int) -> None:
    error = refusal(frame_bytes(codec=codec))
    assert error.field == "frame.codec"
    assert str(codec) in error.message


@given(st.integers(0, 0xFFFF))
def test_unknown_flags_are_ignored(flags: int) -> None:
    flags &= ~FrameFlag.SILENCE_RUN
    frame = decode_frame(frame_bytes(flags=flags))
    assert int(frame.flags) == flags & 3


@given(st.integers(0, U32).filter(lambda count: count != 4))
def test_a_count_that_lies_about_pcm_is_refused(count: int) -> None:
    error = refusal(frame_bytes(count=count))
    assert error.field == "frame.count"
    assert str(2 * count) in error.message


def test_a_silence_run_costs_no_payload_whatever_its_length() -> None:
    frame = decode_frame(frame_bytes(flags=FrameFlag.SILENCE_RUN, count=U32, payload=b""))
    assert (frame.count, len(frame.payload)) == (U32, 0)
    assert refusal(frame_bytes(flags=FrameFlag.SILENCE_RUN)).field == "frame.payload"
    assert refusal(frame_bytes(codec=Codec.OPUS, flags=FrameFlag.SILENCE_RUN, payload=b"")).field == "frame.payload"


def test_the_last_sample_of_the_largest_timeline_has_a_number() -> None:
    data = struct.pack("!BBHIIQII", 1, 1, 0, 1, 1, LARGEST_U64, 0, 0)
    assert decode_frame(data).end_sample == LARGEST_U64


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=6))
def test_packets_round_trip(packets: list[bytes]) -> None:
    payload = pack_packets(packets)
    assert unpack_packets(payload) == unpack_packets(memoryview(payload)) == packets
    assert len(payload) == sum(2 + len(packet) for packet in packets)


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=4), st.data())
def test_packets_cut_short_are_refused(packets: list[bytes], data: st.DataObject) -> None:
    payload = pack_packets(packets)
    ends = {len(pack_packets(packets[:count])) for count in range(len(packets) + 1)}
    length = data.draw(st.integers(0, len(payload) - 1).filter(lambda length: length not in ends))
    with pytest.raises(ProtocolError) as caught:
        unpack_packets(payload[:length])
    assert caught.value.field == "frame.payload"
    cut = frame_bytes(codec=Codec.OPUS, payload=payload[:length])  # with a CRC that matches: only the lengths lie
    assert refusal(cut).field == "frame.payload"


@pytest.mark.parametrize("size", [0, 2, 3, 0xFFFF])
def test_a_packet_length_that_lies_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        unpack_packets(size.to_bytes(2, "big") + b"x")


@pytest.mark.parametrize("packet", [b"", bytes(MAX_PACKET_BYTES + 1)], ids=["empty", "too long"])
def test_a_packet_that_has_no_place_in_a_payload_is_not_packed(packet: bytes) -> None:
    with pytest.raises(ValueError, match=f"1 to {MAX_PACKET_BYTES} bytes"):
        pack_packets([b"x", packet])


@settings(max_examples=300)
@given(st.binary(max_size=100))
@example(frame_bytes(codec=Codec.OPUS, payload=b"\x00"))
@example(frame_bytes(codec=Codec.OPUS, count=U32, payload=b""))
def test_any_bytes_are_a_frame_or_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        decode_frame(data)


@settings(max_examples=300)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 0xFFFF), st.integers(0, 60), st.binary(max_size=60))
def test_any_header_is_a_frame_or_a_protocol_error(
    version: int, codec: int, flags: int, count: int, payload: bytes
) -> None:
    with suppress(ProtocolError):
        data = frame_bytes(version=version, codec=codec, flags=flags, count=count, payload=payload)
        frame = decode_frame(data)
        assert decode_frame(frame.encode(1)) == frame
