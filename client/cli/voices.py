"""`voices`: what the server can speak with, and under which terms; having it learn a voice, and forget it."""

import argparse
import http.client
import json
import secrets
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from client.address import http_url
from client.errors import Busy, ClientError, ConnectFailed, ServerError, ServerMisbehaved, UsageError
from client.explain import BUSY_STATUSES, explain_os_error, explain_status, reason_in, retry_after_s
from client.tls import tls_context

PATH: Final = "/v1/voices"
TIMEOUT_S: Final = 10.0
LEARN_TIMEOUT_S: Final = 180.0  # for each answer of the socket: others may be learnt first
MAX_BYTES: Final = 4_194_304
MAX_RECORDING_BYTES: Final = 16_000_000  # what a server takes at most, less what goes along
_HEAD: Final = ("VOICE", "NAME", "LANGUAGES", "HZ", "FOLLOWS NO", "LICENSE")
_PARAMETERS: Final = ("speed", "pitch", "instruct", "seed")
_LONGEST_DESCRIPTION: Final = 120  # of the default voice, in the table's notes


def run_voices(args: argparse.Namespace) -> str:
    """Do what the command line says; what is to be printed. Raises ClientError."""
    if args.action == "add":
        body = add_voice(args)
    elif args.action == "remove":
        remove_voice(args, args.voice)
        return "" if args.json else f"{args.voice} is deleted\n"
    else:
        body = fetch_voices(args)
        return body.decode("utf-8", "replace") if args.json else format_voices(body)
    return body.decode("utf-8", "replace") + "\n" if args.json else format_added(body)


def fetch_voices(args: argparse.Namespace) -> bytes:
    """The server's answer, JSON. Raises ClientError."""
    status, body, retry_after = _ask(args, "GET", PATH)
    if status != 200:
        raise _refused(http_url(args.url, PATH), status, body, retry_after)
    return body


def add_voice(args: argparse.Namespace) -> bytes:
    """Send a recording; the server's answer, JSON. Raises ClientError."""
    if not args.consent:
        raise UsageError("say --consent: the speaker agrees that this voice is made and used")
    try:
        with Path(args.wav).open("rb") as file:
            recording = file.read(MAX_RECORDING_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{args.wav} cannot be read: {reason}") from None
    if not 0 < len(recording) <= MAX_RECORDING_BYTES:
        raise UsageError(f"{args.wav} must have from 1 to {MAX_RECORDING_BYTES:,} bytes: 3 to 30 s of one speaker")
    fields = {"text": args.text, "name": args.name, "consent": "true"}
    kind, form = _form({name: value for name, value in fields.items() if value}, recording)
    headers = {"Content-Type": kind}
    status, body, retry_after = _ask(args, "POST", PATH, form, headers, timeout_s=LEARN_TIMEOUT_S)
    if status != 201:
        raise _refused(http_url(args.url, PATH), status, body, retry_after)
    return body


def remove_voice(args: argparse.Namespace, voice: str) -> None:
    """Have the server forget a voice. Raises ClientError."""
    path = f"{PATH}/{quote(voice, safe='')}"
    status, body, retry_after = _ask(args, "DELETE", path)
    if status != 204:
        raise _refused(http_url(args.url, path), status, body, retry_after)


def _refused(address: str, status: int, body: bytes, retry_after: str | None) -> ClientError:
    """What an answer that is no success means."""
    if status in BUSY_STATUSES:
        return Busy(round(retry_after_s(retry_after) * 1000), BUSY_STATUSES[status], reason_in(body))
    try:
        error = json.loads(body)["error"]
        code, field = str(error["code"]), error.get("field")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        code, field = "", None
    if status == 401 or not code or not reason_in(body):
        return ConnectFailed(explain_status(address, status, body))
    return ServerError(code, reason_in(body), field if isinstance(field, str) else None)


def _form(fields: Mapping[str, str], recording: bytes) -> tuple[str, bytes]:
    """A body of multipart/form-data with its `Content-Type`. The boundary is random: no recording has it inside."""
    boundary = secrets.token_hex(16)
    parts = []
    for name, value in fields.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        parts.append(head.encode() + value.encode("utf-8", "replace") + b"\r\n")
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="audio"; filename="recording"\r\n\r\n'
    parts += [head.encode(), recording, f"\r\n--{boundary}--\r\n".encode()]
    return f"multipart/form-data; boundary={boundary}", b"".join(parts)


def _ask(
    args: argparse.Namespace,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[int, bytes, str | None]:
    """Status, body and `Retry-After` of the server's answer. Raises ConnectFailed and ServerMisbehaved."""
    address = http_url(args.url, path)
    parts = urlsplit(address)
    assert parts.hostname is not None
    tls = tls_context(address, args.tls_ca)
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=tls)
        if tls is not None
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    )
    try:
        try:
            key = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
            connection.request(method, path, body, {**key, **(headers or {})})
        except (BrokenPipeError, ConnectionResetError):
            if body is None:
                raise  # else the server may have answered before it took all of the body
        response = connection.getresponse()
        answer = response.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConnectFailed(explain_os_error(address, error)) from None
    except http.client.HTTPException:
        raise ConnectFailed(f"{address} does not answer as an HTTP server: is it the right port?") from None
    finally:
        connection.close()
    if len(answer) > MAX_BYTES:
        raise ServerMisbehaved(f"{address} sends more than {MAX_BYTES} bytes: is it a CosyStream server?")
    return response.status, answer, response.getheader("Retry-After")


