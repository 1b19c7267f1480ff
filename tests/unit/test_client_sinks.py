"""Sinks: lengths that are true, files that are whole or clearly partial."""

import asyncio
import io
import os
import wave
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

from client.errors import OutputFailed
from client.items import Audio
from client.sinks import Container, FileSink, PipeSink, encoding_for, open_special
from protocol.media.opus import OpusEncoder

RATE = 24_000


def pcm(count: int) -> bytes:
    return b"".join((n * 37 % 2_000).to_bytes(2, "little") for n in range(count))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def audio(count: int, first: int = 0) -> Audio:
    return Audio(1, first, count, pcm(count))


def opus(samples: int) -> tuple[list[Audio], int]:
    """The packets of a timeline, as a server sends them, and the pre-skip."""
    encoder = OpusEncoder(RATE, 20, 32_000)
    packets = [*encoder.push(pcm(samples)), *encoder.finish()]
    n = encoder.samples_per_packet
    end = len(packets) - 1
    return [Audio(1, i * n, n, b"", (packet,), last=i == end) for i, packet in enumerate(packets)], encoder.pre_skip


@pytest.mark.parametrize("count", [0, 1, 12_127])
async def test_a_wav_states_its_true_length(tmp_path: Path, count: int) -> None:
    path = tmp_path / "out.wav"
    sink = FileSink(path, "wav")
    await sink.begin(22_050, 0)
    assert not path.exists()
    if count:
        await sink.write(audio(count))
    await sink.finish(count)
    with wave.open(str(path)) as file:
        assert (file.getnframes(), file.getframerate(), file.getnchannels(), file.getsampwidth()) == (
            count,
            22_050,
            1,
            2,
        )
        assert file.readframes(count) == pcm(count)
    data = path.read_bytes()
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    assert names(tmp_path) == [path.name]


async def test_raw_is_samples_alone(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "out.pcm", "raw")
    await sink.begin(RATE, 0)
    await sink.write(audio(100))
    await sink.finish(100)
    assert (tmp_path / "out.pcm").read_bytes() == pcm(100)


@pytest.mark.parametrize("samples", [0, 1, 479, 480, 24_000, 24_257])
async def test_an_ogg_states_its_true_length(tmp_path: Path, samples: int) -> None:
    path = tmp_path / "out.opus"
    items, pre_skip = opus(samples)
    sink = FileSink(path, "ogg")
    await sink.begin(RATE, pre_skip)
    for item in items:
        await sink.write(item)
    await sink.finish(samples)
    data = path.read_bytes()
    last = data.rindex(b"OggS")
    granule = int.from_bytes(data[last + 6 : last + 14], "little", signed=True)
    assert data[last + 5] & 4
    if samples:
        assert granule - pre_skip * 2 == samples * 2
        decoded, _ = soundfile.read(path)
        assert len(decoded) == samples


async def test_an_ogg_that_another_session_goes_on_with_loses_no_sound(tmp_path: Path) -> None:
    path = tmp_path / "out.opus"
    items, pre_skip = opus(4_800)
    sink = FileSink(path, "ogg")
    await sink.begin(RATE, pre_skip)
    for item in items[:5]:
        await sink.write(item)
    heard = 5 * 480 - pre_skip
    for item in items:  # a new encoder begins where the sound broke off
        await sink.write(replace(item, first_sample=heard + item.first_sample))
    await sink.finish(heard + 4_800)
    assert len(soundfile.read(path)[0]) == heard + 4_800


async def test_an_interrupted_file_is_valid_and_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    sink = FileSink(path, "wav")
    await sink.begin(RATE, 0)
    await sink.write(audio(500))
    await sink.interrupt()
    with wave.open(str(path)) as file:
        assert file.getnframes() == 500
    items, pre_skip = opus(5_000)
    ogg = FileSink(tmp_path / "out.opus", "ogg")
    await ogg.begin(RATE, pre_skip)
    for item in items[:4]:
        await ogg.write(item)
    await ogg.interrupt()
    decoded, _ = soundfile.read(tmp_path / "out.opus")
    assert len(decoded) == 4 * 480 - pre_skip


