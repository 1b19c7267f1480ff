"""`python -m client` against the real server: files in every container, texts in every encoding, disks that fill up."""

import asyncio
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from client.cli.exit_codes import ExitCode
from client.sinks import CONTAINERS, kept_audio
from tests.support.client_process import Command, run
from tests.support.server import running_server

NOVEL = "第一回　话说天下大势，分久必合，合久必分。“你来了？”他问道。“我来了。”她说，声音很小。\r\n"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Programs started meanwhile cannot write a longer file, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_flac_holds_the_samples_of_the_wav(tmp_path: Path) -> None:
    async with running_server() as url:
        for name in ("a.wav", "a.flac", "a.opus"):
            ended = await run(tmp_path, "say", "One sentence. 第二句。", "-o", name, "--stats", f"{name}.json", url=url)
            assert ended.code == 0, ended.err
        piped = await run(
            tmp_path, "say", "One sentence. 第二句。", "-o", "-", "--container", "flac", "--quiet", url=url
        )
    wav, _ = soundfile.read(tmp_path / "a.wav", dtype="int16")
    flac, rate = soundfile.read(tmp_path / "a.flac", dtype="int16")
    np.testing.assert_array_equal(flac, wav)
    assert rate == 24_000
    assert len(soundfile.read(tmp_path / "a.opus")[0]) == len(wav)
    assert json.loads((tmp_path / "a.flac.json").read_text())["samples"] == len(wav)
    (tmp_path / "piped.flac").write_bytes(piped.out)
    with av.open(str(tmp_path / "piped.flac")) as file:
        assert sum(frame.samples for frame in file.decode(audio=0)) == len(wav)


@pytest.mark.parametrize(
    ("encoding", "note"),
    [
        ("utf-8-sig", ""),
        ("gb18030", "reading book.txt as gb18030\n"),
        ("utf-16", ""),
        ("utf-16-be", "reading book.txt as utf-16-be\n"),
    ],
)
async def test_a_novel_in_any_encoding_sounds_alike(tmp_path: Path, encoding: str, note: str) -> None:
    (tmp_path / "plain.txt").write_bytes(NOVEL.encode())
    (tmp_path / "book.txt").write_bytes(NOVEL.encode(encoding))
    async with running_server() as url:
        plain, ended, piped, said = await asyncio.gather(
            run(tmp_path, "stream", "plain.txt", url=url),
            run(tmp_path, "stream", "book.txt", url=url),
            run(tmp_path, "stream", "-", "-o", "piped.wav", url=url, stdin=NOVEL.encode(encoding)),
            run(tmp_path, "stream", "book.txt", "-o", "s.wav", "--encoding", encoding, url=url),
        )
    assert (plain.code, ended.code, piped.code, said.code) == (0, 0, 0, 0), ended.err + piped.err + said.err
    assert ended.err.startswith(note + "book.wav: ")
    assert piped.err.startswith(note.replace("book.txt", "standard input") + "piped.wav: ")
    assert said.err.startswith("s.wav: ")
    expected = (tmp_path / "plain.wav").read_bytes()
    assert (tmp_path / "book.wav").read_bytes() == expected
    assert (tmp_path / "piped.wav").read_bytes() == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj", "book.txt is a PDF document, not plain text: save it as text first"),
        (b"MZ\x90\0\x03\0\0\0\x04\0\0\0", "book.txt is no text: byte 3 is zero, as in a program"),
        ("你好。".encode() * 9 + b"\xff", "book.txt is not UTF-8: byte 81 is 0xff; repair it there, or say with --enc"),
    ],
)
async def test_what_is_no_text_is_told_in_one_line_before_anything_else(
    tmp_path: Path, data: bytes, message: str
) -> None:
    (tmp_path / "book.txt").write_bytes(data)
    ended = await run(tmp_path, "stream", "book.txt", url="ws://127.0.0.1:9")  # nobody is asked
    assert ended.code == ExitCode.USAGE
    assert ended.err.startswith(f"error: {message}")
    assert ended.err.count("\n") == 1
    assert names(tmp_path) == ["book.txt"]


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x01" + bytes(9_000), b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj"])
async def test_what_comes_in_and_is_no_text_leaves_nothing(tmp_path: Path, data: bytes) -> None:
    async with running_server() as url:
        ended = await run(tmp_path, "stream", "-", "-o", "x.wav", "--captions", "x.vtt", url=url, stdin=data)
    assert ended.code == ExitCode.USAGE
    assert ended.err.startswith("error: standard input is ")
    assert ended.err.count("\n") == 1
    assert names(tmp_path) == []


