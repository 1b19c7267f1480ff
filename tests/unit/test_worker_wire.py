"""What gateways and workers say to each other comes out as it went in, however the bytes are cut; nothing else does."""

import dataclasses
import math
import struct
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cache.counts import CacheSize, CacheUse
from server.cluster.base import Capacity, StepReport
from server.cluster.workers import messages as m
from server.cluster.workers.wire import HEAD, FrameReader, WireError, encode
from server.engines.base import RenderPlan, WordTiming
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.text.tokens import Boundary, Cut, CutCause

CUT = Cut(3, 5, "你好 \ud83d", Boundary.CLAUSE, CutCause.SOFT_FLUSH, "en")
REQUEST = SegmentRequest(
    id=7,
    cut=CUT,
    voice="zh-baker",
    sample_rate=44_100,
    speed=1.1,
    pitch=0.7,
    volume=1 / 3,
    seed=2**32 - 1,
    instruct="softly",
    lexicon={"SQL": "sequel", "行": "háng"},
    plan=RenderPlan("block", (100, 250)),
    before="先生，",
    codes=(0, 6_560, 65_535),
)
AT_THE_GATEWAY = ("parts", "origin", "reported")  # what it alone must know of a request
WORDS = (WordTiming("你好", 3, 5, 0, 2_400), WordTiming("\ud83d", 5, 6, 2_400, 2_400))

EXAMPLES: list[m.Message] = [
    m.Synthesize(1, REQUEST, 12_345, "alice"),
    m.Synthesize(2**32 - 1, dataclasses.replace(REQUEST, lexicon=None, plan=RenderPlan())),
    m.Next(3, math.inf),
    m.Next(3, -0.25, first=True),
    m.Cancel(4),
    m.Ping(),
    m.Hello(4_711, {"name": "tone", "voices": [{"id": "x"}]}),
    m.Audio(5, RenderedChunk(bytes(range(256)), WORDS)),
    m.Audio(5, RenderedChunk(b"", WORDS)),
    m.Audio(5, RenderedChunk(bytes(range(20)), WORDS, codes=(65_535, 0, 1))),
    m.Audio(5, RenderedChunk(b"", codes=(258,))),
    m.Audio(5, RenderedChunk(b"\x00\x01" * 300_000)),
    m.End(6),
    m.Failed(7, "engine", "no such voice", transient=True, failure="not_finite", trace="Traceback: ..."),
    m.Failed(7, "unavailable", "starting", retry_after_s=2.5),
    m.Load(Capacity(12.5, 0.03, 4, 2, 0.125, 1, CacheSize(20, 5_000_000_000)), 17),
    m.Stepped(StepReport(0.012, 3, 0.6, first=True, padding=0.19, context=CacheUse(3, 2, 1))),
    m.Pong(2**40),
    m.Leaving("hung", (3, 2**32 - 1)),
    m.Leaving("stopping"),
    m.Learn(7, b"RIFF\0\xff", "你好\ud800"),
    m.Learn(8, b"", ""),
    m.Learnt(7, bytes(range(256))),
    m.Failed(7, "recording", "the recording is silent"),
]


def test_there_is_an_example_of_every_message() -> None:
    assert {type(example) for example in EXAMPLES} == set(get_args(m.Message))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_message_comes_out_as_it_went_in(example: m.Message) -> None:
    (received,) = FrameReader().feed(b"".join(encode(example)))
    assert received == example
    assert type(received) is type(example)


def test_every_field_of_a_request_travels() -> None:
    """One that is added to `SegmentRequest` and not to the wire would be lost."""
    (received,) = FrameReader().feed(b"".join(encode(EXAMPLES[0])))
    assert isinstance(received, m.Synthesize)
    for field in dataclasses.fields(SegmentRequest):
        if field.name in AT_THE_GATEWAY:
            continue
        value = getattr(REQUEST, field.name)
        assert value != field.default, f"the example leaves {field.name} at its default"
        assert getattr(received.request, field.name) == value


