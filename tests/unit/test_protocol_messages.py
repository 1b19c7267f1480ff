"""Messages: every type round-trips, every field is checked and named, and no bytes do worse than ProtocolError."""

import json
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_client, decode_server, encode
from protocol.errors import ErrorCode, ProtocolError
from protocol.fields import Check, checks_of
from protocol.limits import MAX_MESSAGE_BYTES
from tests.support.field_specs import MESSAGES, Message, allowed, bodies, required_fields, wrong_values

FIELDS = [(cls, name, check) for cls in MESSAGES for name, check, _ in checks_of(cls)]
SMALLEST: dict[str, Any] = {
    "seq": 1, "utterance": 1, "text": "a", "ms": 1, "generation": 1, "next_sample": 0, "session": "s", "token": "t",
    "epoch": 0, "generation_seen": 1, "events_seen": 0, "event": 1, "config": {}, "limits": {}, "room": 0, "segment": 0,
    "start": 0, "end": 0, "first_sample": 0, "words": [], "samples": 0, "digest": "0" * 64, "wire_digest": "0" * 64,
    "mode": "stream", "reason": "unknown", "at_sample": 0, "sample": 0, "heard_text_end": 0, "statistics": {},
    "from_sample": 0, "synthesised_end": 0, "new_token": "t", "retry_after_ms": 0, "deadline_ms": 0, "code": "internal",
    "message": "m",
}  # fmt: skip


def decode(cls: type[Message], data: str | bytes) -> Message:
    return decode_client(data) if cls in c.CLIENT_MESSAGES else decode_server(data)


def smallest(cls: type[Message]) -> dict[str, Any]:
    return {"type": cls.type, **{name: SMALLEST[name] for name in required_fields(cls)}}


def refusal(cls: type[Message], body: object) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode(cls, json.dumps(body))
    return caught.value


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.type)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_round_trip(cls: type[Message], data: st.DataObject) -> None:
    body = data.draw(bodies(cls))
    message = decode(cls, orjson.dumps(body))
    assert type(message) is cls
    for name, value in body.items():
        kept = getattr(message, name)
        if name != "words":
            assert kept == value
        else:
            assert kept == tuple(s.Word(**word) for word in value)
    text = encode(message)
    assert decode(cls, text) == decode(cls, text.encode()) == message
    assert set(orjson.loads(text)) <= set(body), "a default was written out"


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.type)
def test_the_smallest_message(cls: type[Message]) -> None:
    message = decode(cls, orjson.dumps(smallest(cls)))
    assert orjson.loads(encode(message)) == smallest(cls)


@pytest.mark.parametrize(("cls", "name", "check"), FIELDS, ids=[f"{cls.type}.{name}" for cls, name, _ in FIELDS])
def test_a_wrong_value_is_refused_with_its_field_and_what_is_allowed(
    cls: type[Message], name: str, check: Check
) -> None:
    for value in wrong_values(check):
        error = refusal(cls, smallest(cls) | {name: value})
        assert error.code is ErrorCode.BAD_MESSAGE
        assert error.field == f"{cls.type}.{name}"
        assert error.message.startswith(f"{cls.type}.{name} must be {allowed(check).removesuffix(', or null')}")


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.type)
def test_a_missing_field_is_named(cls: type[Message]) -> None:
    for name in required_fields(cls):
        body = smallest(cls)
        del body[name]
        error = refusal(cls, body)
        assert (error.code, error.field) == (ErrorCode.BAD_MESSAGE, f"{cls.type}.{name}")
        assert error.message == f"{cls.type}.{name} is missing"


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.type)
def test_unknown_fields_are_ignored(cls: type[Message]) -> None:
    body = smallest(cls)
    more = body | {"from the future": {"a": [1, None]}, "type_": 1}
    assert decode(cls, orjson.dumps(more)) == decode(cls, orjson.dumps(body))


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ({"text": "a", "start": -1, "end": 0, "first_sample": 0, "end_sample": 0}, "an object whose `start` is an"),
        ({"text": "a", "start": 0, "end": 0, "first_sample": 0}, "an object whose `end_sample` is an integer"),
        ([], "an object"),
    ],
)  # fmt: skip
def test_a_fault_inside_an_array_says_where(word: object, told: str) -> None:
    good = {"text": "a", "start": 0, "end": 1, "first_sample": 0, "end_sample": 9}
    error = refusal(s.Timing, smallest(s.Timing) | {"words": [good, word]})
    assert error.field == "timing.words"
    assert f"item 1 is {told}" in error.message


