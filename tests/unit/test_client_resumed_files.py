"""Files that a killed program left: never a torn sample, and gone on with at exactly the sample that is asked for."""

import errno
import os
import random
import resource
import wave
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from client.errors import OutputFailed
from client.items import Audio
from client.sinks import Container, FileSink, kept_audio
from protocol.media.opus import OpusEncoder
from protocol.media.wav import FILE_HEADER_BYTES

RATE = 24_000
SUFFIX = {"wav": ".wav", "ogg": ".opus", "flac": ".flac", "raw": ".pcm"}
CONTAINERS: list[Container] = ["wav", "ogg", "flac", "raw"]


def voice(samples: int) -> NDArray[np.int16]:
    """Something with a pitch and formants, as codecs expect it."""
    t = np.arange(samples) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(4 * t)) / RATE
    tone = sum(np.sin(k * phase) / k for k in range(1, 20)) * (0.6 + 0.4 * np.sin(20 * t))
    return np.asarray(4_000 * tone).astype("<i2")


def as_pcm(samples: NDArray[np.int16], piece: int = 2_400) -> list[Audio]:
    return [
        Audio(1, at, len(part), part.tobytes())
        for at in range(0, len(samples), piece)
        if len(part := samples[at : at + piece])
    ]


def as_opus(samples: NDArray[np.int16]) -> tuple[list[Audio], int]:
    encoder = OpusEncoder(RATE, 20, 32_000)
    packets = [*encoder.push(samples.tobytes()), *encoder.finish()]
    n, end = encoder.samples_per_packet, len(packets) - 1
    return [Audio(1, i * n, n, b"", (p,), last=i == end) for i, p in enumerate(packets)], encoder.pre_skip


def audio_of(samples: NDArray[np.int16], container: Container) -> tuple[list[Audio], int]:
    return as_opus(samples) if container == "ogg" else (as_pcm(samples), 0)


async def write_file(
    path: Path, container: Container, samples: NDArray[np.int16], *, at_sample: int | None = None, wire: str = ""
) -> FileSink:
    """A whole run, up to its end."""
    items, pre_skip = as_opus(samples) if wire == "opus" else audio_of(samples, container)
    if wire == "pcm":
        items, pre_skip = as_pcm(samples), 0
    sink = FileSink(path, container, at_sample=at_sample)
    await sink.begin(RATE, pre_skip)
    for item in items:
        await sink.write(item)
    await sink.finish(len(samples))
    return sink


async def begun_file(path: Path, container: Container, samples: NDArray[np.int16]) -> FileSink:
    """A run that is still going on."""
    items, pre_skip = audio_of(samples, container)
    sink = FileSink(path, container)
    await sink.begin(RATE, pre_skip)
    for item in items:
        await sink.write(item)
    return sink


def read(path: Path, container: Container) -> NDArray[np.int16]:
    if container == "raw":
        return np.fromfile(path, "<i2")
    samples, rate = soundfile.read(path, dtype="int16")
    assert rate == RATE
    return np.asarray(samples)


def length_by_ffmpeg(path: Path) -> int:
    with av.open(str(path)) as file:
        frames = list(file.decode(audio=0))
    return sum(frame.samples for frame in frames) * RATE // (frames[0].sample_rate or RATE)


def check(path: Path, container: Container, expected: NDArray[np.int16]) -> None:
    found = read(path, container)
    assert len(found) == len(expected)
    if container == "ogg":
        assert length_by_ffmpeg(path) == len(expected)
        error = (found.astype(float) - expected)[480:]
        assert np.square(error).sum() < np.square(expected.astype(float)).sum() / 5  # 7 dB; a shift of 1 ms is below 0
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("container", CONTAINERS)
async def test_a_file_killed_at_any_byte_is_gone_on_with_at_any_sample_it_holds(
    tmp_path: Path, container: Container
) -> None:
    rng = random.Random(container)
    samples = voice(30_001)
    path = tmp_path / f"out{SUFFIX[container]}"
    sink = await begun_file(path, container, samples)
    await sink.sync()
    image = sink.partial.read_bytes()
    await sink.abandon()
    for _ in range(12):
        sink.partial.write_bytes(image[: rng.randrange(100, len(image) + 1)])
        found = kept_audio(path, container)
        assert found is not None
        assert found.path == sink.partial
        if not found.samples:
            continue
        at = rng.choice([found.samples, rng.randint(1, found.samples)])
        resumed = await write_file(path, container, samples[at:], at_sample=at)
        assert resumed.position == len(samples)
        check(path, container, samples)
        assert not sink.partial.exists()
        path.unlink()


