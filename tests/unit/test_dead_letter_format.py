"""A dead letter as a line of JSON: whatever was said comes back, and whatever is no letter is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cluster.failures import Attempt
from server.engines.base import FAILURE_KINDS, RenderPlan
from server.engines.rendering import Part
from server.jobs.letters import (
    MAX_ATTEMPTS,
    MAX_ERROR_CHARS,
    MAX_STACK_CHARS,
    Letter,
    Resolved,
    TooLongError,
    decode,
    encode,
)
from server.text.tokens import Boundary, Cut, CutCause
from tests.support.dead_letters import ATTEMPT, MIB, failed_segment, letter

# Also what no well-formed text has: half surrogate pairs, and line ends of every kind.
texts = st.text(st.characters(codec=None, categories=None), max_size=40)
whole = st.integers(0, 2**53)
finite = st.floats(0.01, 100)
attempts = st.builds(
    Attempt,
    engine=texts,
    start=whole,
    end=whole,
    first_sample=whole,
    seconds=st.floats(0, 1000).map(lambda s: round(s, 6)),
    kind=st.sampled_from([None, *FAILURE_KINDS]),
    error=texts,
    trace=texts,
)
parts = st.builds(
    Part,
    source=st.sampled_from(["engine", "fallback", "clip"]),
    start=whole,
    end=whole,
    first_sample=whole,
    reason=st.sampled_from(FAILURE_KINDS),
)


@st.composite
def letters(draw: st.DrawFn) -> Letter:
    cut = Cut(
        draw(whole),
        draw(whole),
        draw(texts),
        draw(st.sampled_from(Boundary)),
        draw(st.sampled_from(CutCause)),
        draw(st.sampled_from(["zh", "en"])),
    )
    failed = failed_segment(
        id=draw(whole),
        cut=cut,
        voice=draw(texts),
        sample_rate=draw(st.integers(8000, 48_000)),
        speed=draw(finite),
        pitch=draw(finite),
        volume=draw(finite),
        seed=draw(whole),
        instruct=draw(texts),
        lexicon=draw(st.none() | st.dictionaries(st.sampled_from([cut.text[:2], cut.text]), texts, max_size=2)),
        plan=RenderPlan(draw(st.sampled_from(["stream", "block"])), tuple(draw(st.lists(whole, max_size=3)))),
        before=draw(texts),
        parts=tuple(draw(st.lists(parts, max_size=3))),
        origin=draw(texts),
        principal=draw(texts),
        engine=draw(texts),
        fingerprint=draw(texts),
        attempts=tuple(draw(st.lists(attempts, max_size=3))),
        outcome=draw(st.sampled_from(["recovered", "cut_short", "fallback", "pieces", "clip", "abandoned"])),
    )
    return Letter(draw(texts), draw(texts), failed)


@given(letters())
def test_a_letter_comes_back_as_it_was(written: Letter) -> None:
    line = encode(written, MIB)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    back = decode(line)
    assert back == written
    assert isinstance(back, Letter)
    assert back.failed.request.origin == written.failed.request.origin  # which == leaves out


@given(texts, texts)
def test_a_mark_comes_back_as_it_was(identity: str, time: str) -> None:
    assert decode(encode(Resolved(identity, time), MIB)) == Resolved(identity, time)


def test_the_line_is_json_that_other_programs_read() -> None:
    table = json.loads(encode(letter(text="你行。", before="喂，", lexicon={"行": "háng"}), MIB))
    assert table["text"] == "你行。"
    assert table["before"] == "喂，"
    assert table["span"] == [0, 3]
    assert table["origin"] == "s-1/1"
    assert table["parameters"]["lexicon"] == {"行": "háng"}
    assert table["attempts"][0]["stack"] == ATTEMPT.trace
    assert set(table) == {
        "v", "id", "time", "origin", "principal", "engine", "fingerprint", "voice", "language", "span", "text",
        "before", "parameters", "attempts", "outcome",
    }  # fmt: skip


def changed(**changes: Any) -> bytes:
    table = json.loads(encode(letter(), MIB))
    for path, value in changes.items():
        *tables, name = path.split("__")
        inner = table
        for each in tables:
            inner = inner[int(each)] if each.isdigit() else inner[each]
        if value is KeyError:
            del inner[name]
        else:
            inner[name] = value
    return json.dumps(table).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"null", b"[]", b'"x"', b"7", b"{}", b'{"v": 1}', b'{"v": 1, "resolved": 5}', b"\xff\xfe",
        encode(letter(), MIB)[:-20],
        changed(v=2), changed(v=True), changed(text=5), changed(span=[1]), changed(span=["1", 2]),
        changed(outcome="lost"), changed(language="xx"), changed(parameters__boundary="end"), changed(voice=KeyError),
        changed(parameters__seed=1.5), changed(parameters__speed="1"), changed(parameters__speed=True),
        changed(parameters__lexicon=[]), changed(parameters__lexicon={"a": 1}), changed(parameters__chunk_ms=[True]),
        changed(parameters__parts=[["tape", 0, 1, 0, "silent"]]), changed(parameters__parts=[5]),
        changed(attempts__0__kind="bored"), changed(attempts__0__stack=KeyError), changed(attempts=[None]),
    ],
)  # fmt: skip
def test_what_is_no_letter_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError):
        decode(b"[" * 100_000)


def test_what_is_added_later_is_no_harm() -> None:
    assert decode(changed(colour="red", parameters__colour="red")) == letter()


def test_long_errors_and_stacks_are_cut_and_their_ends_kept() -> None:
    attempt = replace(ATTEMPT, error="e" * 5_000, trace="first" + "x" * 50_000 + "last")
    back = decode(encode(letter(attempts=(attempt,)), MIB))
    assert isinstance(back, Letter)
    (kept,) = back.failed.attempts
    assert kept.error == "e" * MAX_ERROR_CHARS + "..."
    assert kept.trace.startswith("...x")
    assert kept.trace.endswith("last")
    assert len(kept.trace) == MAX_STACK_CHARS + 3


def test_a_letter_fits_into_what_it_may_have() -> None:
    many = tuple(replace(ATTEMPT, start=number, trace="x" * 5_000) for number in range(100))
    found = [decode(encode(letter(attempts=many), size)) for size in (MIB, 64 * 1024, 4 * 1024)]
    kept = [each.failed.attempts for each in found if isinstance(each, Letter)]
    assert [len(each) for each in kept] == [MAX_ATTEMPTS, MAX_ATTEMPTS, 2]
    assert [each[0].start for each in kept] == [0, 0, 0]
    assert [each[-1].start for each in kept] == [99, 99, 99]
    assert [bool(each[0].trace) for each in kept] == [True, False, False]
    with pytest.raises(TooLongError):
        encode(letter(text="长" * 2_000), 4 * 1024)


def test_of_a_lexicon_it_has_what_the_text_has() -> None:
    """A client's may have a thousand entries of 400 characters; whoever replays needs those that were used."""
    lexicon = {f"词{number}": "读" * 200 for number in range(1_000)} | {"行": "háng", "喂": "wèi"}
    line = encode(letter(text="行，词7。", before="喂，", lexicon=lexicon), MIB)
    assert json.loads(line)["parameters"]["lexicon"] == {"行": "háng", "喂": "wèi", "词7": "读" * 200}
    assert len(line) < 3_000
