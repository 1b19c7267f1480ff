"""Coders of the wire with the real libopus: whatever happens, the client gets the exact length and the right wave."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from client.decode import UtteranceDecoder
from client.items import Audio, audio_item
from client.timeline import Timeline
from protocol.frames import AudioFrame, Codec, FrameFlag, unpack_packets
from protocol.limits import OPUS_PREROLL_MS
from protocol.media.opus import packet_count
from protocol.server_messages import SegmentBegin
from server.audio.wire import (
    AutoCoder,
    CodedAudio,
    CoderSpec,
    OpusCoder,
    PcmCoder,
    WireCoder,
    opus_pre_skip,
)

RATE = 24_000
N = 480
PRE_SKIP = opus_pre_skip(RATE)
BITRATE = 64_000
CLEAR_DB = 10.0  # a wave at 64 kbit/s is this near, or nearer
WARM_DB = 6.0  # right behind a new encoder and decoder


def voice(samples: int, seed: int = 1) -> bytes:
    """Something like a vowel: harmonics of a gliding pitch, s16le."""
    rng = np.random.default_rng(seed)
    t = np.arange(samples) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 1.7 * t)) / RATE
    wave = np.zeros(samples)
    for harmonic in range(1, 9):
        wave += np.sin(harmonic * phase + rng.uniform(0, 6)) / harmonic**1.2
    wave *= 6_000 * (0.7 + 0.3 * np.sin(2 * np.pi * 3 * t))
    return wave.astype("<i2").tobytes()


def array(pcm: bytes) -> NDArray[np.float64]:
    return np.frombuffer(pcm, "<i2").astype(float)


def snr(original: bytes, heard: bytes, first: int, end: int) -> float:
    """Of these samples, in dB."""
    a, b = array(original)[first:end], array(heard)[first:end]
    noise = float(np.sum((a - b) ** 2))
    return 99.0 if noise == 0 else 10 * float(np.log10(np.sum(a**2) / noise))


class Receiver:
    """A client's side of one utterance."""

    def __init__(self, *, have: bytes = b"", have_coded: int = 0) -> None:
        self.timeline = Timeline(1, PRE_SKIP)
        self.timeline.begin(SegmentBegin(1, 1, 0, 0, 1, 0))
        self.decoder = UtteranceDecoder(RATE, PRE_SKIP)
        self.pcm = bytearray()
        self.frames: list[AudioFrame] = []
        self.at = 0

    def take(self, coded: list[CodedAudio]) -> None:
        """Frames as the session makes them."""
        for audio in coded:
            first = self.at if audio.first_sample is None else audio.first_sample
            frame = AudioFrame(audio.codec, 1, first, audio.count, audio.payload, audio.flags)
            assert frame.end_sample > self.at or not frame.count, "positions must grow"
            self.at = frame.end_sample
            self.frames.append(frame)
            skip = self.timeline.audio(frame)
            if skip < frame.count:
                self._hear(self.decoder.decode(audio_item(frame, skip)))

    def finish(self, samples: int) -> bytes:
        """All of it; its length is exact."""
        self._hear(self.decoder.finish(samples))
        assert len(self.pcm) == 2 * samples
        return bytes(self.pcm)

    def _hear(self, audios: Iterator[Audio]) -> None:
        for audio in audios:
            assert audio.first_sample == len(self.pcm) // 2, "a hole, or something twice"
            assert len(audio.pcm) == 2 * audio.count
            self.pcm += audio.pcm

    @property
    def seam(self) -> AudioFrame | None:
        """The first Opus frame."""
        return next((frame for frame in self.frames if frame.codec is Codec.OPUS), None)


def auto(start: int = 0, pcm_ms: float = 40, opus_ms: float = 20) -> AutoCoder:
    return AutoCoder(RATE, pcm_ms, opus_ms, BITRATE, start=start)