async def test_a_failed_file_is_partial_by_name_and_still_plays(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    path.write_bytes(b"an older one, that must not pass for the new one")
    sink = FileSink(path, "wav")
    await sink.begin(RATE, 0)
    await sink.write(audio(500))
    await sink.abandon()
    assert names(tmp_path) == ["out.wav.part"]
    with wave.open(str(sink.partial)) as file:
        assert file.getnframes() == 500


async def test_an_old_file_stays_when_nothing_could_be_begun(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    path.write_bytes(b"old")
    sink = FileSink(path, "wav")
    await sink.abandon()
    assert path.read_bytes() == b"old"


async def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "none" / "out.wav", "wav")
    with pytest.raises(OutputFailed, match=r"cannot write .*out\.wav: No such file"):
        await sink.begin(RATE, 0)
    full = FileSink(tmp_path / "out.wav", "wav")
    full.partial.symlink_to("/dev/full")
    with pytest.raises(OutputFailed, match="No space"):
        await full.begin(RATE, 0)
    await full.abandon()
    assert not full.path.exists()


@pytest.mark.parametrize(("container", "head"), [("wav", b"RIFF\xff\xff\xff\xff"), ("ogg", b"OggS"), ("raw", b"")])
async def test_a_pipe_gets_one_header_and_the_audio(container: Container, head: bytes) -> None:
    read, write = os.pipe()
    sink = PipeSink(container, write)
    items, pre_skip = opus(9_600) if container == "ogg" else ([audio(9_600)] * 20, 0)

    async def speak() -> None:
        await sink.begin(RATE, pre_skip)
        for item in items:
            await sink.write(item)
        await sink.finish(9_600 if container == "ogg" else 192_000)
        os.close(write)

    speaking = asyncio.create_task(speak())
    with os.fdopen(read, "rb") as pipe:
        data = await asyncio.to_thread(pipe.read)
    await speaking
    assert data.startswith(head)
    if container == "ogg":
        decoded, _ = soundfile.read(io.BytesIO(data))
        assert len(decoded) == 9_600
    else:
        assert data.count(b"RIFF") == (container == "wav")
        assert data.endswith(pcm(9_600) * 20)


async def test_a_reader_who_stops_reading_holds_up_the_writer_but_not_the_loop() -> None:
    read, write = os.pipe()
    sink = PipeSink("raw", write)
    await sink.begin(RATE, 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await sink.write(audio(100_000))
    os.close(read)
    with pytest.raises(OutputFailed, match="went away"):
        await sink.write(audio(100_000))
    await sink.interrupt()
    os.close(write)


async def test_a_named_pipe(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(OutputFailed, match="nobody reads"):
        open_special(path)
    read = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write = open_special(path)
    sink = PipeSink("raw", write)
    await sink.begin(RATE, 0)
    await sink.write(audio(100))
    assert os.read(read, 1_000) == pcm(100)
    os.close(read)
    os.close(write)


def test_packets_sent_again_are_stored_once() -> None:
    items, pre_skip = opus(4_800)
    again = Audio(1, 480, 960, b"", (items[1].packets[0], items[2].packets[0]))
    plain, repeated = encoding_for("ogg"), encoding_for("ogg")
    for encoding in (plain, repeated):
        encoding.head(RATE, pre_skip)
    for item in items:
        plain.body(item)
    for item in [*items[:2], again, items[1], *items[3:]]:
        repeated.body(item)
    assert repeated.tail(4_800)[28:] == plain.tail(4_800)[28:]  # all but the serial number and the checksum


def test_an_encoding_keeps_the_last_packet_until_the_end() -> None:
    items, pre_skip = opus(4_800)
    encoding = encoding_for("ogg", live=True)
    out = [encoding.head(RATE, pre_skip), *(encoding.body(item) for item in items), encoding.tail(4_800)]
    assert out[1] == b""
    assert all(part.startswith(b"OggS") for part in out[2:])
