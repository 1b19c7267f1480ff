"""`voices`: what the server can speak with, and under which terms."""

import http.client
import json
import ssl
from typing import Any, Final
from urllib.parse import urlsplit

from client.address import http_url
from client.errors import ConnectFailed, ServerMisbehaved
from client.explain import explain_os_error, explain_status

PATH: Final = "/v1/voices"
TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 4_194_304
_COLUMNS: Final = ("id", "languages", "sample_rate", "license")


def fetch_voices(url: str, api_key: str | None) -> bytes:
    """The server's answer, JSON. Raises ConnectFailed."""
    address = http_url(url, PATH)
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", PATH, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
        response = connection.getresponse()
        body = response.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConnectFailed(explain_os_error(address, error)) from None
    except http.client.HTTPException:
        raise ConnectFailed(f"{address} does not answer as an HTTP server: is it the right port?") from None
    finally:
        connection.close()
    if response.status != 200:
        raise ConnectFailed(explain_status(address, response.status, body))
    if len(body) > MAX_BYTES:
        raise ServerMisbehaved(f"{address} sends more than {MAX_BYTES} bytes: is it a CosyStream server?")
    return body


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
    rows = [("VOICE", "LANGUAGES", "HZ", "LICENSE")]
    for voice in voices:
        cells = [_cell(voice.get(name)) for name in _COLUMNS]
        if default is not None and voice.get("id") == default:
            cells[0] += " *"
        rows.append((cells[0], cells[1], cells[2], cells[3]))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notices = [f"{voice.get('id')}: {voice['notice']}" for voice in voices if voice.get("notice")]
    if default is not None:
        lines.append("* the server's default")
    return "\n".join([*lines, *([""] if notices else []), *notices]) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "-" if value is None or value == "" else str(value)