@pytest.mark.parametrize("kind", ["sing", "", "pong", "OPEN", "好" * 200, None, 1, True, [["open"]], {"type": "open"}])
def test_an_unknown_type_is_told_which_there_are(kind: object) -> None:
    error = refusal(c.Open, {"type": kind})
    assert (error.code, error.field) == (ErrorCode.UNKNOWN_TYPE, "type")
    for cls in c.CLIENT_MESSAGES:
        assert cls.type in error.message
    assert len(error.message) < 300


def test_a_server_message_is_none_of_a_client() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_server('{"type":"cue"}')
    assert caught.value.code is ErrorCode.UNKNOWN_TYPE
    assert "seq_ack" in caught.value.message


@pytest.mark.parametrize("kind", ["cue", "revise"])
def test_what_is_reserved_is_unsupported(kind: str) -> None:
    error = refusal(c.Open, {"type": kind, "seq": 1})
    assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, "type")
    assert kind in error.message


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"hello", b"{", b'{"type":"ping"', b'{"type":"ping"}x', b"[]", b"[1]", b"1", b'"ping"', b"null",
        b'{"type":"ping","id":NaN}', b'{"type":"ping","id":Infinity}', b'{"type":"open","speed":1e999}',
        b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 50_000, b"\xef\xbb\xbf{}",
        b'{"type":"text","seq":1,"text":"\\ud800"}', b'{"type":"text","seq":1,"text":"\\udc00\\ud800"}',
        b'{"type":"text","seq":1,"text":"\xff"}', b'{"type":"text","seq":1,"text":"\xed\xa0\x80"}',
        b'{"type":"text","seq":1,"text":"\xc0\x80"}', b"\xfe\xff", b"\0" * 10, b"{'type':'ping'}",
    ],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
def test_what_is_no_json_object_is_bad_json(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_client(data)
    assert (caught.value.code, caught.value.field) == (ErrorCode.BAD_JSON, None)


def test_a_lone_surrogate_in_a_python_string_is_bad_json() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_client('{"type":"text","seq":1,"text":"\ud800"}')
    assert caught.value.code is ErrorCode.BAD_JSON


def test_a_lone_surrogate_is_sent_as_a_question_mark() -> None:
    message = c.Start(1, 1, instruct="a\ud800b", lexicon={"x\udc00": "y\ud800"})
    assert decode_client(encode(message)) == c.Start(1, 1, instruct="a?b", lexicon={"x?": "y?"})
    timing = s.Timing(1, 1, 0, (s.Word("\ud800", 0, 1, 0, 1),))
    assert decode_server(encode(timing)) == s.Timing(1, 1, 0, (s.Word("?", 0, 1, 0, 1),))


def test_of_a_repeated_key_the_last_counts() -> None:
    assert decode_client('{"type":"open","type":"ping","id":1,"id":2}') == c.Ping(2)


@pytest.mark.parametrize("number", ["9007199254740992", "18446744073709551616", "1" * 400, "-1", "1.0", "1e3"])
def test_integers_are_exact_or_refused(number: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_client('{"type":"ping","id":%s}' % number)  # noqa: UP031  # braces are JSON's
    assert caught.value.code in (ErrorCode.BAD_MESSAGE, ErrorCode.BAD_JSON)


@pytest.mark.parametrize("char", ["x", "é", "好", "👋"])
def test_the_size_is_counted_in_bytes(char: str) -> None:
    empty = '{"type":"ping","x":""}'
    fits = (MAX_MESSAGE_BYTES - len(empty)) // len(char.encode())
    text = empty.replace('""', f'"{char * fits}"')
    assert decode_client(text) == decode_client(text.encode()) == c.Ping()
    longer = text + " " * (MAX_MESSAGE_BYTES + 1 - len(text.encode()))
    for data in (longer, longer.encode()):
        with pytest.raises(ProtocolError) as caught:
            decode_client(data)
        assert caught.value.code is ErrorCode.TOO_BIG
        assert str(MAX_MESSAGE_BYTES) in caught.value.message


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode()))
@example(b'{"type":' + b"[" * 300 + b"]" * 300 + b"}")
@example(b'{"type":"ping","x":' + b"[" * 900 + b"]" * 900 + b"}")
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    for read in (decode_client, decode_server):
        with suppress(ProtocolError):
            read(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), cls=st.sampled_from(MESSAGES))
def test_any_values_are_a_message_or_a_protocol_error(data: st.DataObject, cls: type[Message]) -> None:
    body = smallest(cls)
    for name, _, _ in data.draw(st.lists(st.sampled_from(checks_of(cls)), max_size=3)) if checks_of(cls) else []:
        body[name] = data.draw(JSON)
    with suppress(ProtocolError):
        message = decode(cls, json.dumps(body))
        assert decode(cls, encode(message)) == message