@given(st.lists(st.integers(1, 400), max_size=60))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    small = [example for example in EXAMPLES if sum(map(len, encode(example))) < 10_000]
    data = b"".join(b"".join(encode(example)) for example in small)
    reader, at = FrameReader(), 0
    received: list[m.Message] = []
    for cut in [*cuts, len(data)]:
        received += reader.feed(data[at : at + cut])
        at += cut
    assert received == small


def test_byte_by_byte() -> None:
    data = b"".join(b"".join(encode(example)) for example in (EXAMPLES[0], EXAMPLES[4], EXAMPLES[7]))
    reader = FrameReader()
    received = [message for at in range(len(data)) for message in reader.feed(data[at : at + 1])]
    assert received == [EXAMPLES[0], EXAMPLES[4], EXAMPLES[7]]


def frame(kind: int, body: bytes, stream: int = 1) -> bytes:
    return HEAD.pack(len(body), kind, stream) + body


@pytest.mark.parametrize(
    "data",
    [
        frame(99, b""),
        frame(3, b"x"),  # Cancel has no body
        frame(4, b"x"),
        frame(2, b"\x00" * 8),  # Next: too short
        frame(2, b"\x00" * 10),  # and too long
        frame(1, b"[]"),
        frame(1, b"not json"),
        frame(1, b'{"a": 1}'),
        frame(17, b""),  # Audio without the length of its words
        frame(17, struct.pack("<II", 5, 0) + b"[]"),  # words beyond the body
        frame(17, struct.pack("<II", 0, 2) + b"abc"),  # codes beyond the body
        frame(17, struct.pack("<II", 0, 0) + b"abc"),  # half a sample
        frame(17, struct.pack("<II", 2, 0) + b"[]"[:1] + b"x" + b"ab"),
        frame(17, struct.pack("<II", 4, 0) + b"[[]]"),
        frame(17, struct.pack("<II", 17, 0) + b'[["a",1,2,3,"x"]]'),
        frame(16, b"[1, 2]"),
        frame(16, b'["1", 2, {}]'),
        frame(16, b"[1, 2, []]"),
        frame(19, b'["no such kind", "x", false, 0]'),
        frame(19, b'["engine", 7, false, 0]'),
        frame(20, b"\x00"),
        frame(21, b"\x00"),
        frame(22, b"\x00"),
        frame(23, b'["bored", []]'),
        frame(23, b'["hung", [-1]]'),
        frame(23, b"\xff\xff"),
        HEAD.pack(2**32 - 1, 17, 1),  # four gigabytes are not waited for
    ],
)
def test_what_no_message_looks_like_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        FrameReader().feed(data)


def read_again(messages: list[m.Message]) -> list[m.Message]:
    return FrameReader().feed(b"".join(part for message in messages for part in encode(message)))


@given(st.binary(max_size=200), st.sampled_from([1, 2, 3, 4, 16, 17, 18, 19, 20, 21, 22, 23]))
def test_bytes_at_random_are_refused_or_make_sense(body: bytes, kind: int) -> None:
    try:
        messages = FrameReader().feed(frame(kind, body))
    except WireError:
        return
    assert [type(message) for message in messages] == [type(again) for again in read_again(messages)]


@given(st.data())
def test_a_damaged_request_is_refused_or_makes_sense(data: st.DataObject) -> None:
    request = dataclasses.replace(REQUEST, cut=dataclasses.replace(CUT, text="你好"))
    whole = bytearray(b"".join(encode(m.Synthesize(1, request))))
    at = data.draw(st.integers(HEAD.size, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        (message,) = FrameReader().feed(bytes(whole))
    except WireError:
        return
    assert isinstance(message, m.Synthesize)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**26

    with pytest.raises(ValueError, match="longer than"):
        encode(m.Audio(1, RenderedChunk(Huge())))
