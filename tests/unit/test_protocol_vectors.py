"""The committed test vectors are what the code makes, and they say everything."""

import json
from dataclasses import fields
from typing import Any

import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_client, decode_server
from protocol.errors import ErrorCode
from tests.support import protocol_vectors
from tests.support.protocol_samples import FULL_MESSAGES
from tests.support.protocol_vectors import FILES, FOLDER


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("name", FILES)
def test_committed_vectors_are_current(name: str) -> None:
    committed = (FOLDER / name).read_text(encoding="utf-8")
    again = f"run `python -m {protocol_vectors.__name__}`"
    assert committed == protocol_vectors.text_of(name), f"protocol/vectors/{name} is out of date: {again}"


def test_there_is_no_other_file() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == set(FILES)


def test_every_message_is_there_in_full() -> None:
    cases = load("messages.json")["cases"]
    for cls in (*c.CLIENT_MESSAGES, *s.SERVER_MESSAGES):
        names = [case["name"] for case in cases if case["fields"]["type"] == cls.type]
        assert f"{cls.type}: all fields" in names
    for case in cases:
        decode = decode_client if case["direction"] == "client" else decode_server
        assert decode(case["text"]) == decode(case["encoded"])


def test_every_field_has_a_value_besides_its_default() -> None:
    for message in FULL_MESSAGES:
        same = [f.name for f in fields(message) if getattr(message, f.name) == f.default]
        assert not same, f"{message.type}: {same}"


def test_every_error_code_is_there() -> None:
    content = load("errors.json")
    assert set(content["codes"]) == {code.value for code in ErrorCode}
    assert {case["direction"] for case in content["cases"]} == {"client", "server"}