def format_added(body: bytes) -> str:
    """How the new voice is called. Raises ServerMisbehaved."""
    try:
        voice = json.loads(body)
        made, name = str(voice["id"]), str(voice["name"])
    except (ValueError, KeyError, TypeError):
        raise ServerMisbehaved("the new voice is not told in the expected form: is it a CosyStream server?") from None
    called = "" if name == made else f"  {_cell(name)}"
    return f'{made}{called}\nspeak with it: python -m client say --voice {made} "..."\n'


def format_voices(body: bytes) -> str:
    """A table, then each voice's notice. Raises ServerMisbehaved."""
    try:
        answer = json.loads(body)
        listed = answer["voices"] if isinstance(answer, dict) else answer
        voices: list[dict[str, Any]] = [dict(voice) for voice in listed]
        default = answer.get("default") if isinstance(answer, dict) else None
    except (ValueError, KeyError, TypeError):
        raise ServerMisbehaved("the list of voices is not in the expected form: is it a CosyStream server?") from None
    if not voices:
        return "the server has no voice\n"
    rows = [_HEAD]
    for voice in voices:
        made, name = _cell(voice.get("id")), _cell(voice.get("name"))
        mark = " *" if default is not None and voice.get("id") == default else ""
        rows.append((
            made + mark, "-" if name == made else name, _cell(voice.get("languages")), _cell(voice.get("sample_rate")),
            _follows_no(voice), _cell(voice.get("license")),
        ))  # fmt: skip
    widths = [max(_width(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = [
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    notes = [note for voice in voices for note in _notes(voice, is_default=voice.get("id") == default)]
    if default is not None:
        lines.append("* the server's default")
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _follows_no(voice: Mapping[str, Any]) -> str:
    """Which of the parameters of speech the voice does not follow."""
    followed = voice.get("parameters")
    return _cell([name for name in _PARAMETERS if name not in followed]) if isinstance(followed, list) else "-"


def _notes(voice: Mapping[str, Any], *, is_default: bool) -> list[str]:
    """What is to be known of a voice besides its row."""
    found = [voice.get("notice")]
    description = voice.get("description")
    if is_default and isinstance(description, str) and len(description) <= _LONGEST_DESCRIPTION:
        found.insert(0, description)
    return [f"{_cell(voice.get('id'))}: {_cell(text)}" for text in found if text]


def _width(text: str) -> int:
    """Columns of a terminal: Hanzi and the like take two, marks upon other characters none."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text if not _takes_no_room(each))


def _takes_no_room(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Me", "Cf")


def _cell(value: object) -> str:
    """On one line, without what a terminal would take for a command."""
    text = " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
    return "".join(each if each.isprintable() else " " for each in text).strip() or "-"
