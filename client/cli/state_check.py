"""What the fields of a state may be: a file that something damaged is told by it, before anything is done."""

from collections.abc import Mapping
from typing import Any, Final

from client.address import stream_url
from client.cli.encodings import known_encoding
from client.errors import ClientError
from client.sinks.base import CONTAINERS
from client.timeline import MAX_OPEN_SEGMENTS
from protocol import fields as f
from protocol import limits
from protocol.client_messages import Open, Resume, Start
from protocol.server_messages import Word

ARGUMENTS: Final = (
    "voice", "language", "speed", "pitch", "volume", "instruct", "seed", "mode", "format", "sample_rate", "bitrate",
)  # fmt: skip
"""What decides the audio, as `stream` calls it."""
STDIN: Final = "-"
_count: Final = f.integer(0, limits.U53)
_name: Final = f.string(65_536, 1)
_seconds: Final = f.number(0, limits.U53)
_MAX_WORDS: Final = 65_536  # of one segment, and of one cue


def check_state(value: Mapping[str, Any]) -> None:
    """The JSON of a state, without its head. Raises ValueError where no run of this program wrote it."""
    _state(value)
    source, session = value["source"], value["session"]
    if (source["path"] == STDIN) != (source["sha256"] == ""):
        raise ValueError("a file has a hash, and standard input none")
    whole, synced, begun = value["whole"], value["synced"], value["begun"]
    if any(before[name] > whole[name] for before in (synced, begun) for name in ("text", "samples")):
        raise ValueError("nothing is safe, and no utterance begins, behind what is whole")
    for place, mark in ((whole, value["caption_mark"]), (synced, value["synced_mark"])):
        if mark is not None and (value["captions"] is None or mark["begin"] > place["text"]):
            raise ValueError("captions are no further than the text")
        if mark is None and value["captions"] is not None and place["text"]:
            raise ValueError("a mark of the captions is missing")
    if session is not None:
        _check_session(session, value["samples"] - begun["samples"])


def _check_session(session: Mapping[str, Any], next_sample: int) -> None:
    if session["next_sample"] != next_sample:
        raise ValueError("the session goes on where the file ends")
    numbers = [segment["number"] for segment in session["segments"]]
    if numbers != sorted(set(numbers)) or (numbers and numbers[-1] > session["told"]):
        raise ValueError("segments come in order")
    blocks = session["blocks"]
    if (last := blocks["last_seq"]) is not None:
        text_end = blocks["text_end"] - (last - blocks["first_seq"]) * blocks["size"]
        if not 0 <= text_end <= blocks["size"] or last < blocks["first_seq"] - 1:
            raise ValueError("the messages do not hold the text")


def _object(**checks: f.Check) -> f.Check:
    """An object with exactly these fields."""

    def check(value: object) -> object:
        if not isinstance(value, dict) or value.keys() != checks.keys():
            raise ValueError("an object of " + ", ".join(checks))
        for name, each in checks.items():
            f.item_field(value, name, each)
        return value

    return check


def _or_null(check: f.Check) -> f.Check:
    return lambda value: None if value is None else check(value)


def _list(check: f.Check, most: int) -> f.Check:
    items = f.list_of(check)

    def bounded(value: object) -> object:
        if isinstance(value, list) and len(value) > most:
            raise ValueError(f"an array of at most {most}")
        return items(value)

    return bounded


def _hash(value: object) -> object:
    if not isinstance(value, str) or (value and (len(value) != 64 or not set(value) <= set("0123456789abcdef"))):
        raise ValueError("64 hex digits, or nothing")
    return value


def _url(value: object) -> object:
    try:
        return stream_url(str(_name(value)))
    except ClientError as error:
        raise ValueError(str(error)) from None


def _encoding(value: object) -> object:
    try:
        return known_encoding(str(_name(value)))
    except ClientError as error:
        raise ValueError(str(error)) from None


def _span(value: object) -> object:
    """Of a word: text from and to, first sample, end sample."""
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError("four numbers")
    for number in value:
        _count(number)
    if value[0] > value[1] or value[2] > value[3]:
        raise ValueError("an end behind its start")
    return value


def _bounds(value: object) -> object:
    """What a server said of itself: names and single values."""
    if not isinstance(value, dict) or any(isinstance(item, dict | list) for item in value.values()):
        raise ValueError("an object of single values")
    for name, low in (("resume_ttl_ms", 0), ("text_chars", 1), ("text_window_chars", 1), ("utterance_chars", 1)):
        f.integer(low, limits.U53)(value.get(name, low))
    return value


def _checks(cls: type) -> dict[str, f.Check]:
    return {name: check for name, check, _ in f.checks_of(cls)}


_place: Final = _object(text=_count, samples=_count)
_mark: Final = _object(
    bytes=_count, cues=_count, begin=_count, span=_or_null(_span),
    group=_list(_object(text=f.string(limits.MAX_MESSAGE_BYTES), start_s=_seconds, end_s=_seconds), _MAX_WORDS),
)  # fmt: skip
_segment: Final = _object(
    number=_count, start=_count, end=_count, first_sample=_count, is_silence=f.boolean, samples=_or_null(_count),
    digest=_hash, words=_list(_object(**_checks(Word)), _MAX_WORDS), degraded=_or_null(f.string(4_096)),
)  # fmt: skip
_asked: Final = _checks(Resume)
_speech: Final = {**_checks(Start), **_checks(Open)}
_session: Final = _object(
    session=_asked["session"], token=_asked["token"], epoch=_asked["epoch"], generation=f.integer(1, limits.U32),
    config=_bounds, limits=_bounds, utterance=f.integer(1, limits.U32), next_sample=_asked["next_sample"],
    event=_asked["events_seen"], told=_count, segments=_list(_segment, MAX_OPEN_SEGMENTS),
    blocks=_object(
        first_seq=f.integer(1, limits.U53), size=f.integer(1, limits.U53), last_seq=_or_null(_count), text_end=_count
    ),
)  # fmt: skip
_state: Final = _object(
    source=_object(path=_name, size=_count, mtime_ns=f.integer(-(2**63), 2**63 - 1), sha256=_hash),
    url=_url,
    container=f.choice(tuple(dict.fromkeys(CONTAINERS.values()))),
    arguments=_object(**{name: _speech[name] for name in ARGUMENTS}),
    whole=_place, synced=_place, begun=_place,
    samples=_count,
    text_sha256=_hash,
    encoding=_or_null(_encoding),
    captions=_or_null(_name),
    caption_mark=_or_null(_mark), synced_mark=_or_null(_mark),
    session=_or_null(_session),
    is_complete=f.boolean,
)  # fmt: skip
