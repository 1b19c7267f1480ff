"""A whole server that speaks with a tiny CosyVoice 3: what a user asks for over the network, and a `kill -9`."""

import asyncio
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest

import client
from server.session import journal
from tests.support.client_process import run
from tests.support.cosyvoice import SPEAKER, tiny_folder
from tests.support.cosyvoice_speech import RATE, recording
from tests.support.processes import ServerProcess, server_process
from tests.support.voices import BOUNDARY, CONSENT, form

TEXT = "你好，世界。Hello there."
LONG = "今天的天气很好，我们去公园散步。 The server goes down, and the sentence goes on. " * 2
CHECKED = 2 * RATE  # samples that a listener has when the server is killed


def options(folder: Path, port: int = 0) -> list[str]:
    return [
        "--port", str(port), "--engine", "cosyvoice", "--model", str(folder / "model"), "--engine-option", "device=cpu",
        "--engine-option", "threads=1", "--fallback-engine", "none", "--dead-letters", "off", "--workers", "1",
        "--store", f"file:{folder / 'sessions'}", "--voices", str(folder / "voices"),
    ]  # fmt: skip


def ask(method: str, url: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, {"Content-Type": kind}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def http(server: ServerProcess, method: str, path: str, *body: Any) -> tuple[int, bytes]:
    return await asyncio.to_thread(ask, method, server.http + path, *body)


async def said(server: ServerProcess, text: str, mode: Literal["stream", "block"] = "stream", **manner: Any) -> bytes:
    """The samples; the client has compared them with the server's digests."""
    async with client.connect(server.url, mode=mode) as session:
        return b"".join([audio.pcm async for audio in session.speak(text, **manner)])


async def learn(server: ServerProcess) -> str:
    """A voice of a recording."""
    fields: dict[str, str | bytes] = {"audio": recording(), "text": "I said a few words.", "name": "Anna", **CONSENT}
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    status, answer = await http(server, "POST", "/v1/voices", form(fields), kind)
    assert status == 201, answer
    voice: str = orjson.loads(answer)["id"]
    return voice


async def it_speaks_in_both_modes(server: ServerProcess, voice: str) -> None:
    """A block is solved as a whole, a stream in pieces: other samples, of the same codes."""
    for who in (SPEAKER, voice):
        stream, again, other, block = await asyncio.gather(
            said(server, TEXT, voice=who, seed=7),
            said(server, TEXT, voice=who, seed=7),
            said(server, TEXT, voice=who, seed=8),
            said(server, TEXT, "block", voice=who, seed=7),
        )
        assert stream == again != other
        assert RATE // 2 < len(stream) == len(block)
        assert stream != block


async def a_learnt_voice_follows_instructions(server: ServerProcess, voice: str, folder: Path) -> None:
    """Asked for in all three ways, they are the same sound."""
    plain = await said(server, TEXT, voice=voice, seed=7)
    whispered = await said(server, TEXT, voice=voice, seed=7, instruct="whisper")
    assert plain != whispered
    body = {"text": TEXT, "format": "pcm", "voice": voice, "seed": 7, "instruct": "whisper"}
    assert await http(server, "POST", "/v1/speak", orjson.dumps(body)) == (200, whispered)
    asked = ("--voice", voice, "--seed", "7", "--instruct", "whisper", "-o", "out.pcm", "--mode", "stream")
    ended = await run(folder, "say", TEXT, *asked, url=server.url)
    assert ended.code == 0, ended.err
    assert (folder / "out.pcm").read_bytes() == whispered


async def a_trained_speaker_refuses_them(server: ServerProcess, folder: Path) -> None:
    why = f"the voice {SPEAKER} follows no instruct: leave it out, or use a voice learnt from a recording"
    body = {"text": TEXT, "voice": SPEAKER, "instruct": "whisper"}
    status, answer = await http(server, "POST", "/v1/speak", orjson.dumps(body))
    assert status == 400
    assert orjson.loads(answer)["error"] == {"code": "unsupported", "field": "instruct", "message": why}
    ended = await run(folder, "say", TEXT, "--voice", SPEAKER, "--instruct", "whisper", "-o", "no.wav", url=server.url)
    assert (ended.code, ended.err) == (1, f"error: the server reports unsupported: {why} [--instruct].\n")
    assert not await asyncio.to_thread(lambda: list(folder.glob("no.wav*")))


async def a_voice_that_is_deleted_is_gone(server: ServerProcess, voice: str, folder: Path) -> None:
    assert voice in kept_voices(folder)
    assert (await http(server, "DELETE", f"/v1/voices/{voice}"))[0] == 204
    assert voice not in kept_voices(folder)
    with pytest.raises(client.ServerError, match=f"must be one of .*, not '{voice}'"):
        await said(server, TEXT, voice=voice)


async def test_it_serves_as_any_other_engine_and_outlives_a_kill(tmp_path: Path) -> None:
    """The next process takes the codes from the journal, and goes on at the very next sample."""
    tiny_folder(tmp_path / "model", 3)
    manner: dict[str, Any] = {"seed": 5, "instruct": "whisper"}
    notices: list[str] = []
    with server_process(tmp_path / "first.log", *options(tmp_path)) as first:
        voice = await learn(first)
        await it_speaks_in_both_modes(first, voice)
        await a_learnt_voice_follows_instructions(first, voice, tmp_path)
        await a_trained_speaker_refuses_them(first, tmp_path)
        undisturbed = await said(first, LONG, voice=voice, **manner)
        async with client.connect(
            first.url, voice=voice, mode="stream", max_lead_ms=1_000, on_notice=notices.append
        ) as session:
            speaking = session.speak(LONG, **manner)
            heard = b""
            async for audio in speaking:
                heard += audio.pcm
                if len(heard) >= 2 * CHECKED:
                    break_off(first, tmp_path)
                    break
            with server_process(tmp_path / "second.log", *options(tmp_path, first.port)) as second:
                heard += b"".join([audio.pcm async for audio in speaking])
                assert heard == undisturbed
                assert [notice.split(" after")[0] for notice in notices] == [
                    "the connection broke: reconnecting",
                    "resumed",
                ]
                await a_voice_that_is_deleted_is_gone(second, voice, tmp_path)


def kept_voices(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "voices").iterdir()}


def break_off(server: ServerProcess, folder: Path) -> None:
    """`kill -9`, in the middle of an utterance of which codes are written down."""
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(10)
    kept = b"".join(path.read_bytes() for path in (folder / "sessions").rglob("*") if path.is_file())
    assert f'["{journal.CODES}"'.encode() in kept
    assert b'["done"' not in kept