def cut(pcm: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield pcm[2 * at : 2 * (at + size)]
        at += size
    yield pcm[2 * at :]


def check_seam(receiver: Receiver, fell_at: int) -> None:
    """What the protocol says about the first Opus frame."""
    seam = receiver.seam
    assert seam is not None
    per_packet = seam.count // len(unpack_packets(seam.payload))
    assert seam.flags & FrameFlag.DECODER_RESET
    assert seam.first_sample % per_packet == 0
    if fell_at:
        assert seam.first_sample <= fell_at
        assert fell_at + PRE_SKIP - seam.first_sample <= RATE * OPUS_PREROLL_MS // 1000 + per_packet + PRE_SKIP
        assert seam.end_sample >= fell_at + PRE_SKIP
    after = receiver.frames[receiver.frames.index(seam) + 1 :]
    assert all(frame.codec is Codec.OPUS for frame in after)
    assert not any(frame.flags & FrameFlag.DECODER_RESET for frame in after)


# ---- PCM that becomes Opus ----


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from((1, 7, 160, 480, 481, 1_000, 2_400, 5_000)), max_size=12),
    fall=st.integers(0, 12),
    rest=st.integers(0, 3_000),
    opus_ms=st.sampled_from((2.5, 10, 20, 60)),
)
def test_a_fall_anywhere_leaves_no_hole(sizes: list[int], fall: int, rest: int, opus_ms: float) -> None:
    samples = sum(sizes) + rest
    pcm = voice(samples)
    coder, receiver = auto(opus_ms=opus_ms), Receiver()
    fell_at = 0
    for number, piece in enumerate(cut(pcm, sizes)):
        coder.adapt(BITRATE, opus=number >= fall)
        if receiver.seam is None and coder.cheap:
            fell_at += len(piece) // 2
        receiver.take(coder.push(piece))
    coder.adapt(BITRATE, opus=True)
    receiver.take(coder.finish())
    heard = receiver.finish(samples)
    assert heard[: 2 * fell_at] == pcm[: 2 * fell_at]
    if samples:
        check_seam(receiver, fell_at)
        assert receiver.frames[-1].flags & FrameFlag.LAST
        assert [bool(frame.flags & FrameFlag.LAST) for frame in receiver.frames].count(True) == 1
        per_packet = round(RATE * opus_ms / 1000)
        assert receiver.frames[-1].end_sample == packet_count(samples, PRE_SKIP, per_packet) * per_packet


@pytest.mark.parametrize("fall", [0, 1, 480, 1_919, 1_920, 1_921, 7_777, 12_000, 23_990])
def test_the_wave_goes_on_as_it_was(fall: int) -> None:
    samples = 24_000
    pcm = voice(samples)
    coder, receiver = auto(), Receiver()
    receiver.take(coder.push(pcm[: 2 * fall]))
    coder.adapt(BITRATE, opus=True)
    receiver.take(coder.push(pcm[2 * fall :]))
    receiver.take(coder.finish())
    heard = receiver.finish(samples)
    if samples - fall >= N:
        assert snr(pcm, heard, fall, samples) > CLEAR_DB
        near = min(samples, fall + N)
        assert fall < 1_920 or snr(pcm, heard, fall, near) > WARM_DB
    if 0 < fall < samples:  # no click: the step at the seam is one that the wave itself may have
        steps = np.abs(np.diff(array(pcm)))
        assert abs(array(heard)[fall] - array(heard)[fall - 1]) < 1.5 * steps.max()


def test_it_becomes_opus_at_the_next_audio_where_too_little_is_known() -> None:
    """After a restart a coder begins anywhere; nothing before is there to warm a decoder up with."""
    start = 1_000
    pcm = voice(9_600)
    coder = auto(start=start)
    receiver = Receiver()
    receiver.take([CodedAudio(start, pcm[: 2 * start])])
    coder.adapt(BITRATE, opus=True)
    still_pcm = coder.cheap
    receiver.take(coder.push(pcm[2 * start : 4_000]))
    coder.adapt(BITRATE, opus=True)
    assert (still_pcm, coder.cheap) == (True, False)
    receiver.take(coder.push(pcm[4_000:]))
    receiver.take(coder.finish())
    heard = receiver.finish(9_600)
    check_seam(receiver, 2_000)
    assert heard[:4_000] == pcm[:4_000]


@pytest.mark.parametrize("before", [True, False])
def test_silence_on_either_side_of_the_fall(before: bool) -> None:
    pcm = (bytes(2 * 4_800) + voice(4_800)) if before else (voice(4_800) + bytes(2 * 4_800))
    coder, receiver = auto(), Receiver()
    receiver.take(coder.silence(4_800) if before else coder.push(pcm[:9_600]))
    coder.adapt(BITRATE, opus=True)
    receiver.take(coder.push(pcm[9_600:]) if before else coder.silence(4_800))
    receiver.take(coder.finish())
    heard = receiver.finish(9_600)
    check_seam(receiver, 4_800)
    assert heard[:9_600] == pcm[:9_600]
    if before:
        assert snr(pcm, heard, 4_800, 9_600) > CLEAR_DB
    else:
        assert np.abs(array(heard)[6_000:]).max() < 200


@pytest.mark.parametrize("samples", [0, 1, 100, N - 1, N, N + 1])
@pytest.mark.parametrize("fall", ["before", "after"])
def test_tiny_utterances(samples: int, fall: str) -> None:
    pcm = voice(samples) if samples else b""
    coder, receiver = auto(), Receiver()
    coder.adapt(BITRATE, opus=fall == "before")
    receiver.take(coder.push(pcm))
    coder.adapt(BITRATE, opus=True)
    receiver.take(coder.finish())
    heard = receiver.finish(samples)
    assert fall == "before" or heard == pcm
    assert bool(receiver.frames) == bool(samples)
    assert not samples or receiver.frames[-1].flags & FrameFlag.LAST


