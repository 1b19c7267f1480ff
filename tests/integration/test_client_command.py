"""The command line as a user runs it: a process of its own, against a small server, and what it leaves behind."""

import asyncio
import json
import re
import signal
import sys
import time
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import soundfile
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from client.cli.exit_codes import ExitCode
from protocol import SUBPROTOCOL, encode
from protocol import client_messages as c
from protocol import server_messages as s
from tests.support.client_process import ROOT, Command, run
from tests.support.fake_server import (
    SAMPLES_PER_CHARACTER,
    Behaviour,
    FakeServer,
    FakeSession,
    fake_server,
    speech_of,
)

TEXT = "你好, world. A second sentence.\n"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def wav_samples(path: Path) -> bytes:
    """A WAV's samples; its header must state the true lengths."""
    data = path.read_bytes()
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    with wave.open(str(path)) as file:
        samples: bytes = file.readframes(file.getnframes())
    return samples


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


# ---- what it makes ----


async def test_a_file_becomes_a_wav_of_its_name(server: FakeServer, book: Path) -> None:
    ended = await run(book.parent, "stream", "book.txt", url=server.url)
    assert (ended.code, ended.out) == (0, b"")
    assert names(book.parent) == ["book.txt", "book.wav"]
    assert wav_samples(book.parent / "book.wav") == speech_of(0, TEXT)
    assert ended.err.startswith("book.wav: 1.5 s of audio, first sound ")
    assert server.messages[0] == c.Open(mode="block", max_lead_ms=None, max_buffer_delay_ms=None)


async def test_options_reach_the_server(server: FakeServer, tmp_path: Path) -> None:
    options = "--voice v --language zh --speed 1.5 --pitch 0.9 --volume 0.5 --sample-rate 16000 --mode block".split()
    ended = await run(tmp_path, "say", "你好", "-o", "a.pcm", *options, url=server.url)
    assert ended.code == 0
    assert server.messages[0] == c.Open(
        "v", "zh", 1.5, 0.9, 0.5, sample_rate=16_000, mode="block", max_lead_ms=None, max_buffer_delay_ms=None
    )
    assert (tmp_path / "a.pcm").read_bytes() == speech_of(0, "你好")


async def test_standard_input_is_spoken_as_it_arrives(server: FakeServer, tmp_path: Path) -> None:
    command = await Command.start(tmp_path, "stream", "-", "-o", "-", "--container", "raw", url=server.url)
    assert command.process.stdin is not None
    assert command.process.stdout is not None
    for byte in "你好。".encode():
        command.process.stdin.write(bytes([byte]))
        await command.process.stdin.drain()
        await asyncio.sleep(0.01)
    first = await command.process.stdout.readexactly(2 * 3 * SAMPLES_PER_CHARACTER)  # while input is still open
    assert first == speech_of(0, "你好。")
    ended = await command.end(b"Bye")
    assert (ended.code, ended.out) == (0, speech_of(3, "Bye"))


async def test_a_stream_to_standard_output_has_one_header(server: FakeServer, tmp_path: Path) -> None:
    ended = await run(tmp_path, "say", TEXT, "-o", "-", url=server.url)
    assert ended.out[:8] == b"RIFF\xff\xff\xff\xff"
    assert ended.out.count(b"RIFF") == 1
    assert ended.out[44:] == speech_of(0, TEXT)
    assert names(tmp_path) == []


async def test_standard_output_may_be_a_file(server: FakeServer, book: Path) -> None:
    path = book.parent / "out.wav"
    with path.open("wb") as out, book.open("rb") as text:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "client", "stream", "-", "-o", "-", "--url", server.url,
            cwd=ROOT, stdin=text, stdout=out, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert await process.wait() == 0
    assert path.read_bytes()[44:] == speech_of(0, TEXT)


@pytest.mark.parametrize("name", ["out.opus", "out.ogg"])
async def test_opus_is_stored_as_it_was_sent(server: FakeServer, book: Path, name: str) -> None:
    ended = await run(book.parent, "stream", "book.txt", "-o", name, "--stats", "s.json", url=server.url)
    assert ended.code == 0, ended.err
    decoded, rate = soundfile.read(book.parent / name)
    samples = len(TEXT) * SAMPLES_PER_CHARACTER
    assert (rate, len(decoded)) == (24_000, samples)
    stats = json.loads((book.parent / "s.json").read_bytes())
    assert (stats["samples"], stats["audio_s"], stats["format"]) == (samples, samples / 24_000, "opus")