async def test_a_text_with_nothing_to_say(tmp_path: Path) -> None:
    async with running_server() as url:
        for number, text in enumerate(["……——！？。", "\n\n", "\x0c"]):
            ended = await run(tmp_path, "say", text, "-o", f"{number}.wav", url=url)
            assert ended.code == 0
            assert "no audio: there is nothing to say in this text" in ended.err
            assert soundfile.info(tmp_path / f"{number}.wav").frames == 0
        emoji = await run(tmp_path, "say", "😀", "-o", "e.opus", url=url)
        assert emoji.code == 0
        assert "Traceback" not in emoji.err
        half = await Command.start(tmp_path, "say", "ab\udced\udca0\udcbdcd", "-o", "h.wav", url=url)  # WTF-8
        assert (await half.end()).code == 0
        assert soundfile.info(tmp_path / "h.wav").frames > 0


@pytest.mark.parametrize("name", ["book.wav", "book.opus", "book.flac"])
async def test_a_full_disk_ends_it_with_one_line_and_a_file_that_plays(tmp_path: Path, name: str) -> None:
    (tmp_path / "book.txt").write_text("One more sentence of the book. " * 100)
    async with running_server() as url:
        with room_for(30_000):
            command = await Command.start(tmp_path, "stream", "book.txt", "-o", name, url=url)
        ended = await command.end()
    assert ended.code == ExitCode.OUTPUT
    assert ended.err.splitlines()[0].startswith(f"error: cannot write {name}: File too large (what came is in {name}.")
    assert "Traceback" not in ended.err
    assert not (tmp_path / name).exists()
    partial = tmp_path / f"{name}.part"
    assert partial.stat().st_size <= 30_000
    samples, _ = soundfile.read(partial)
    assert len(samples) > 10_000


@pytest.mark.parametrize("name", ["book.wav", "book.opus", "book.flac"])
async def test_a_killed_client_leaves_a_file_that_plays(tmp_path: Path, name: str) -> None:
    (tmp_path / "book.txt").write_text("One more sentence of the book. " * 3_000)
    partial = tmp_path / f"{name}.part"
    async with running_server() as url:
        command = await Command.start(tmp_path, "stream", "book.txt", "-o", name, url=url)
        async with asyncio.timeout(10):
            while size_of(partial) < 40_000:
                await asyncio.sleep(0.01)
        command.process.kill()
        await command.process.wait()
    found = kept_audio(tmp_path / name, CONTAINERS[partial.with_suffix("").suffix])
    assert found is not None
    assert found.samples > 10_000
    played, _ = soundfile.read(partial)
    assert found.samples / 3 < len(played) <= found.samples
    assert np.abs(played).max() > 0.1


async def test_a_device_that_is_full(tmp_path: Path) -> None:
    async with running_server() as url:
        ended = await run(tmp_path, "say", "Hello there.", "-o", "/dev/full", "--container", "wav", url=url)
    assert ended.code == ExitCode.OUTPUT
    assert ended.err == "error: cannot write /dev/full: No space left on device\n"


async def test_ten_megabytes_without_punctuation(tmp_path: Path) -> None:
    """They are read as needed: what the client holds does not grow with the text."""
    path = tmp_path / "book.txt"
    path.write_bytes("没有标点的文字".encode("gb18030") * 750_000)
    async with running_server() as url:
        command = await Command.start(tmp_path, "stream", "book.txt", "-o", "-", "--container", "raw", url=url)
        assert command.process.stdout is not None
        received = 0
        while received < 2_000_000:
            received += len(await command.process.stdout.read(65_536))
        status = await asyncio.to_thread(Path(f"/proc/{command.process.pid}/status").read_text)
        command.process.kill()
        await command.process.wait()
    peak_kb = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    assert peak_kb < 120_000


async def test_a_named_pipe_is_read_as_it_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    async with running_server() as url:
        command = await Command.start(tmp_path, "stream", "fifo", "-o", "a.wav", url=url)
        descriptor = os.open(tmp_path / "fifo", os.O_WRONLY)
        os.write(descriptor, NOVEL.encode())
        os.close(descriptor)
        ended = await command.end()
    assert ended.code == 0, ended.err
    assert soundfile.info(tmp_path / "a.wav").frames > 24_000
