"""Malformed messages in well-formed frames: not JSON, not messages, wrong values, and good ones at the wrong time."""

import dataclasses
import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from bench._fuzz_attack import Attack, Make
from bench._light_socket import BINARY, TEXT, masked_frame
from protocol import client_messages as c

_NOT_JSON: Final = (
    "", " ", "{", "}", "[", '{"type":', '{"type":"open"', '{"type":"open"}}', "{'type':'open'}", "\ufeff{}", "NaN",
    "Infinity", '{"type":"open","speed":NaN}', '{"type":"open",}', '{"type":"open"} {"type":"open"}', "\x00",
    '{"type":"op\x00en"}', "[" * 1_000, "[" * 100_000, '{"a":' * 5_000, '{"type":"open","voice":"\\ud800"}',
    '{"type":"open","voice":"\\u00"}', "1" * 20_000, "-", "1e999", '"open"', "null", "[]", "{}", "3", "true",
    '["open"]', '{"type":null}', '{"type":3}', '{"type":["open"]}', '{"type":"' + "x" * 10_000 + '"}',
    '{"type":"Open"}', '{"type":"opened"}', '{"type":"cue"}', '{"type":"revise"}', '{"type":"open","type":"ping"}',
    '{"typ":"open"}',
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.0, 1e308, 1e-320, "",
    "x", "1", "\u0000", "\U0010ffff", "\ud83d", "x" * 20_000, "\u202e" * 200, [], [1], {}, {"a": 1}, {"": ""},
    [[[[[[]]]]]], ["x"] * 2_000, {str(number): "x" for number in range(1_100)},
)  # fmt: skip
_PLAIN: Final[dict[str, Any]] = {  # a value that is allowed, for fields that must be there
    "seq": 1, "utterance": 1, "text": "abc", "ms": 10, "generation": 1, "next_sample": 0, "session": "nobody",
    "token": "nothing", "epoch": 0, "generation_seen": 1, "events_seen": 0,
}  # fmt: skip
_OPEN: Final[dict[str, Any]] = {"type": "open", "max_buffer_delay_ms": None}  # so that no text is spoken by and by
_START: Final[dict[str, Any]] = {"type": "start", "seq": 1, "utterance": 1}
_TEXT: Final[dict[str, Any]] = {"type": "text", "seq": 2, "text": "abc"}


def _frame(message: Any) -> bytes:
    """Any value as a text message; lone surrogates stay escaped."""
    return masked_frame(
        TEXT, (message if isinstance(message, str) else json.dumps(message)).encode("utf-8", "surrogatepass")
    )


def _sequence(name: str, messages: Sequence[Any]) -> Attack:
    return Attack(name, tuple(map(_frame, messages)), upgraded=True)


def _before(chance: Random) -> list[Any]:
    """What a session did until then: nothing, open, or an utterance that is being written."""
    return chance.choice(([], [_OPEN], [_OPEN], [_OPEN, _START], [_OPEN, _START, _TEXT]))


def _plain(kind: type[Any], seq: int = 1) -> dict[str, Any]:
    """A message with what must be in it."""
    must = [each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING]
    return {"type": kind.type, **{name: _PLAIN[name] for name in must}, **({"seq": seq} if "seq" in must else {})}


def not_json(chance: Random) -> Attack:
    """Not JSON, or JSON that is no message."""
    return _sequence("not a message", [*_before(chance), chance.choice(_NOT_JSON)])


def wrong_value(chance: Random) -> Attack:
    """A field with a value of the wrong type or size; sometimes two."""
    before = _before(chance)
    kind = c.Open if not before else chance.choice(c.CLIENT_MESSAGES)
    message = _plain(kind, len(before))
    for each in chance.choices(dataclasses.fields(kind), k=chance.randrange(1, 3)):
        message[each.name] = chance.choice(_VALUES)
    return _sequence("wrong value", [*before, message])


def missing(chance: Random) -> Attack:
    """A field is left out, or there are ones that nobody knows."""
    before = _before(chance)
    message = _plain(chance.choice(c.CLIENT_MESSAGES), len(before))
    message.pop(chance.choice(sorted(message)))
    if chance.random() < 0.3:
        message |= {chance.choice(("x", "Seq", "", "__class__", "\u0000")): chance.choice(_VALUES)}
    return _sequence("missing field", [*before, message])


def wrong_time(chance: Random) -> Attack:
    """Good messages where they have no place, or with numbers that leave something out."""
    before = _before(chance)
    following = [
        _plain(chance.choice(c.CLIENT_MESSAGES), len(before) + number) for number in range(chance.randrange(1, 6))
    ]
    if chance.random() < 0.5:
        for each in following:
            if "seq" in each:
                each["seq"] = chance.choice((0, 1, 2, 3, 100, 2**53 - 1))
    return _sequence("wrong time", [*before, *following])


def wrong_ack(chance: Random) -> Attack:
    """Acks of what was never sent."""
    ack = {
        "type": "ack", "generation": chance.choice((1, 1, 2)), "utterance": chance.choice((0, 1, 2, 2**32 - 1)),
        "next_sample": chance.choice((0, 1, 10**6, 2**53 - 1)), "played_sample": chance.choice((0, 5, 2**53 - 1)),
        "event": chance.choice((0, 1, 100, 2**53 - 1)),
    }  # fmt: skip
    return _sequence("wrong ack", [_OPEN, _START, ack])


def resume(chance: Random) -> Attack:
    """Sessions that do not exist, one after the other."""
    messages = []
    for _ in range(chance.choice((1, 2, 12))):
        message = _plain(c.Resume) | {"session": chance.choice(("nobody", "../x", "\u0000", "x" * 128, "a/b", "", " "))}
        if chance.random() < 0.3:
            message[chance.choice(sorted(message))] = chance.choice(_VALUES)
        messages.append(message)
    return _sequence("resume", messages)


def binary(chance: Random) -> Attack:
    """Clients send none."""
    frames = tuple(map(_frame, _before(chance)))
    return Attack(
        "binary", (*frames, masked_frame(BINARY, chance.randbytes(chance.choice((0, 1, 28, 5_000))))), upgraded=True
    )


def many(chance: Random) -> Attack:
    """A flood of small messages that are fine one by one, and something wrong at the end."""
    kind = chance.choice(("ping", "cancel", "pause", "utterances"))
    count = chance.choice((70, 300))
    if kind == "ping":
        flood: list[Any] = [{"type": "ping", "id": number} for number in range(count)]
    elif kind == "utterances":
        flood = []
        for number in range(1, count // 2):
            flood.append({"type": "start", "seq": 2 * number - 1, "utterance": number})
            flood.append({"type": "end", "seq": 2 * number})
    else:
        flood = [{"type": kind, "seq": number} for number in range(1, count + 1)]
    return _sequence(f"many {kind}", [_OPEN, *flood, chance.choice(_NOT_JSON)])


MAKERS: Final[tuple[Make, ...]] = (
    not_json, not_json, wrong_value, wrong_value, wrong_value, missing, wrong_time, wrong_time, wrong_ack, resume,
    binary, many,
)  # fmt: skip
