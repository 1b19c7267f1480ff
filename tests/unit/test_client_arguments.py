"""What a user may ask for, what is refused, and in which words; text read from anywhere."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client.address import http_url, stream_url
from client.cli.arguments import build_parser
from client.cli.exit_codes import MEANINGS, VOICES_MEANINGS, ExitCode, code_of
from client.cli.plan import Plan, make_plan
from client.cli.telling import told
from client.cli.text_source import paced
from client.cli.voices import format_added, format_voices
from client.errors import Busy, ConnectFailed, DigestMismatch, OutputFailed, ServerError, ServerLost, UsageError


def plan_of(*arguments: str, terminal: bool = False) -> Plan:
    return make_plan(build_parser().parse_args(arguments), stdout_is_terminal=terminal)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "output", "container", "format_"),
    [
        (("stream", "books/one.txt"), "one.wav", "wav", "pcm"),
        (("stream", "-"), "speech.wav", "wav", "pcm"),
        (("say", "hello", "world"), "speech.wav", "wav", "pcm"),
        (("say", "x", "-o", "a.OPUS"), "a.OPUS", "ogg", "opus"),
        (("say", "x", "-o", "a.ogg", "--format", "opus"), "a.ogg", "ogg", "opus"),
        (("say", "x", "-o", "a.pcm"), "a.pcm", "raw", "pcm"),
        (("say", "x", "-o", "a.wav", "--format", "opus"), "a.wav", "wav", "opus"),
        (("say", "x", "-o", "-"), "-", "wav", "pcm"),
        (("say", "x", "-o", "-", "--format", "opus"), "-", "ogg", "opus"),
        (("say", "x", "-o", "-", "--container", "raw"), "-", "raw", "pcm"),
        (("say", "x", "-o", "noname", "--container", "ogg"), "noname", "ogg", "opus"),
        (("say", "x", "-o", "/dev/null"), "/dev/null", "wav", "pcm"),
        (("say", "x", "--play"), None, "wav", "pcm"),
        (("say", "x", "--play", "-o", "a.wav"), "a.wav", "wav", "pcm"),
    ],
)
def test_where_audio_goes(
    folder: Path, arguments: tuple[str, ...], output: str | None, container: str, format_: str
) -> None:
    plan = plan_of(*arguments)
    assert (str(plan.output) if plan.output else None, plan.container, plan.format) == (output, container, format_)


def test_a_file_that_exists_is_never_overwritten_unasked(folder: Path) -> None:
    (folder / "one.wav").write_bytes(b"a recording")
    assert str(plan_of("stream", "one.txt").output) == "one-2.wav"
    assert str(plan_of("stream", "one.txt", "-o", "one.wav").output) == "one.wav"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("say", "x", "-o", "a.mp3"), r"name it \.wav"),
        (("say", "x", "-o", "none/a.wav"), "no folder none"),
        (("say", "x", "-o", "."), "is a directory"),
        (("say", "x", "-o", "a.opus", "--format", "pcm"), "holds Opus"),
        (("say", "x", "--speed", "3"), r"--speed must be from 0\.5 to 2"),
        (("say", "x", "--seed", "-1"), "--seed must be from 0 to 4294967295, not -1"),
        (("stream", "x", "--seed", "4294967296"), "--seed must be from 0 to 4294967295, not 4294967296"),
        (("say", "x", "--instruct", "x" * 2_001), "--instruct must have at most 2,000 characters, not 2,001"),
        (("say", "x", "--bitrate", "1"), "--bitrate must be from 16000"),
        (("say", "x", "--sample-rate", "12345"), r"--sample-rate must be one of 8000, 16000, 22050"),
        (("say", "x", "-o", "a.opus", "--sample-rate", "22050"), r"one of 8000, 12000, .* for opus"),
        (("say", "x", "--captions", "a.txt"), r"name it \.vtt or \.srt"),
        (("say", "x", "--stats", "none/a.json"), "no folder none"),
    ],
)
def test_what_is_refused_says_what_is_allowed(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_of(*arguments)


def test_sound_is_not_written_to_a_terminal() -> None:
    with pytest.raises(UsageError, match="is a terminal"):
        plan_of("say", "x", "-o", "-", terminal=True)


@pytest.mark.parametrize("arguments", [("stream", "a", "--rate", "0"), ("say", "a", "--seed", "x"), ("sing", "x"), ()])
def test_wrong_arguments_end_with_the_usage_code(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit_:
        build_parser().parse_args(arguments)
    assert exit_.value.code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *[(("say", "a", f"--{name}", "abc"), f"--{name} must be a whole number, not 'abc' (see {{}} say --help)")
          for name in ("seed", "bitrate", "sample-rate")],
        *[(("say", "a", f"--{name}", "nan"), f"--{name} must be a number, not 'nan' (see {{}} say --help)")
          for name in ("speed", "pitch", "volume")],
        (("stream", "a", "--rate", "0"), "--rate must be a number above 0, not '0' (see {} stream --help)"),
        (
            ("say", "a", "--busy-wait", "soon"),
            "--busy-wait must be a number of seconds from 0 on, not 'soon' (see {} say --help)",
        ),
        (("say", "a", "--no\nsuch"), "unrecognized arguments: --no such (see {} --help)"),
        (
            ("voices", "add"),
            "the following arguments are required: --wav (see {} voices add --help)",
        ),
        ((), "the following arguments are required: COMMAND (see {} --help)"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        build_parser().parse_args(arguments)
    assert exit_.value.code == ExitCode.USAGE
    assert capsys.readouterr() == ("", f"error: {said.format('python -m client')}\n")


@pytest.mark.parametrize("name", ["seed", "bitrate", "sample-rate"])
def test_a_number_of_any_length_is_refused_in_order(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"^--{name} must be "):
        plan_of("say", "x", f"--{name}", "9" * 400)


def test_help_explains_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    text = build_parser().format_help()
    for code in ExitCode:
        assert f"{code.value:3}  {MEANINGS[code]}" in text
    for action in ([], ["list"], ["add"], ["remove"]):
        with pytest.raises(SystemExit):
            build_parser().parse_args(["voices", *action, "--help"])
        text = capsys.readouterr().out
        assert "spoken" not in text
        for code, meaning in VOICES_MEANINGS.items():
            assert f"{code.value:3}  {meaning}" in text


def test_a_server_error_is_told_by_the_option() -> None:
    refused = ServerError("unsupported", "the voice a follows no instruct: leave it out", "start.instruct")
    assert (
        told(refused) == "the server reports unsupported: the voice a follows no instruct: leave it out [--instruct]."
    )
    assert (refused.field, "[start.instruct]" in str(refused)) == ("start.instruct", True)  # as programs know it
    unknown = ServerError("unknown_voice", "open.voice must be a, not 'b'", "open.voice")
    assert told(unknown) == (
        "the server reports unknown_voice: --voice must be a, not 'b' (see: python -m client voices)."
    )
    other = ServerError("bad_message", "open.sample_rate must be 8000", "open.sample_rate", retryable=True)
    assert told(other) == "the server reports bad_message: --sample-rate must be 8000. Trying again may help."
    for error in (ServerError("bad_value", "the recording is silent", "audio"), UsageError("no")):
        assert told(error) == str(error)


def test_errors_have_codes_of_their_own() -> None:
    errors = [ServerError("x", "y"), DigestMismatch("x"), UsageError("x"), ConnectFailed("x"), ServerLost("x")]
    assert [code_of(error) for error in [*errors, OutputFailed("x"), Busy(1)]] == [1, 1, 2, 3, 4, 5, 6]


# ---- addresses ----


@pytest.mark.parametrize(
    ("given_", "stream"),
    [
        ("ws://127.0.0.1:8765", "ws://127.0.0.1:8765/v1/stream"),
        ("localhost:8765", "ws://localhost:8765/v1/stream"),
        ("http://h:1/", "ws://h:1/v1/stream"),
        ("https://speech.example", "wss://speech.example/v1/stream"),
        ("wss://h/tts/v1/stream", "wss://h/tts/v1/stream"),
        ("[::1]:8765", "ws://[::1]:8765/v1/stream"),
    ],
)
def test_addresses(given_: str, stream: str) -> None:
    assert stream_url(given_) == stream


@pytest.mark.parametrize("wrong", ["", "ftp://h", "ws://", "ws://h:port", "ws://h:99999", "ws://h:0", "ws://[::1"])
def test_wrong_addresses(wrong: str) -> None:
    with pytest.raises(ConnectFailed, match="no server address"):
        stream_url(wrong)


def test_the_address_of_voices() -> None:
    assert http_url("wss://h:9/v1/stream", "/v1/voices") == "https://h:9/v1/voices"


# ---- text ----


async def test_pacing() -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "abc"
        yield "defghijkl"

    loop = asyncio.get_running_loop()
    start = loop.time()
    got = [(piece, loop.time() - start) async for piece in paced(pieces(), 100)]
    assert "".join(piece for piece, _ in got) == "abcdefghijkl"
    sent = 0
    for piece, when in got:
        sent += len(piece)
        assert when >= (sent - 1) / 100 - 0.005
    assert got[0][0] == "a"


# ---- voices ----


def test_voices_as_a_table() -> None:
    body = (
        b'{"default": "zh-1", "voices": ['
        b'{"id": "zh-1", "languages": ["zh", "en"], "sample_rate": 24000, "license": "MIT", "notice": "Not for sale.",'
        b' "description": "Reads news.", "parameters": ["speed"]},'
        b'{"id": "en-2", "languages": ["en"], "sample_rate": 22050, "license": "Apache-2.0", "description": "x"}]}'
    )
    assert format_voices(body).splitlines() == [
        "VOICE   NAME  LANGUAGES  HZ     FOLLOWS NO           LICENSE",
        "zh-1 *  -     zh en      24000  pitch instruct seed  MIT",
        "en-2    -     en         22050  -                    Apache-2.0",
        "* the server's default",
        "",
        "zh-1: Reads news.",
        "zh-1: Not for sale.",
    ]


def test_names_of_voices_stand_in_columns_whatever_their_script() -> None:
    """A Hanzi takes two columns of a terminal, a mark upon a letter none; an unnamed voice is called by its id."""
    names = ("安娜", "Ame\u0301lie", "own-3", "two\nlines\x1b[2J")
    parameters = ["instruct", "pitch", "seed", "speed"]
    voices = [
        {"id": f"own-{number}", "name": name, "license": "own recording", "own": True, "parameters": parameters}
        for number, name in enumerate(names, 1)
    ]
    assert format_voices(json.dumps({"default": None, "voices": voices}).encode()).splitlines() == [
        "VOICE  NAME           LANGUAGES  HZ  FOLLOWS NO  LICENSE",
        "own-1  安娜           -          -   -           own recording",
        "own-2  Ame\u0301lie         -          -   -           own recording",
        "own-3  -              -          -   -           own recording",
        "own-4  two lines [2J  -          -   -           own recording",
    ]
    assert format_added(b'{"id": "own-1", "name": "own-1"}').splitlines()[0] == "own-1"
    assert format_added('{"id": "own-1", "name": "安娜"}'.encode()).splitlines()[0] == "own-1  安娜"


def test_a_long_description_is_left_to_json() -> None:
    voice = {"id": "a", "description": "x" * 121}
    assert "xxx" not in format_voices(json.dumps({"default": "a", "voices": [voice]}).encode())


def test_a_bare_host_gets_the_usual_port() -> None:
    assert stream_url("localhost") == "ws://localhost:8765/v1/stream"
    assert stream_url("[::1]") == "ws://[::1]:8765/v1/stream"
    assert stream_url("localhost:80") == "ws://localhost:80/v1/stream"
    assert stream_url("wss://speech.example") == "wss://speech.example/v1/stream"


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (["stream", "{book}", "-o", "{folder}/out.wav"], "block"),
        (["stream", "{book}", "-o", "{folder}/out.wav", "--mode", "stream"], "stream"),
        (["stream", "{book}", "-o", "{folder}/out.wav", "--rate", "30"], "auto"),
        (["stream", "{book}", "-o", "-"], "auto"),
        (["stream", "{book}", "-o", "/dev/null"], "auto"),
        (["stream", "-", "-o", "{folder}/out.wav"], "auto"),
        (["say", "Hello.", "-o", "{folder}/out.wav"], "auto"),
        (["stream", "{book}", "--play"], "auto"),
        (["say", "Hello.", "-o", "{folder}/out.wav", "--mode", "block"], "block"),
    ],
)
def test_a_file_made_of_a_file_is_made_in_blocks(tmp_path: Path, words: list[str], mode: str) -> None:
    book = tmp_path / "book.txt"
    book.write_text("Once upon a time.")
    given = [word.format(book=book, folder=tmp_path) for word in words]
    assert plan_of(*given).mode == mode
