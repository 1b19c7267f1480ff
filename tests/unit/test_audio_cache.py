"""Finished audio: which texts are the same, how one is told again at another place, and what is kept at all."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.cache.audio import AudioCache, KeptAudio, Recording, Spot, spot_of
from server.cache.counts import CacheSize, CacheUse
from server.cache.keys import BUCKET_TOKENS
from server.engines import RenderPlan, WordTiming, registry
from server.engines.rendering import Part, RenderedChunk, SegmentRequest
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause

CAPABILITIES = registry.create("tone", {}).capabilities
MIB = 1024 * 1024


def asked(text: str = "你好，", start: int = 0, *, cut: dict[str, Any] | None = None, **changes: Any) -> SegmentRequest:
    made = Cut(start, start + len(text), text, Boundary.CLAUSE, CutCause.PUNCTUATION, "zh")
    return SegmentRequest(
        **{"id": 0, "cut": replace(made, **(cut or {})), "voice": "v", "sample_rate": 24_000, **changes}
    )


def spot(request: SegmentRequest, **capabilities: Any) -> Spot:
    return spot_of(request, replace(CAPABILITIES, **capabilities))


# ---- what is the same ----

DIFFERENT: dict[str, Any] = {
    "cut": Cut(0, 3, "再见，", Boundary.CLAUSE, CutCause.PUNCTUATION, "zh"),
    "voice": "w",
    "sample_rate": 16_000,
    "speed": 1.1,
    "pitch": 1.1,
    "volume": 0.9,
    "seed": 1,
    "instruct": "whisper",
    "lexicon": {"你": "ni"},
    "before": "啊",
}
INDIFFERENT: dict[str, Any] = {
    "id": 7,
    "reported": True,
    "origin": "s1",
    "parts": (Part("clip", 0, 1, 0, "silent"),),  # never asked for here
    "codes": (1, 2),  # nor this
    "plan": RenderPlan("block", (500,)),  # to an engine that always makes the same samples
}


def test_it_is_known_of_every_field_whether_it_counts() -> None:
    assert {field.name for field in fields(SegmentRequest)} == DIFFERENT.keys() | INDIFFERENT.keys()


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_decides_the_samples_makes_another_text(name: str) -> None:
    changed = replace(asked(), **{name: DIFFERENT[name]})
    assert spot(changed).key != spot(asked()).key


@pytest.mark.parametrize("name", INDIFFERENT)
def test_what_does_not_makes_none(name: str) -> None:
    assert spot(replace(asked(), **{name: INDIFFERENT[name]})).key == spot(asked()).key


@pytest.mark.parametrize("plan", [RenderPlan("block"), RenderPlan("stream", (40,)), RenderPlan("stream", (40, 80))])
@pytest.mark.parametrize("equality", ["lsb", "none"])
def test_the_plan_counts_where_it_changes_samples(plan: RenderPlan, equality: str) -> None:
    assert spot(asked(plan=plan), equality=equality).key != spot(asked(), equality=equality).key


def test_an_engine_with_another_fingerprint_says_it_otherwise() -> None:
    assert spot(asked(), fingerprint="other").key != spot(asked()).key


def test_the_cut_counts_as_far_as_the_engine_sees_it() -> None:
    same = spot(asked()).key
    assert spot(asked(cut={"boundary": Boundary.SENTENCE})).key != same
    assert spot(asked(cut={"language": "en"})).key != same
    assert spot(asked(cut={"cause": CutCause.FLUSH})).key == same
    assert spot(asked(start=1_000)).key == same


def test_white_space_around_does_not_count_and_inside_it_does() -> None:
    same = spot(asked("hello, 你好。"))
    for text, start in (("  hello, 你好。", 2), ("\n\thello, 你好。 \n", 2), ("hello, 你好。\n", 0)):
        assert spot(asked(text, 40)) == Spot(same.key, 40 + start)
    assert spot(asked("hello,  你好。")).key != same.key


def test_white_space_is_left_alone_where_it_may_say_something() -> None:
    assert spot(asked("5 * - ")).key != spot(asked("5 * -")).key
    lexicon = {" a": "alpha"}
    assert spot(asked(" a", lexicon=lexicon)).key != spot(asked("a", lexicon=lexicon)).key


def test_a_lexicon_is_the_same_in_any_order_and_as_another_object() -> None:
    one, other = {"a": "b", "c": "d"}, {"c": "d", "a": "b"}
    assert spot(asked(lexicon=one)).key == spot(asked(lexicon=other)).key
    assert spot(asked(lexicon={"a": "bc", "d": ""})).key != spot(asked(lexicon={"a": "b", "cd": ""})).key
    assert spot(asked(lexicon={"\ud83d": "x"})).key != spot(asked(lexicon={"\ud83d": "y"})).key
    assert spot(asked(lexicon={})).key == spot(asked()).key


def test_a_number_is_the_same_whole_or_with_a_point() -> None:
    one, other = spot(asked(speed=1, pitch=1, volume=1)).key, spot(asked()).key
    assert (one, one.bucket) == (other, other.bucket)


PIECES = st.sampled_from(
    ["你好", "hello", "12.5%", "5", "kg", "，", "。", "...", "…", "# ", "- ", "* ", "-", "**", "`", "| a |", "> ", "~~",
     "[a](b)", "http://a.b", "<br>", "</p>", "&amp;", ":", '"', "“", "”", "（", "）", "/", "_", "$", "\n", " ", "\t",
     "\u3000", "\u200b", "😀", "=", "---", "\\"]
)  # fmt: skip
TEXTS = st.lists(PIECES, min_size=1, max_size=7).map("".join)
SPACES = st.text(" \t\n", max_size=3)


@given(TEXTS, SPACES, SPACES, st.integers(0, 2_000_000), st.sampled_from(["zh", "en"]))
@example("5* -", "", " ", 0, "zh")
@example("a:", " ", "\n", 3, "en")
def test_texts_with_one_key_say_the_same_words_at_their_own_places(
    text: str, before: str, behind: str, start: int, language: str
) -> None:
    one, other = (
        asked(text, cut={"language": language}),
        asked(before + text + behind, start, cut={"language": language}),
    )
    first, second = spot(one), spot(other)
    if first.key != second.key:
        return
    shift = second.start - first.start
    moved = [replace(token, start=token.start + shift, end=token.end + shift) for token in normalise(one.cut)]
    assert list(normalise(other.cut)) == moved


@given(TEXTS, TEXTS)
def test_texts_that_differ_have_different_keys(one: str, other: str) -> None:
    assert (spot(asked(one)).key == spot(asked(other)).key) <= (one.split() == other.split())


def test_two_texts_that_begin_alike_never_get_each_others_audio() -> None:
    start = "今天天气很好" * 12
    one, other = spot(asked(start + "来。")), spot(asked(start + "去。"))
    assert len(one.key.tokens) > BUCKET_TOKENS
    assert one.key.bucket == other.key.bucket
    cache = AudioCache(MIB)
    record(cache, one, RenderedChunk(b"1111"))
    assert cache.find(other) is None
    record(cache, other, RenderedChunk(b"2222"))
    for each, pcm in ((one, b"1111"), (other, b"2222")):
        kept = cache.find(each)
        assert kept is not None
        assert [chunk.pcm for chunk in kept.again(0)] == [pcm]


# ---- telling it again ----


def record(cache: AudioCache, where: Spot, *chunks: RenderedChunk) -> Recording:
    recording = Recording(cache, where)
    for chunk in chunks:
        recording.add(chunk)
    recording.keep()
    return recording


def word(start: int, first: int, end: int) -> WordTiming:
    return WordTiming("w", start, start + 1, first, end)


@st.composite
def rendered(draw: st.DrawFn) -> tuple[RenderedChunk, ...]:
    """A segment, none of whose chunks is empty; words may come with any of them."""
    sizes = draw(st.lists(st.integers(0, 20), max_size=6))
    total = sum(sizes)
    chunks = []
    at = 0
    for size in sizes:
        count = draw(st.integers(0 if size else 1, 2))
        spans = [sorted(draw(st.tuples(st.integers(0, total), st.integers(0, total)))) for _ in range(count)]
        words = tuple(word(first, first, end) for first, end in spans)
        chunks.append(RenderedChunk(bytes(range(at, at + 2 * size)), words))
        at += 2 * size
    return tuple(chunks)


@given(rendered(), st.integers(0, 130), st.integers(-50, 50))
def test_told_again_it_is_the_same_from_any_sample_on(
    chunks: tuple[RenderedChunk, ...], start: int, shift: int
) -> None:
    told = list(KeptAudio(chunks, 100).again(100 + shift, start))
    whole = b"".join(chunk.pcm for chunk in chunks)
    assert b"".join(chunk.pcm for chunk in told) == whole[2 * start :]
    assert all(chunk.pcm or chunk.words for chunk in told)
    words = [each for chunk in chunks for each in chunk.words if not start or each.end_sample > start]
    expected = [replace(each, start=each.start + shift, end=each.end + shift) for each in words]
    assert [each for chunk in told for each in chunk.words] == expected
    if not start and not shift:
        assert told == list(chunks)


# ---- what is kept ----


def test_hits_and_misses_are_counted() -> None:
    cache = AudioCache(MIB)
    assert cache.find(spot(asked())) is None
    record(cache, spot(asked()), RenderedChunk(bytes(100), (word(0, 0, 50),)))
    kept = cache.find(spot(asked(start=9)))
    assert kept is not None
    assert [each.start for chunk in kept.again(9) for each in chunk.words] == [9]
    assert cache.use == CacheUse(hits=1, misses=1)
    assert cache.size.entries == 1
    assert 100 < cache.size.bytes < 4_096


def test_what_failed_at_any_point_is_not_kept() -> None:
    cache = AudioCache(MIB)
    again = Part("engine", 0, 1, 50, "exception")
    recording = record(cache, spot(asked()), RenderedChunk(bytes(100)), RenderedChunk(bytes(100), part=again))
    assert recording.spoilt
    assert cache.find(spot(asked())) is None
    assert cache.recording == 0


def test_a_recording_ends_where_it_could_not_be_kept() -> None:
    cache = AudioCache(MIB)
    recording = Recording(cache, spot(asked()))
    for _ in range(3):
        recording.add(RenderedChunk(bytes(80_000)))
    assert cache.recording > 240_000
    assert len(recording.chunks) == 3
    recording.add(RenderedChunk(bytes(80_000)))
    assert recording.spoilt
    assert recording.chunks == []
    assert cache.recording == 0
    recording.keep()
    assert cache.size == CacheSize()


def test_many_recordings_at_once_are_bounded() -> None:
    cache = AudioCache(MIB)
    recordings = [Recording(cache, spot(asked(str(number)))) for number in range(50)]
    for _ in range(20):
        for recording in recordings:
            recording.add(RenderedChunk(bytes(2_000)))
            assert cache.recording <= MIB // 4
    whole = [recording for recording in recordings if not recording.spoilt]
    assert whole
    for recording in recordings:
        recording.keep()
    assert cache.recording == 0
    assert 0 < cache.size.entries <= len(whole)


def test_the_whole_is_bounded_whatever_is_said() -> None:
    cache = AudioCache(MIB)
    for number in range(2_000):
        where = spot(asked(f"text {number % 700}", before="x" * (number % 50)))
        cache.find(where)
        record(cache, where, *(RenderedChunk(bytes(997 * (number % 13)), (word(0, 0, 1),)) for _ in range(number % 4)))
        assert cache.size.bytes <= MIB
    assert cache.use.evictions


def test_any_text_has_a_key() -> None:
    assert spot(asked("\ud83d \udc00")).key.tokens == ("\ud83d", " ", "\udc00")
    assert spot(asked(" \n")).key.tokens == ()
