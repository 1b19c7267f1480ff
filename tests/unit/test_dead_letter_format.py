"""A dead letter as a line of JSON: whatever was said comes back, and whatever is no letter is refused."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from server.cluster.failures import Attempt, Outcome
from server.engines.base import FAILURE_KINDS, RenderPlan
from server.engines.rendering import Part
from server.jobs.letters import (
    MAX_ATTEMPTS,
    MAX_ERROR_CHARS,
    MAX_STACK_CHARS,
    Letter,
    Resolved,
    TooLongError,
    encode,
    to_json,
)
from server.jobs.reading import SAMPLE_RATES, decode
from server.text.tokens import Boundary, Cut, CutCause
from tests.support.dead_letters import ATTEMPT, MIB, TIME, failed_segment, letter

# Also what no well-formed text has: half surrogate pairs, and line ends of every kind.
texts = st.text(st.characters(codec=None, categories=None), max_size=40)
ids = st.text("0123456789abcdef", min_size=12, max_size=12)
times = st.sampled_from([TIME, "1999-12-31T23:59:59Z", "2026-02-03T04:05:06.789123Z"])
samples = st.integers(0, limits.U53)
factors = st.floats(0.5, 2)
attempts = st.builds(
    Attempt,
    engine=texts,
    start=st.just(3),
    end=st.integers(3, limits.MAX_UTTERANCE_CHARS),
    first_sample=samples,
    seconds=st.floats(0, 1000).map(lambda s: round(s, 6)),
    kind=st.sampled_from([None, *FAILURE_KINDS]),
    error=texts,
    trace=texts,
)
parts = st.builds(
    Part,
    source=st.sampled_from(["engine", "fallback", "clip"]),
    start=st.just(3),
    end=st.integers(3, limits.MAX_UTTERANCE_CHARS),
    first_sample=samples,
    reason=st.sampled_from(FAILURE_KINDS),
)


@st.composite
def letters(draw: st.DrawFn) -> Letter:
    start, text = draw(st.integers(0, 1_000_000)), draw(texts)
    cut = Cut(
        start,
        start + len(text),
        text,
        draw(st.sampled_from(Boundary)),
        draw(st.sampled_from(CutCause)),
        draw(st.sampled_from(["zh", "en"])),
    )
    used = st.sampled_from([text[:2], text])  # no other entries are kept
    failed = failed_segment(
        id=draw(st.integers(0, limits.U32)),
        cut=cut,
        voice=draw(texts.filter(bool)),
        sample_rate=draw(st.sampled_from(sorted(SAMPLE_RATES))),
        speed=draw(factors),
        pitch=draw(factors),
        volume=draw(factors),
        seed=draw(st.integers(0, limits.U32)),
        instruct=draw(texts),
        lexicon=draw(st.none() | st.dictionaries(used, texts.filter(bool), max_size=2 if text else 0)),
        plan=RenderPlan(
            draw(st.sampled_from(["stream", "block"])), tuple(draw(st.lists(st.integers(1, 60_000), max_size=3)))
        ),
        before=draw(texts),
        parts=tuple(draw(st.lists(parts, max_size=3))),
        origin=draw(texts),
        principal=draw(texts),
        engine=draw(texts),
        fingerprint=draw(texts),
        attempts=tuple(draw(st.lists(attempts, max_size=3))),
        outcome=draw(st.sampled_from(get_args(Outcome))),
    )
    return Letter(draw(ids), draw(times), failed)


@given(letters())
def test_a_letter_comes_back_as_it_was(written: Letter) -> None:
    line = encode(written, MIB)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    back = decode(line)
    assert back == written
    assert isinstance(back, Letter)
    assert back.failed.request.origin == written.failed.request.origin  # which == leaves out


@given(ids, times)
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
        changed(outcome=5), changed(outcome="\x1b[31m"), changed(outcome="x" * 1_000),
        changed(language="xx"), changed(parameters__boundary="end"), changed(voice=KeyError),
        changed(parameters__seed=1.5), changed(parameters__speed="1"), changed(parameters__speed=True),
        changed(parameters__lexicon=[]), changed(parameters__lexicon={"a": 1}), changed(parameters__chunk_ms=[True]),
        changed(parameters__parts=[["tape", 0, 1]]), changed(parameters__parts=[5]),
        changed(attempts__0__kind="a b"), changed(attempts__0__stack=KeyError), changed(attempts=[None]),
    ],
)  # fmt: skip
def test_what_is_no_letter_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)


IDS = ["../../evil", "/tmp/evil", "", "0123456789a", "0123456789abc", "0123456789AB", "0123456789ab\n", "a" * 1_000,
       "０１２３４５６７８９ab", 5, None, ["0123456789ab"]]  # fmt: skip


@pytest.mark.parametrize("identity", IDS)
def test_only_ids_that_were_made_here_are_taken(identity: Any) -> None:
    """They name files, and lines of a list."""
    for line in (changed(id=identity), json.dumps({"v": 1, "resolved": identity, "time": TIME}).encode()):
        with pytest.raises(ValueError):
            decode(line)
    if isinstance(identity, str):
        with pytest.raises(ValueError, match="12 hexadecimal digits"):
            letter(identity)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("parameters__sample_rate", [-1, 0, 1, 12_345, 123_456, 24_000.0, 10**400]),
        ("parameters__speed", [0, 0.49, 2.01, -1, 1e30, 10**400, float("nan"), float("inf"), None]),
        ("parameters__pitch", [0, 2.01, -1, float("nan"), None]),
        ("parameters__volume", [-0.1, 2.01, 1e30, float("inf"), None]),
        ("parameters__seed", [-1, 2**32, None]),
        ("parameters__segment", [-1, 2**32, 1.0]),
        ("parameters__chunk_ms", [[0], [-1], [20, 0], [60_001], [1] * 65]),
        ("parameters__instruct", ["x" * 2_001]),
        ("parameters__lexicon", [{"": "x"}, {"x": ""}, {"x": "y" * 201}, {f"{n}": "x" for n in range(1_001)}]),
        ("parameters__mode", ["both", ["stream"]]),
        ("parameters__parts", [[["clip", -1, 0, 0, "silent"]], [["clip", 2, 1, 0, "silent"]],
                               [["clip", 0, 1, -1, "silent"]]]),
        ("voice", ["", "x" * 129, None]),
        ("span", [[-1, 4], [5, 0], [0, 4], [0, 2_000_001], [0, 10**400]]),
        ("time", ["", "now", "2026-02-03 04:05:06", f"{TIME}\n", "x" * 1_000]),
        ("engine", ["x" * 257]),
        ("attempts__0__span", [[-1, 4], [5, 0]]),
        ("attempts__0__first_sample", [-1, 2**53]),
        ("attempts__0__seconds", [-1, float("nan"), 1e300]),
        ("attempts__0__engine", ["x" * 257]),
    ],
)  # fmt: skip
def test_values_that_no_client_and_no_pool_can_have_given_are_refused(name: str, values: list[Any]) -> None:
    for value in values:
        line = changed(**{name: value})
        with pytest.raises(ValueError):
            decode(line)


def test_the_ends_of_what_is_allowed_are_read() -> None:
    allowed: dict[str, list[Any]] = {
        "speed": [0.5, 2], "pitch": [0.5, 2], "volume": [0, 2.0], "seed": [0, 2**32 - 1], "chunk_ms": [[1, 60_000]],
        "sample_rate": [8_000, 12_000, 44_100, 48_000], "instruct": ["x" * 2_000],
    }  # fmt: skip
    for name, values in allowed.items():
        for value in values:
            assert isinstance(decode(changed(**{f"parameters__{name}": value})), Letter)


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError):
        decode(b"[" * 100_000)


def test_what_is_added_later_is_no_harm() -> None:
    assert decode(changed(colour="red", parameters__colour="red", attempts__0__colour=["red"])) == letter()
    mark = decode(json.dumps({"v": 1, "resolved": "0123456789ab", "time": TIME, "colour": "red"}).encode())
    assert mark == Resolved("0123456789ab", TIME)


def test_words_of_a_newer_server_that_only_tell_what_happened_are_kept() -> None:
    parts = [["tape", 0, 1, 0, "bored"]]
    line = changed(outcome="sung", attempts__0__kind="bored", parameters__parts=parts)
    back = decode(line)
    assert isinstance(back, Letter)
    assert (back.failed.outcome, back.failed.attempts[0].kind) == ("sung", "bored")
    table = to_json(back)
    assert (table["outcome"], table["parameters"]["parts"]) == ("sung", parts)


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
    many = tuple(replace(ATTEMPT, start=number, end=100, trace="x" * 5_000) for number in range(100))
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
