"""Opus to PCM on the timeline: exact lengths, and a decoder that is begun anew in the middle."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.decode import UtteranceDecoder
from client.errors import ServerMisbehaved
from client.items import Audio
from protocol.media.opus import OpusEncoder

RATE = 24_000
PACKET = 480


def tone(count: int) -> bytes:
    """A triangle wave: smooth enough for Opus to keep its shape."""
    return array("h", [abs(n % 200 - 100) * 100 - 5_000 for n in range(count)]).tobytes()


def encode(pcm: bytes) -> tuple[list[bytes], int]:
    encoder = OpusEncoder(RATE, 20, 64_000)
    return [*encoder.push(pcm), *encoder.finish()], encoder.pre_skip


def coded(packets: list[bytes], first: int, *, last: bool = False) -> Audio:
    return Audio(1, first, PACKET * len(packets), b"", tuple(packets), last)


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(1, 3_000), group=st.integers(1, 5))
def test_lengths_are_exact_however_packets_are_grouped(samples: int, group: int) -> None:
    packets, pre_skip = encode(tone(samples))
    decoder = UtteranceDecoder(RATE, pre_skip)
    out: list[Audio] = []
    for at in range(0, len(packets), group):
        part = packets[at : at + group]
        out += decoder.decode(coded(part, at * PACKET, last=at + group >= len(packets)))
    out += decoder.finish(samples)
    at = 0
    for audio in out:
        assert (audio.first_sample, len(audio.pcm)) == (at, 2 * audio.count)
        at = audio.end_sample
    assert at == samples


def test_a_new_encoder_in_the_middle_leaves_no_seam() -> None:
    pcm = tone(RATE)
    packets, pre_skip = encode(pcm)
    # After a restart: packets from a new encoder that began 80 ms before the first sample still missing.
    cut, warm_up = 20, 4
    again, _ = encode(pcm[2 * (cut - warm_up) * PACKET :])
    decoder = UtteranceDecoder(RATE, pre_skip)
    out = [*decoder.decode(coded(packets[:cut], 0))]
    out += decoder.decode(coded(again, (cut - warm_up) * PACKET, last=True))
    out += decoder.finish(RATE)
    joined = b"".join(audio.pcm for audio in out)
    assert len(joined) == len(pcm)
    seam = cut * PACKET - pre_skip
    whole = UtteranceDecoder(RATE, pre_skip)
    plain = b"".join(a.pcm for a in [*whole.decode(coded(packets, 0, last=True)), *whole.finish(RATE)])
    near = slice(seam - 200, seam + 200)
    difference = max(abs(a - b) for a, b in zip(array("h", joined)[near], array("h", plain)[near], strict=True))
    assert difference < 500


@pytest.mark.parametrize(
    "audio",
    [coded([b"\xff" * 3], 0), Audio(1, 0, 480, b"", (encode(tone(PACKET))[0][0],) * 2)],
    ids=["broken", "longer"],
)
def test_packets_that_lie_are_refused(audio: Audio) -> None:
    with pytest.raises(ServerMisbehaved):
        list(UtteranceDecoder(RATE, 156).decode(audio))


def test_nothing_decodes_to_nothing() -> None:
    decoder = UtteranceDecoder(RATE, 156)
    assert list(decoder.decode(Audio(1, 0, 0))) == []
    assert list(decoder.finish(0)) == []