async def test_opus_on_the_wire_can_become_a_wav(server: FakeServer, book: Path) -> None:
    ended = await run(book.parent, "stream", "book.txt", "--format", "opus", "-o", "out.wav", url=server.url)
    assert ended.code == 0, ended.err
    assert len(wav_samples(book.parent / "out.wav")) == 2 * len(TEXT) * SAMPLES_PER_CHARACTER


async def test_statistics(server: FakeServer, book: Path) -> None:
    ended = await run(book.parent, "stream", "book.txt", "-o", "o.wav", "--stats", "s.json", "--quiet", url=server.url)
    assert (ended.code, ended.err) == (0, "")
    stats = json.loads((book.parent / "s.json").read_bytes())
    assert {"ttfa_ms", "ttfa_clause_ms", "audio_s", "wall_s", "rtf", "stalls", "bytes", "segments", "samples", "digest",
            "voice", "format", "server", "ok", "error"} <= set(stats)  # fmt: skip
    samples = len(TEXT) * SAMPLES_PER_CHARACTER
    assert (stats["ok"], stats["samples"], stats["bytes"], stats["segments"]) == (True, samples, 2 * samples, 3)
    assert (stats["voice"], stats["format"], stats["characters"]) == ("fake", "pcm", len(TEXT))
    assert 0 < stats["ttfa_ms"] < 1_000
    assert len(stats["digest"]) == 64


@pytest.mark.parametrize("kind", ["vtt", "srt"])
async def test_captions(server: FakeServer, book: Path, kind: str) -> None:
    ended = await run(book.parent, "stream", "book.txt", "-o", "o.wav", "--captions", f"c.{kind}", url=server.url)
    assert ended.code == 0
    text = (book.parent / f"c.{kind}").read_text(encoding="utf-8")
    if kind == "vtt":
        assert text.startswith("WEBVTT\n\n00:00:00.000 --> ")
        assert "你<00:00:00.050>好, <00:00:00.200>w" in text
    else:
        assert text.startswith("1\n00:00:00,000 --> 00:00:00,550\n你好, world.\n\n2\n")


async def test_the_speed_of_a_language_model(server: FakeServer, tmp_path: Path) -> None:
    ended = await run(tmp_path, "say", "x" * 20, "-o", "a.wav", url=server.url)
    quick = ended.took_s
    (tmp_path / "t.txt").write_text("x" * 20)
    ended = await run(tmp_path, "stream", "t.txt", "--rate", "30", "-o", "b.wav", url=server.url)
    assert ended.took_s - quick > 0.4
    assert wav_samples(tmp_path / "b.wav") == wav_samples(tmp_path / "a.wav")
    assert max(len(message.text) for message in server.of(c.Text)[1:]) <= 3


async def test_progress_is_one_line(server: FakeServer, book: Path) -> None:
    server.behaviour.frame_delay_s = 0.02
    ended = await run(book.parent, "stream", "book.txt", "--progress", url=server.url)
    assert ended.err.count("\n") == 1
    assert "\r0 of 30 characters (0 %), 0.0 s of audio\r" in ended.err
    counts = [int(count) for count in re.findall(r"\r(\d+) of 30 characters", ended.err)]
    assert counts == sorted(counts)
    assert len(set(counts)) > 5  # words, not only the two segments