@pytest.mark.parametrize("container", CONTAINERS)
async def test_what_was_synced_is_there_when_the_program_is_killed(tmp_path: Path, container: Container) -> None:
    samples = voice(20_000)
    items, pre_skip = audio_of(samples, container)
    path = tmp_path / f"out{SUFFIX[container]}"
    sink = FileSink(path, container)
    await sink.begin(RATE, pre_skip)
    last = 0
    for number, item in enumerate(items):
        await sink.write(item)
        if number % 3 == 0:
            position = await sink.sync()
            found = kept_audio(path, container)
            assert found is not None
            assert found.samples >= position >= last
            behind = 2 * 480 if container == "ogg" else 0  # the last packet waits for the end; the codec's delay
            assert position >= min(item.end_sample, len(samples)) - behind
            if position and container != "raw":
                assert len(read(sink.partial, container)) == position
            last = position
    await sink.finish(len(samples))
    check(path, container, samples)


@pytest.mark.parametrize("wire", ["pcm", "opus"])
@pytest.mark.parametrize("cut", [1, 155, 156, 157, 323, 324, 325, 479, 480, 24_000, 30_003, 40_000])
async def test_an_opus_file_goes_on_in_the_same_stream(tmp_path: Path, cut: int, wire: str) -> None:
    samples = voice(40_000)
    path = tmp_path / "out.opus"
    await write_file(path, "ogg", samples)
    before = read(path, "ogg")
    await write_file(path, "ogg", samples[cut:], at_sample=cut, wire=wire)
    check(path, "ogg", samples)
    kept = max(0, (cut + 156) // 480 * 480 - 156)  # what whole packets hold is not touched
    np.testing.assert_array_equal(read(path, "ogg")[:kept], before[:kept])
    assert path.read_bytes().count(b"OpusHead") == 1


@pytest.mark.parametrize("frame_ms", [2.5, 10, 60])
@pytest.mark.parametrize("rate", [8_000, 12_000, 16_000, 48_000])
async def test_at_every_rate_and_length_of_packet(tmp_path: Path, rate: int, frame_ms: float) -> None:
    samples = voice(rate)
    encoder = OpusEncoder(rate, frame_ms, 32_000)
    packets = [*encoder.push(samples.tobytes()), *encoder.finish()]
    n = encoder.samples_per_packet
    items = [Audio(1, i * n, n, b"", (packet,)) for i, packet in enumerate(packets)]
    path = tmp_path / "out.opus"
    sink = FileSink(path, "ogg")
    await sink.begin(rate, encoder.pre_skip)
    for item in items:
        await sink.write(item)
    await sink.finish(rate)
    untouched = np.square((soundfile.read(path, dtype="int16")[0].astype(float) - samples)[480:]).sum()
    for cut in (rate - 1, rate * 2 // 3, 700, 10):
        sink = FileSink(path, "ogg", at_sample=cut)
        await sink.begin(rate, 0)
        await sink.write(Audio(1, 0, rate - cut, samples[cut:].tobytes()))
        await sink.finish(rate - cut)
        found, _ = soundfile.read(path, dtype="int16")
        assert len(found) == rate
        error = np.square((found.astype(float) - samples)[480:]).sum()
        assert error < 4 * untouched  # after as many cuts


async def test_no_click_where_an_opus_file_goes_on(tmp_path: Path) -> None:
    samples = voice(72_000)
    path = tmp_path / "out.opus"
    await write_file(path, "ogg", samples)
    untouched = read(path, "ogg").astype(float) - samples
    await write_file(path, "ogg", samples[36_000:], at_sample=36_000, wire="pcm")
    spliced = read(path, "ogg").astype(float) - samples
    near = slice(36_000 - 600, 36_000 + 600)
    assert np.square(spliced[near]).mean() < 2 * np.square(untouched).mean()
    assert np.abs(np.diff(spliced[near])).max() < 1.5 * np.abs(np.diff(untouched)).max()


async def test_many_resumptions_add_nothing(tmp_path: Path) -> None:
    samples = voice(50_000)
    cuts = [0, 7_001, 7_002, 20_480, 33_333, 50_000]
    for container in CONTAINERS:
        path = tmp_path / f"out{SUFFIX[container]}"
        for begin, end in pairwise(cuts):
            await write_file(path, container, samples[begin:end], at_sample=begin, wire="pcm" if begin else "")
        check(path, container, samples)


@pytest.mark.parametrize("container", ["wav", "flac", "ogg"])
async def test_a_file_is_not_gone_on_with_where_that_would_be_wrong(tmp_path: Path, container: Container) -> None:
    path = tmp_path / f"out{SUFFIX[container]}"
    sink = FileSink(path, container, at_sample=100)
    with pytest.raises(OutputFailed, match="No such file"):
        await sink.begin(RATE, 0)
    path.write_bytes(b"something else, of another program; long enough to hold any header that it might have")
    with pytest.raises(OutputFailed, match=r"no .* file that this program began"):
        await FileSink(path, container, at_sample=100).begin(RATE, 0)
    with pytest.raises(OutputFailed, match=r"no .* file that this program began"):
        kept_audio(path, container)
    assert path.read_bytes().startswith(b"something else")
    path.unlink()
    await write_file(path, container, voice(5_000))
    whole = path.read_bytes()
    for at_sample, rate, message in ((5_481, RATE, "holds 5"), (100, 16_000, "24000 samples a second, not 16000")):
        sink = FileSink(path, container, at_sample=at_sample)
        with pytest.raises(OutputFailed, match=message):
            await sink.begin(rate, 0)
        await sink.abandon()
    assert path.read_bytes() == whole
    assert not sink.partial.exists()


async def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    first = await begun_file(tmp_path / "out.wav", "wav", voice(100))
    with pytest.raises(OutputFailed, match="another run is writing"):
        await FileSink(first.path, "wav").begin(RATE, 0)
    with pytest.raises(OutputFailed, match="another run is writing"):
        await FileSink(first.path, "wav", at_sample=50).begin(RATE, 0)
    await first.finish(100)
    check(first.path, "wav", voice(100))


def test_nothing_is_kept_where_there_is_no_file(tmp_path: Path) -> None:
    assert kept_audio(tmp_path / "out.wav", "wav") is None


# --- more than 4 GiB ------------------------------------------------------------------------------------------------

LARGEST_RIFF = (0xFFFFFFFF - (FILE_HEADER_BYTES - 8) - 1) // 2  # samples


async def grown(path: Path, samples: int) -> None:
    """A file of that many samples, nearly all of which take no room on the disk."""
    await write_file(path, "wav", voice(1_000))
    os.truncate(path, FILE_HEADER_BYTES + 2 * samples)


async def test_a_wav_becomes_rf64_as_it_outgrows_4_gib(tmp_path: Path) -> None:
    path, more = tmp_path / "out.wav", voice(5_000)
    await grown(path, LARGEST_RIFF)
    begin = LARGEST_RIFF - 2_000
    await write_file(path, "wav", more[:2_000], at_sample=begin)
    with wave.open(str(path)) as plain:
        assert plain.getnframes() == LARGEST_RIFF
    await write_file(path, "wav", more, at_sample=begin)
    with path.open("rb") as file:
        assert file.read(4) == b"RF64"
    with soundfile.SoundFile(path) as large:
        assert (large.frames, large.samplerate, large.format) == (begin + 5_000, RATE, "RF64")
        large.seek(begin)
        np.testing.assert_array_equal(large.read(dtype="int16"), more)
        large.seek(0)
        np.testing.assert_array_equal(large.read(1_000, dtype="int16"), voice(1_000))
    await write_file(path, "wav", more[:10], at_sample=1_000)  # and back
    with wave.open(str(path)) as plain:
        assert plain.getnframes() == 1_010


async def test_an_rf64_file_goes_on(tmp_path: Path) -> None:
    path, begin = tmp_path / "out.wav", 3 << 30
    await grown(path, begin)
    await write_file(path, "wav", voice(700), at_sample=begin)
    assert soundfile.info(path).frames == begin + 700
    found = kept_audio(path, "wav")
    assert found is not None
    assert found.samples == begin + 700


# --- a disk that is full, a folder that goes ------------------------------------------------------------------------


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond that, as on a disk that fills up in the middle of a write."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("size", [1_001, 20_000, 20_001])
async def test_a_full_disk_leaves_a_valid_file_that_goes_on_later(
    tmp_path: Path, container: Container, size: int
) -> None:
    samples = voice(200_000)
    path = tmp_path / f"out{SUFFIX[container]}"
    items, pre_skip = audio_of(samples, container)
    sink = FileSink(path, container)
    await sink.begin(RATE, pre_skip)

    async def write_all() -> None:
        for item in items:
            await sink.write(item)

    with room_for(size):
        with pytest.raises(OutputFailed, match=rf"cannot write .*out\{SUFFIX[container]}: File too large"):
            await write_all()
        await sink.abandon()
    position = sink.position
    found = kept_audio(path, container)
    assert found is not None
    assert found.samples == position
    assert sink.partial.stat().st_size <= size
    if container != "raw" and position:
        assert len(read(sink.partial, container)) == position
    await write_file(path, container, samples[position:], at_sample=position)
    check(path, container, samples)


@pytest.mark.parametrize("container", CONTAINERS)
async def test_a_full_disk_takes_nothing_that_was_synced(tmp_path: Path, container: Container) -> None:
    samples = voice(80_000)
    path = tmp_path / f"out{SUFFIX[container]}"
    items, pre_skip = audio_of(samples, container)
    sink = FileSink(path, container)
    await sink.begin(RATE, pre_skip)
    begun = len(items) // 3
    for item in items[:begun]:
        await sink.write(item)
    position = await sink.sync()
    assert position

    async def write_rest() -> None:
        for item in items[begun:]:
            await sink.write(item)

    with room_for(sink.partial.stat().st_size + 100):
        with pytest.raises(OutputFailed, match="File too large"):
            await write_rest()
        await sink.abandon()
    found = kept_audio(path, container)
    assert found is not None
    assert found.samples == sink.position == position
    await write_file(path, container, samples[position:], at_sample=position)
    check(path, container, samples)


async def test_a_disk_that_is_full_at_the_end_is_told_then(tmp_path: Path) -> None:
    items, pre_skip = as_opus(voice(2_000))
    sink = FileSink(tmp_path / "out.opus", "ogg")
    await sink.begin(RATE, pre_skip)
    for item in items:
        await sink.write(item)
    with room_for(200), pytest.raises(OutputFailed, match="File too large"):
        await sink.finish(2_000)
    assert not sink.path.exists()
    assert sink.partial.exists()


async def test_a_disk_that_fails_to_take_it_is_told_by_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    sink = await begun_file(tmp_path / "out.wav", "wav", voice(100))
    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(OutputFailed, match="Input/output error"):
        await sink.sync()


async def test_a_folder_that_goes_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    sink = await begun_file(folder / "out.wav", "wav", voice(100))
    sink.partial.unlink()
    folder.rmdir()
    with pytest.raises(OutputFailed, match=r"out\.wav\.part was removed"):
        await sink.sync()
    with pytest.raises(OutputFailed, match=r"cannot write .*out\.wav"):
        await sink.finish(100)


async def test_the_header_grows_with_the_file(tmp_path: Path) -> None:
    for container in ("wav", "flac"):
        path = tmp_path / f"out.{container}"
        sink = await begun_file(path, "wav" if container == "wav" else "flac", voice(600_000))
        with suppress(OutputFailed):
            assert 600_000 - soundfile.info(sink.partial).frames < 300_000  # nobody told it to
        await sink.abandon()
        assert soundfile.info(sink.partial).frames == 600_000
