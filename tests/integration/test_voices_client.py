"""`python -m client voices add` and `remove`, as a user runs them, and what they make of answers."""

import json
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client.cli import voices as voices_command
from client.cli.arguments import parse
from client.cli.exit_codes import ExitCode, code_of
from client.cli.voices import _refused, fetch_voices
from client.errors import Busy, ClientError, ConnectFailed, ServerError
from server.app import Server
from tests.support.client_process import run
from tests.support.server import running, url_of
from tests.support.voices import wav

ADDRESS = "http://h:1/v1/voices"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(engine_options={"cloning": True}, voices=str(tmp_path / "voices")) as server:
        yield server


async def test_a_voice_comes_and_goes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "me.wav").write_bytes(wav())
    url = url_of(server)
    ended = await run(tmp_path, *"voices add --wav me.wav --name Me --consent".split(), url=url)
    assert (ended.code, ended.err) == (0, "")
    voice, name = ended.out.decode().splitlines()[0].split()
    assert name == "Me"
    ended = await run(tmp_path, "voices", url=url)
    assert f"\n{voice}  Me          zh en      24000  instruct    own recording\n" in ended.out.decode()
    ended = await run(tmp_path, "say", "hi", "--voice", voice, "-o", "hi.wav", url=url)
    assert ended.code == 0
    assert (tmp_path / "hi.wav").stat().st_size > 1_000
    ended = await run(tmp_path, "voices", "remove", voice, url=url)
    assert (ended.code, ended.out.decode()) == (0, f"{voice} is deleted\n")
    ended = await run(tmp_path, "voices", "remove", voice, url=url)
    assert (ended.code, ended.err) == (
        ExitCode.SERVER,
        "error: the server reports unknown_voice: you have no voice of this id (see: python -m client voices).\n",
    )


async def test_what_is_wrong_is_told_in_a_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "short.wav").write_bytes(wav(seconds=1))
    (tmp_path / "empty.wav").touch()
    with (tmp_path / "long.wav").open("wb") as file:
        file.truncate(16_000_001)
    url = url_of(server)
    for arguments, code, message in (
        ("add --wav short.wav", ExitCode.USAGE, "say --consent: the speaker agrees that this voice is made and used"),
        ("add --consent --wav none.wav", ExitCode.USAGE, "none.wav cannot be read: No such file or directory"),
        ("add --consent --wav empty.wav", ExitCode.USAGE, "empty.wav must have from 1 to 16,000,000 bytes"),
        ("add --consent --wav long.wav", ExitCode.USAGE, "long.wav must have from 1 to 16,000,000 bytes"),
        (
            "add --consent --wav short.wav",
            ExitCode.SERVER,
            "the recording must be 3 to 30 s long, not 1.0 s",
        ),
    ):
        ended = await run(tmp_path, "voices", *arguments.split(), url=url)
        assert (ended.code, ended.out) == (code, b""), ended.err
        assert message in ended.err
        assert ended.err.count("\n") == 1
    assert not server.voices.ids()


def test_options_may_stand_on_either_side_of_the_action() -> None:
    for line in ("--url h:1 --api-key k --json list", "list --url h:1 --api-key k --json"):
        args = parse(["voices", *line.split()])
        assert (args.action, args.url, args.api_key, args.json) == ("list", "h:1", "k", True)
    args = parse(["voices", "--url", "h:1", "remove", "own-1"])
    assert (args.action, args.url, args.voice, args.json) == ("remove", "h:1", "own-1", False)
    assert parse(["voices"]).action is None


def _body(code: str, message: str, field: str | None = None) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "field": field}}).encode()


def test_what_answers_mean() -> None:
    busy = _refused(ADDRESS, 503, _body("unavailable", "too many voices are being learnt"), "3")
    assert isinstance(busy, Busy)
    assert (busy.retry_after_ms, code_of(busy)) == (3_000, ExitCode.BUSY)
    refused = _refused(ADDRESS, 422, _body("bad_value", "the recording is silent", "audio"), None)
    assert isinstance(refused, ServerError)
    assert str(refused) == "the server reports bad_value: the recording is silent [audio]."
    for status, body in ((401, _body("unauthorized", "an API key is needed")), (404, b"<html>"), (500, b"[]")):
        assert isinstance(_refused(ADDRESS, status, body, None), ConnectFailed)


@pytest.mark.parametrize(("status", "code"), [(503, ExitCode.BUSY), (401, ExitCode.CONNECT), (404, ExitCode.CONNECT)])
def test_a_list_that_is_not_given_ends_with_the_code_of_its_cause(
    status: int, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voices_command, "_ask", lambda *_: (status, b"", None))
    with pytest.raises(ClientError) as failure:
        fetch_voices(Namespace(url="h:1", api_key=None, tls_ca=None))
    assert code_of(failure.value) is code