async def test_no_text_gives_a_valid_empty_file_and_says_so(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    ended = await run(tmp_path, "stream", "empty.txt", url=server.url)
    assert ended.code == 0
    assert "nothing to say" in ended.err
    assert wav_samples(tmp_path / "empty.wav") == b""
    ended = await run(tmp_path, "stream", "empty.txt", "-o", "e.opus", url=server.url)
    assert ended.code == 0
    assert (tmp_path / "e.opus").read_bytes().count(b"OggS") == 3


async def test_play_without_a_device_writes_the_file_and_says_so(server: FakeServer, tmp_path: Path) -> None:
    ended = await run(tmp_path, "say", "hi", "--play", url=server.url)
    assert ended.code == 0
    assert ended.err.startswith("cannot play: ")
    assert "writing speech.wav instead" in ended.err
    assert wav_samples(tmp_path / "speech.wav") == speech_of(0, "hi")


async def test_voices(server: FakeServer, tmp_path: Path) -> None:
    ended = await run(tmp_path, "voices", url=server.url)
    assert ended.code == 0
    assert ended.out.decode().splitlines() == [
        "VOICE   NAME  LANGUAGES  HZ     FOLLOWS NO  LICENSE",
        "fake *  -     zh en      24000  -           MIT",
        "* the server's default",
        "",
        "fake: Not for sale.",
    ]
    ended = await run(tmp_path, "voices", "--json", url=server.url)
    assert json.loads(ended.out)["default"] == "fake"


# ---- what goes wrong ----


async def close_1000(session: FakeSession) -> None:
    await session.socket.close(1000)


async def close_1011(session: FakeSession) -> None:
    await session.socket.close(1011, "InternalError: engine died")


async def engine_failed(session: FakeSession) -> None:
    await session.send(s.Error("engine_failed", "engine died", None, True))
    await session.socket.close(1011)


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        (close_1000, ExitCode.LOST, "before the audio was complete"),
        (close_1011, ExitCode.LOST, "InternalError: engine died"),
        (engine_failed, ExitCode.SERVER, "engine_failed: engine died"),
    ],
)
@pytest.mark.parametrize("name", ["out.wav", "out.opus", "out.pcm"])
async def test_a_server_that_fails_half_way(how: object, code: int, said: str, name: str, tmp_path: Path) -> None:
    behaviour = Behaviour(fail_after=3, how=how)  # type: ignore[arg-type]  # parametrised
    (tmp_path / name).write_bytes(b"from an earlier run")
    async with fake_server(behaviour) as server:
        ended = await run(tmp_path, "say", TEXT, "-o", name, "--captions", "c.vtt", "--stats", "s.json", url=server.url)
    assert ended.code == code
    assert ended.took_s < 2
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err
    assert names(tmp_path) == [f"{name}.part", "s.json"]
    stats = json.loads((tmp_path / "s.json").read_bytes())
    assert stats["ok"] is False
    assert said in stats["error"]


async def test_a_server_that_hangs(tmp_path: Path) -> None:
    async with fake_server(Behaviour(silent_at_end=True, no_heartbeat=True)) as server:
        ended = await run(tmp_path, "say", TEXT, "-o", "out.wav", url=server.url)
    assert (ended.code, names(tmp_path)) == (ExitCode.LOST, ["out.wav.part"])
    assert "nothing came from the server" in ended.err
    assert ended.took_s < 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("obeys", [True, False])
async def test_an_interrupt_cancels_and_leaves_a_valid_file(
    tmp_path: Path, number: signal.Signals, obeys: bool
) -> None:
    async with fake_server(Behaviour(frame_delay_s=0.005, ignore_cancel=not obeys)) as server:
        command = await Command.start(
            tmp_path, "say", "x" * 400, "-o", "out.wav", "--captions", "c.vtt", "--progress", url=server.url
        )
        assert command.process.stderr is not None
        await command.process.stderr.readuntil(b"s of audio")
        await asyncio.sleep(0.2)
        command.process.send_signal(number)
        began = time.monotonic()
        ended = await command.end()
        assert time.monotonic() - began < 2
        assert ended.code == (ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED)
        heard = wav_samples(tmp_path / "out.wav")
        assert 0.05 * 48_000 < len(heard) < 20 * 48_000
        assert heard == speech_of(0, "x" * 400)[: len(heard)]
        (cancel,) = server.of(c.Cancel)
        assert 2 * cancel.played_sample == len(heard)
        assert names(tmp_path) == ["c.vtt", "out.wav"]
        assert "interrupted" in ended.err
        assert "Traceback" not in ended.err


async def test_an_interrupt_while_waiting_for_input(server: FakeServer, tmp_path: Path) -> None:
    command = await Command.start(tmp_path, "stream", "-", "-o", "out.wav", url=server.url)
    async with asyncio.timeout(5):
        await server.started.wait()
    command.process.send_signal(signal.SIGINT)
    async with asyncio.timeout(2):
        assert await command.process.wait() == ExitCode.INTERRUPTED
    assert wav_samples(tmp_path / "out.wav") == b""
    assert command.process.stdin is not None
    command.process.stdin.close()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("stream", "none.txt"), ExitCode.USAGE, "there is no file none.txt"),
        (("stream", "."), ExitCode.USAGE, "is a directory"),
        (("stream", "bad.txt"), ExitCode.USAGE, "bad.txt is not UTF-8: byte 6 is 0xff"),
        (("say", "x", "-o", "no/a.wav"), ExitCode.USAGE, "there is no folder no"),
        (("say", "x", "-o", "/dev/full"), ExitCode.OUTPUT, "cannot write /dev/full: No space left"),
        (("say", "x", "--url", "127.0.0.1:1"), ExitCode.CONNECT, "start the server (python -m server)"),
        (("say", "x", "--url", "nonsense://x"), ExitCode.CONNECT, "is no server address"),
        (("voices", "--url", "127.0.0.1:1"), ExitCode.CONNECT, "start the server"),
    ],
)
async def test_mistakes_are_one_line(
    server: FakeServer, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "bad.txt").write_bytes("你好".encode() + b"\xff")
    ended = await run(tmp_path, *arguments, url=server.url)
    assert ended.code == code
    assert said in ended.err
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert names(tmp_path) == ["bad.txt"]


