"""Format `auto`: an utterance begins as PCM and goes on as Opus, without a seam and with every digest checked."""

import hashlib
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.decode import UtteranceDecoder
from client.errors import ServerMisbehaved
from client.items import Audio
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame, Codec, FrameFlag, pack_packets
from protocol.media.opus import OpusEncoder
from tests.support.client_rehearsal import Rehearsal
from tests.support.client_script import RATE, Sent, frame

N = 480
PRE_SKIP = OpusEncoder(RATE, 20, 64_000).pre_skip


def tone(count: int) -> bytes:
    """A triangle wave: smooth enough for Opus to keep its shape."""
    return array("h", [abs(n % 200 - 100) * 100 - 5_000 for n in range(count)]).tobytes()


def packets_from(pcm: bytes, switch: int) -> tuple[int, list[bytes]]:
    """Opus for all from `switch` on: the first packet's number, and the packets. A new encoder, warmed up 80 ms."""
    first = max(0, (switch + PRE_SKIP) // N - 4)
    encoder = OpusEncoder(RATE, 20, 64_000)
    packets = encoder.push(pcm[2 * first * N :])
    return first, [*packets, *encoder.finish()]


def sent(segments: list[int], switch: int, per_frame: int) -> tuple[bytes, list[Sent]]:
    """An utterance as a server sends it that switches at a sample."""
    total = sum(segments)
    pcm = tone(total)
    out: list[Sent] = []
    digests, wire = hashlib.sha256(), hashlib.sha256()
    at = event = 0
    for n, size in enumerate(segments):
        event += 1
        out.append(s.SegmentBegin(event, 1, n, n, n + 1, at))
        at += size
    for cut in range(0, switch, 960):
        part = pcm[2 * cut : 2 * min(cut + 960, switch)]
        wire.update(part)
        out.append(frame(cut, part))
    first, packets = packets_from(pcm, switch)
    for at in range(0, len(packets), per_frame):
        group = packets[at : at + per_frame]
        flags = FrameFlag.DECODER_RESET if at == 0 else FrameFlag.NONE
        flags |= FrameFlag.LAST if at + per_frame >= len(packets) else FrameFlag.NONE
        payload = pack_packets(group)
        wire.update(payload)
        out.append(AudioFrame(Codec.OPUS, 1, (first + at) * N, len(group) * N, payload, flags))
    at = 0
    for n, size in enumerate(segments):
        event += 1
        digest = hashlib.sha256(pcm[2 * at : 2 * (at + size)])
        digests.update(digest.digest())
        out.append(s.SegmentEnd(event, 1, n, size, digest.hexdigest()))
        at += size
    out.append(s.Done(event + 1, 1, total, digests.hexdigest(), wire.hexdigest(), {}))
    return pcm, out


def decoded(items: list[object]) -> bytes:
    """What a consumer hears; the timeline must be whole."""
    decoder = UtteranceDecoder(RATE, PRE_SKIP)
    out: list[Audio] = []
    for item in items:
        if isinstance(item, Audio):
            out += decoder.decode(item)
        elif isinstance(item, s.Done):
            out += decoder.finish(item.samples)
    at = 0
    for audio in out:
        assert (audio.first_sample, len(audio.pcm)) == (at, 2 * audio.count)
        assert not audio.packets
        at = audio.end_sample
    return b"".join(audio.pcm for audio in out)


@settings(max_examples=30, deadline=None)
@given(switch=st.integers(1, 9_000), per_frame=st.integers(6, 12), segments=st.lists(st.integers(0, 6_000), max_size=3))
def test_a_switch_anywhere_is_exact_in_length_and_has_no_seam(switch: int, per_frame: int, segments: list[int]) -> None:
    segments = [*segments, 9_600]
    pcm, items = sent(segments, switch, per_frame)
    show = Rehearsal(format="auto", pre_skip=PRE_SKIP).say("x").feed(*items)
    assert show.failure is None
    assert show.finished == [1]
    out = decoded([item for _, item in show.delivered])
    assert len(out) == len(pcm)
    assert out[: 2 * switch] == pcm[: 2 * switch]
    end = min(switch + 2_000, len(pcm) // 2)
    near = slice(max(0, switch - 100), end)
    assert max(abs(a - b) for a, b in zip(array("h", out)[near], array("h", pcm)[near], strict=True)) < 2_500


@pytest.mark.parametrize("per_frame", [1, 3, 20])
def test_a_new_encoder_after_a_resume_leaves_no_seam(per_frame: int) -> None:
    pcm = tone(9_600)
    encoder = OpusEncoder(RATE, 20, 64_000)
    packets = [*encoder.push(pcm), *encoder.finish()]
    show = Rehearsal(format="opus", pre_skip=PRE_SKIP).say("x")
    show.feed(s.SegmentBegin(1, 1, 0, 0, 1, 0))
    for n in range(9):
        show.feed(AudioFrame(Codec.OPUS, 1, n * N, N, pack_packets([packets[n]])))
    show.lose()
    ask = show.connect()
    assert isinstance(ask, c.Resume)
    assert ask.next_sample == 9 * N
    show.feed(s.Resumed(2, 1, 1, 5 * N, 0, "t", "block", 3, 1_000), connection=1)
    encoder = OpusEncoder(RATE, 20, 64_000)
    again = [*encoder.push(pcm[2 * 5 * N :]), *encoder.finish()]
    for at in range(0, len(again), per_frame):
        group = again[at : at + per_frame]
        flags = FrameFlag.DECODER_RESET if at == 0 else FrameFlag.NONE
        last = FrameFlag.LAST if at + per_frame >= len(again) else FrameFlag.NONE
        audio = AudioFrame(Codec.OPUS, 1, (5 + at) * N, len(group) * N, pack_packets(group), flags | last, 2)
        show.feed(audio)
    assert show.failure is None
    items = [item for _, item in show.delivered]
    assert [item.reset for item in items if isinstance(item, Audio)].count(True) == 1
    out = decoded([*items, s.Done(2, 1, 9_600, "", "", {})])
    assert len(out) == len(pcm)
    near = slice(9 * N - PRE_SKIP - 500, 9 * N - PRE_SKIP + 500)
    assert max(abs(a - b) for a, b in zip(array("h", out)[near], array("h", pcm)[near], strict=True)) < 1_500


def test_acks_count_as_frames_do() -> None:
    _, items = sent([9_600], 2_880, 6)
    show = Rehearsal(format="auto", pre_skip=PRE_SKIP).say("x")
    positions: list[tuple[int, int]] = []
    for item in items:
        show.now += 0.11
        show.feed(item)
        if isinstance(ack := show.sent[-1], c.Ack):
            positions.append((ack.next_sample, ack.played_sample))
    assert positions == sorted(positions)
    assert positions[-1][0] == -(-(9_600 + PRE_SKIP) // N) * N
    ask = show.lose().connect()
    assert isinstance(ask, c.Resume)
    assert ask.next_sample == positions[-1][0]


@pytest.mark.parametrize("damage", ["before", "gap", "back"])
def test_damage_around_a_switch_is_noticed(damage: str) -> None:
    _, items = sent([960, 9_600], 2_880, 6)
    if damage == "before":  # a segment that was all PCM is checked though its end came later
        items[2] = frame(0, bytes(1_920))
    elif damage == "gap":
        at = next(i for i, item in enumerate(items) if isinstance(item, AudioFrame) and item.codec is Codec.OPUS)
        items[at] = AudioFrame(Codec.OPUS, 1, 10 * N, N, pack_packets([b"x"]))
    else:
        items.insert(len(items) - 4, frame(9_600, bytes(20)))
    show = Rehearsal(format="auto", pre_skip=PRE_SKIP, resume_ttl_ms=0).say("x").feed(*items)
    assert isinstance(show.failure, ServerMisbehaved)
    assert show.finished == []