def test_it_never_goes_back_and_follows_the_bitrate() -> None:
    pcm = voice(48_000)
    coder, receiver = auto(), Receiver()
    receiver.take(coder.push(pcm[:9_600]))
    coder.adapt(64_000, opus=True)
    receiver.take(coder.push(pcm[9_600:48_000]))
    high = sum(len(frame.payload) for frame in receiver.frames if frame.codec is Codec.OPUS)
    coder.adapt(16_000, opus=False)
    mark = len(receiver.frames)
    receiver.take(coder.push(pcm[48_000:]))
    receiver.take(coder.finish())
    low = sum(len(frame.payload) for frame in receiver.frames[mark:])
    assert all(frame.codec is Codec.OPUS for frame in receiver.frames[mark:])
    assert low / 24_000 < 0.5 * high / 19_200
    receiver.finish(48_000)


def test_what_is_remembered_for_a_fall_is_bounded() -> None:
    coder = auto()
    for _ in range(1_000):
        coder.push(voice(240))
        coder.silence(24)
    assert sum(map(len, coder._tail)) <= 2 * (coder._kept + 240)
    coder.silence(RATE * 60)
    assert sum(map(len, coder._tail)) <= 2 * RATE * 60
    coder.push(voice(coder._kept))
    assert sum(map(len, coder._tail)) <= 2 * coder._kept


# ---- Opus after a restart ----


@pytest.mark.parametrize("seed", range(12))
def test_an_encoder_that_begins_in_the_middle_fits_what_the_client_has(seed: int) -> None:
    """As after a restart: the client has packets up to `position`; a new encoder begins 80 ms before."""
    chance = random.Random(seed)
    samples = chance.randint(5_000, 30_000)
    pcm = voice(samples, seed)
    whole = OpusCoder(RATE, 20, BITRATE)
    coded = [*whole.push(pcm), *whole.finish()]
    have = chance.randint(1, len(coded) - 1)
    receiver = Receiver()
    receiver.take(coded[:have])
    position = have * N
    start = max(0, have - 4) * N
    again = OpusCoder(RATE, 20, BITRATE, start=start)
    resumed = [*again.push(pcm[2 * start :]), *again.finish()]
    # The client learns from `first_sample` where it goes on; packets that it has only warm its decoder up.
    assert resumed[0].first_sample == start
    assert resumed[0].flags & FrameFlag.DECODER_RESET
    joined = b"".join(audio.payload for audio in resumed)
    end = start + N * len(resumed)
    receiver.at = position
    flags = FrameFlag.DECODER_RESET | FrameFlag.LAST
    receiver.take([CodedAudio(end - start, joined, flags, Codec.OPUS, start)])
    heard = receiver.finish(samples)
    assert end == len(coded) * N
    assert snr(pcm, heard, 0, samples) > CLEAR_DB
    seam = max(0, position - PRE_SKIP)
    assert snr(pcm, heard, seam, min(samples, seam + N)) > WARM_DB
    assert resumed[-1].flags & FrameFlag.LAST


# ---- which coder ----


@pytest.mark.parametrize(
    ("spec", "options", "cls"),
    [
        (CoderSpec(Codec.PCM, 24_000, 40, BITRATE), {}, PcmCoder),
        (CoderSpec(Codec.OPUS, 24_000, 20, BITRATE), {}, OpusCoder),
        (CoderSpec(Codec.PCM, 24_000, 40, BITRATE, auto=True), {}, AutoCoder),
        (CoderSpec(Codec.PCM, 22_050, 40, BITRATE, auto=True), {}, PcmCoder),
        (CoderSpec(Codec.PCM, 24_000, 40, BITRATE, auto=True), {"opus": True}, OpusCoder),
        (CoderSpec(Codec.OPUS, 24_000, 60, BITRATE), {"start": 1_440}, OpusCoder),
    ],
)
def test_a_spec_makes_the_right_coder(spec: CoderSpec, options: dict[str, Any], cls: type[WireCoder]) -> None:
    coder = spec.make(**options)
    assert type(coder) is cls
    assert coder.cheap == (cls is not OpusCoder)


def test_packets_of_a_spec() -> None:
    assert CoderSpec(Codec.OPUS, 24_000, 60, BITRATE).samples_per_packet == 1_440
    assert CoderSpec(Codec.PCM, 24_000, 1_000, BITRATE, auto=True).samples_per_packet == N
    coder = CoderSpec(Codec.PCM, 24_000, 1_000, BITRATE, auto=True).make(start=960, opus=True)
    first = coder.push(voice(N))[0]
    assert (first.first_sample, first.count) == (960, N)


def test_pcm_that_begins_in_the_middle_still_ends() -> None:
    """All samples came before a restart: the frame that says so is missing."""
    assert PcmCoder(RATE, 40, start=100).finish() == [CodedAudio(0, b"", FrameFlag.LAST)]
    assert PcmCoder(RATE, 40).finish() == []
    for start in (100, 2 * N):
        coder = auto(start=start)
        coder.adapt(BITRATE, opus=True)
        assert coder.finish() == [CodedAudio(0, b"", FrameFlag.LAST)]