async def test_input_that_is_no_utf_8_ends_what_it_began(server: FakeServer, tmp_path: Path) -> None:
    ended = await run(tmp_path, "stream", "-", "-o", "out.wav", url=server.url, stdin="你好。".encode() + b"\xff\xfe")
    assert ended.code == ExitCode.USAGE
    assert "standard input is not UTF-8: byte 9 is 0xff" in ended.err
    assert names(tmp_path) == []  # nothing of it was spoken


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (s.Busy(1_500), ExitCode.BUSY, "the server is full or still starting: try again in 1.5 s"),
        (s.Busy(60_000, "quota", "the quota is used up"), ExitCode.BUSY, "the quota is used up: try again in 60.0 s"),
        (
            s.Error("unknown_voice", "open.voice must be a or b", "open.voice"),
            ExitCode.SERVER,
            "--voice must be a or b (see",
        ),
    ],
)
async def test_a_server_that_refuses(answer: s.ServerMessage, code: int, said: str, tmp_path: Path) -> None:
    async with fake_server(Behaviour(first_answer=answer)) as server:
        ended = await run(tmp_path, "say", "x", "-o", "a.wav", "--busy-wait", "1", url=server.url)
    assert (ended.code, names(tmp_path)) == (code, [])
    assert said in ended.err
    assert ended.err.count("\n") == 1


async def test_a_proxy_without_a_server_is_busy(tmp_path: Path) -> None:
    async with fake_server(Behaviour(refuses=True)) as server:
        ended = await run(tmp_path, "say", "x", "-o", "a.wav", "--busy-wait", "1.5", url=server.url)
    assert (ended.code, names(tmp_path)) == (ExitCode.BUSY, [])
    assert ended.err.count("not ready yet (HTTP 503): trying again in 1.0 s\n") == 1


async def test_keys(tmp_path: Path) -> None:
    async with fake_server(Behaviour(api_key="secret")) as server:
        ended = await run(tmp_path, "say", "x", url=server.url)
        assert (ended.code, names(tmp_path)) == (ExitCode.CONNECT, [])
        assert "COSYSTREAM_API_KEY" in ended.err
        assert (await run(tmp_path, "voices", url=server.url)).code == ExitCode.CONNECT
        assert (await run(tmp_path, "voices", url=server.url, COSYSTREAM_API_KEY="secret")).code == 0
        assert (await run(tmp_path, "say", "x", url=server.url, COSYSTREAM_API_KEY="secret")).code == 0


async def test_a_reader_who_goes_away(server: FakeServer, tmp_path: Path) -> None:
    server.behaviour.frame_delay_s = 0.001
    command = await Command.start(tmp_path, "say", "x" * 400, "-o", "-", url=server.url)
    assert command.process.stdout is not None
    await command.process.stdout.readexactly(100)
    command.process.stdout._transport.close()  # type: ignore[attr-defined]  # what `| head -c 100` does
    async with asyncio.timeout(5):
        assert command.process.stderr is not None
        error = await command.process.stderr.read()
        assert await command.process.wait() == ExitCode.OUTPUT
    assert error.decode() == "error: the reader of standard output went away\n"


async def test_help_is_quick_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom client.__main__ import main\ntry:\n  main(['--help'])\nexcept SystemExit:\n  pass\n"
        "sys.exit(bool({'asyncio', 'websockets', 'numpy', 'orjson', 'ssl'} & set(sys.modules)))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=ROOT, stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0


DEVICE = """
import threading, time

class PortAudioError(Exception):
    pass

def query_devices(kind):
    return {"name": "test"}

class RawOutputStream:
    latency = 0.01

    def __init__(self, *, samplerate, channels, dtype, callback):
        self.rate, self.callback, self.running = samplerate, callback, False

    def start(self):
        self.running = True
        threading.Thread(target=self.play, daemon=True).start()

    def play(self):
        with open("heard.pcm", "wb") as heard:
            while self.running:
                time.sleep(0.01)
                out = bytearray(self.rate // 100 * 2)
                self.callback(memoryview(out), len(out) // 2, None, None)
                heard.write(out)
                heard.flush()

    def abort(self):
        self.running = False

    def close(self):
        pass
"""


async def test_playing(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "sounddevice.py").write_text(DEVICE)
    text = "A text to hear. "
    ended = await run(
        tmp_path, "say", text, "--play", "-o", "a.wav", "--stats", "s.json",
        url=server.url, PYTHONPATH=f"{tmp_path}:{ROOT}",
    )  # fmt: skip
    assert (ended.code, ended.err.count("\n")) == (0, 1), ended.err
    assert wav_samples(tmp_path / "a.wav") == speech_of(0, text)
    assert speech_of(0, text) in (tmp_path / "heard.pcm").read_bytes()
    assert ended.took_s > 0.8
    assert json.loads((tmp_path / "s.json").read_bytes())["stalls"] == 0
    assert server.messages[0] == c.Open(max_lead_ms=4_000, max_buffer_delay_ms=None)
    played = [ack.played_sample for ack in server.of(c.Ack)]
    assert played == sorted(played)
    assert len(set(played)) > 3
    assert played[-1] == len(text) * SAMPLES_PER_CHARACTER


async def test_an_interrupt_while_playing(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "sounddevice.py").write_text(DEVICE)
    command = await Command.start(tmp_path, "say", "x" * 400, "--play", url=server.url, PYTHONPATH=f"{tmp_path}:{ROOT}")
    async with asyncio.timeout(5):
        await server.started.wait()
    await asyncio.sleep(1)
    command.process.send_signal(signal.SIGINT)
    ended = await command.end()
    assert (ended.code, names(tmp_path)[:1]) == (ExitCode.INTERRUPTED, ["__pycache__"])
    (cancel,) = server.of(c.Cancel)
    assert 0.3 * 24_000 < cancel.played_sample < 1.2 * 24_000


async def test_a_server_that_says_busy_and_closes_at_once(tmp_path: Path) -> None:
    """As ours does while it loads: it does not wait for `open`."""

    async def turn_away(socket: ServerConnection) -> None:
        await socket.send(encode(s.Busy(1_000)))
        await socket.close(1013, "busy")

    async with serve(turn_away, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)]) as busy:
        port = busy.sockets[0].getsockname()[1]
        for _ in range(5):
            ended = await run(tmp_path, "say", "x", "-o", "a.wav", "--busy-wait", "0", url=f"ws://127.0.0.1:{port}")
            assert (ended.code, names(tmp_path)) == (ExitCode.BUSY, [])
            assert "full or still starting" in ended.err


async def test_a_server_that_is_busy_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    async with fake_server(Behaviour(first_answer=s.Busy(400, "loading", "it loads"))) as server:
        command = await Command.start(tmp_path, "say", "x", "-o", "a.wav", url=server.url)
        assert command.process.stderr is not None
        assert await command.process.stderr.readline() == b"it loads: trying again in 0.4 s\n"
        server.behaviour.first_answer = None
        ended = await command.end()
    assert (ended.code, names(tmp_path)) == (ExitCode.OK, ["a.wav"])


async def test_a_key_that_is_asked_for_only_after_open(tmp_path: Path) -> None:
    refusal = s.Error("unauthorized", "an API key is needed", "open.api_key")
    async with fake_server(Behaviour(first_answer=refusal)) as server:
        ended = await run(tmp_path, "say", "x", "-o", "a.wav", url=server.url)
    assert (ended.code, names(tmp_path)) == (ExitCode.CONNECT, [])
    assert "--api-key" in ended.err


async def test_the_version(tmp_path: Path) -> None:
    ended = await run(tmp_path, "--version")
    assert ended.code == 0
    assert ended.out.decode().startswith("cosystream 0.")


@pytest.mark.parametrize("missing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_missing_standard_streams(server: FakeServer, tmp_path: Path, missing: str) -> None:
    command = f'exec "{sys.executable}" -m client say hi -o "{tmp_path}/a.wav" --url {server.url} {missing}'
    process = await asyncio.create_subprocess_exec("sh", "-c", command, cwd=ROOT)
    assert await asyncio.wait_for(process.wait(), 10) == 0
    assert names(tmp_path) == ["a.wav"]


async def test_voices_that_nobody_reads(server: FakeServer, tmp_path: Path) -> None:
    base = f'"{sys.executable}" -m client voices --url {server.url}'
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f"exec {base} > /dev/full", cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == ExitCode.OUTPUT
    assert said.decode().count("\n") == 1
