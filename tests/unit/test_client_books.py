"""A book in parts: what goes into which message and utterance, what of it is in the file, and what is written down."""

import asyncio
import io
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.captions import CueMaker, Span, WordReader, make_cues, spoken_words, srt_block, to_srt, to_vtt, vtt_block
from client.cli.arguments import parse
from client.cli.caption_file import CaptionFile, CaptionMark
from client.cli.feed import ZONE, Feed, best_end
from client.cli.keeper import PrefixHash
from client.cli.ledger import START, Ledger, Place
from client.cli.plan import Plan, make_plan
from client.cli.progress import Progress
from client.cli.state import ARGUMENTS, STDIN, Source, find_state, read_state, state_name, write_state
from client.errors import OutputFailed, UsageError
from client.saved import Blocks, Sent
from protocol.media.wav import wav_file_header
from protocol.server_messages import SegmentBegin, SegmentEnd, Timing, Word
from tests.support.client_state import DIGEST, a_state


async def pieces(text: str, size: int = 7) -> AsyncIterator[str]:
    for at in range(0, len(text), size):
        yield text[at : at + size]


async def blocks_of(text: str, size: int, limit: int, piece: int = 7) -> list[list[str]]:
    """The messages of each utterance."""
    feed, utterances = Feed(pieces(text, piece)), []
    while not await feed.is_over():
        messages: list[str] = []
        is_last = False
        while not is_last:
            part, is_last = await feed.block(size, limit - sum(map(len, messages)))
            messages.append(part)
        utterances.append(messages)
    assert feed.position == len(text)
    return utterances


# ---- the text in messages and utterances ----


@given(st.text("ab 。\n", max_size=200), st.integers(1, 50), st.integers(1, 30))
def test_all_messages_but_the_last_are_of_one_length(text: str, size: int, piece: int) -> None:
    utterances = asyncio.run(blocks_of(text, size, 10**6, piece))
    assert "".join(part for messages in utterances for part in messages) == text
    assert len(utterances) == (1 if text else 0)
    for messages in utterances:
        assert {len(part) for part in messages[:-1]} <= {size}
        assert len(messages[-1]) <= size


def test_a_text_above_the_limit_is_parted_at_a_paragraph_whatever_the_pieces() -> None:
    text = ("一段话，不长。又一句。\n" * 400 + "很长的一段。" * 4000) * 3
    whole = asyncio.run(blocks_of(text, 4_096, 30_000, 65_536))
    assert len(whole) > 2
    assert whole == asyncio.run(blocks_of(text, 4_096, 30_000, 11))
    assert "".join(part for messages in whole for part in messages) == text
    for messages in whole[:-1]:
        utterance = "".join(messages)
        assert 30_000 - ZONE <= len(utterance) <= 30_000
        assert utterance[-1] in "\n。"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("One line.\nAnother", "One line.\n"),
        ("Pi is 3.14159 and more. So it is 3.1", "Pi is 3.14159 and more."),
        ("他说：“走吧。”然后走了", "他说：“走吧。”然后走了"),
        ("走吧。然后走了", "走吧。"),
        ("words with out any end", "words with out any "),
        ("字" * 40, "字" * 40),
    ],
)
def test_where_an_utterance_ends(text: str, end: str) -> None:
    assert text[: best_end(text)] == end


async def test_text_that_is_being_written_is_parted_without_waiting() -> None:
    async def writes() -> AsyncIterator[str]:
        for line in range(5_000):
            yield f"Line {line} of a long, long log.\n"

    feed, total, utterances = Feed(writes()), 0, 0
    while not await feed.is_over():
        length, is_last = 0, False
        while not is_last:
            part, is_last = await feed.piece(40_000 - length)
            length += len(part)
        assert length <= 40_000
        total += length
        utterances += 1
    assert total == feed.position
    assert utterances == -(-total // 40_000) or utterances > 3


async def test_skipping_gives_what_is_skipped_and_says_where_the_text_is_too_short() -> None:
    feed = Feed(pieces("0123456789"))
    assert "".join([part async for part in feed.skip(4)]) == "0123"
    assert (await feed.block(3, 100))[0] == "456"
    assert "".join([part async for part in feed.rest()]) == "789"
    with pytest.raises(UsageError, match="the text ends at character 10"):
        _ = [part async for part in Feed(pieces("0123456789")).skip(11)]


@given(st.integers(1, 9), st.integers(1, 5_000), st.integers(0, 30), st.integers(0, 999))
def test_a_message_number_tells_how_much_text_the_server_has(first: int, size: int, full: int, rest: int) -> None:
    rest = min(rest, size)
    open_ended = Blocks(first, size)
    assert open_ended.with_server(first - 1) == Sent(0, False)
    assert open_ended.with_server(first + full - 1) == Sent(size * full, False)
    last = first + full if rest else first + full - 1
    ended = Blocks(first, size, last, size * full + rest)
    assert ended.with_server(last) == Sent(size * full + rest, False)
    assert ended.with_server(last + 1) == Sent(size * full + rest, True)
    assert ended.with_server(last + 2) is None
    assert open_ended.with_server(first - 2) is None


# ---- what of it is in the file ----


def begin(number: int, start: int, end: int, first: int, event: int = 1) -> SegmentBegin:
    return SegmentBegin(event, 1, number, start, end, first, "punctuation")


def test_a_segment_counts_once_all_of_it_is_in_the_file() -> None:
    ledger = Ledger(Place(100, 5_000))
    ledger.take(begin(1, 0, 5, 0, event=1))
    ledger.take(Timing(2, 1, 1, (Word("a", 0, 1, 0, 400), Word("b", 2, 3, 400, 900))))
    assert ledger.advance(6_000) == []
    ledger.take(SegmentEnd(3, 1, 1, 1_000, DIGEST))
    assert ledger.advance(5_999) == []
    assert ledger.whole == Place(100, 5_000)
    assert ledger.rest(5_400) == [(100, 101, 5_000, 5_400)]
    assert ledger.advance(6_000) == [(100, 101, 5_000, 5_400), (102, 103, 5_400, 5_900)]
    assert (ledger.whole, ledger.event, ledger.told) == (Place(105, 6_000), 3, 1)
    ledger.take(begin(2, 5, 9, 1_000, event=4))
    ledger.take(SegmentEnd(5, 1, 2, 300, DIGEST))
    assert ledger.advance(6_300) == [(105, 109, 6_000, 6_300)]  # no word times: the segment is one word


def test_what_another_session_says_again_did_not_sound_before() -> None:
    ledger = Ledger(START)
    ledger.take(begin(1, 0, 9, 0))
    ledger.take(Timing(2, 1, 1, (Word("a", 0, 1, 0, 400), Word("b", 2, 9, 400, 900))))
    ledger.take(begin(2, 2, 9, 450))
    assert ledger.advance(450) == [(0, 1, 0, 400)]
    assert ledger.whole == Place(1, 450)


def test_the_hash_of_a_text_follows_a_position() -> None:
    import hashlib

    hashing = PrefixHash()
    hashing.write("你好")
    hashing.write(", world")
    assert hashing.up_to(3) == hashlib.sha256("你好,".encode()).hexdigest()
    assert hashing.up_to(9) == hashlib.sha256("你好, world".encode()).hexdigest()


# ---- captions ----


def words_of(text: str) -> list[Span]:
    return [(m.start(), m.end(), m.start() * 2_400, m.end() * 2_400) for m in re.finditer(r"\w+", text)]


@given(
    st.text("ab “”,.。\n", min_size=1, max_size=120),
    st.integers(1, 9),
    st.integers(0, 40),
    st.sampled_from(["vtt", "srt"]),
)
def test_captions_written_in_parts_by_two_processes_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, text: str, piece: int, cut: int, kind: str
) -> None:
    words = words_of(text)
    cut = min(cut, len(words))
    boundary = words[cut][0] if cut < len(words) else len(text)
    path = tmp_path_factory.mktemp("captions") / f"c.{kind}"
    first = CaptionFile(path, kind, 24_000)  # type: ignore[arg-type]
    for at in range(0, len(text), piece):
        first.text(text[at : at + piece])
    first.words(words[:cut])
    mark = CaptionMark.of_json(json.loads(json.dumps(first.mark().to_json())))
    first.words(words[cut:])  # written, and not known to the state: a kill comes here
    first.abandon(keep=True)
    second = CaptionFile(path, kind, 24_000, mark)  # type: ignore[arg-type]
    assert second.needs_text_from <= boundary
    second.text(text[second.needs_text_from :])
    second.words(words[cut:])
    second.finish()
    cues = make_cues(spoken_words(text, words, 24_000))
    assert path.read_bytes() == (to_vtt(cues) if kind == "vtt" else to_srt(cues)).encode()
    assert not second.partial.exists()


def test_a_caption_file_that_lost_its_end_is_said(tmp_path: Path) -> None:
    (tmp_path / "c.vtt.part").write_bytes(b"short")
    with pytest.raises(OutputFailed, match="is shorter than it was"):
        CaptionFile(tmp_path / "c.vtt", "vtt", 24_000, CaptionMark(99, 1, 0, None, ()))


def test_the_reader_of_words_forgets_what_it_gave() -> None:
    reader, maker, blocks = WordReader(24_000), CueMaker(), []
    for number in range(20_000):
        reader.write("word. ")
        if (spoken := reader.word(number * 6, number * 6 + 4, number * 9_600, number * 9_600 + 4_800)) is not None:
            cue = maker.add(spoken)
            blocks += [vtt_block(cue, 2), srt_block(cue, 2)] if cue is not None else []
    assert len(blocks) > 30_000
    assert len(reader._text) < 1_000
    assert len(maker.group) < 5


# ---- the state ----


def test_a_state_is_read_as_it_was_written_by_its_owner_alone(tmp_path: Path) -> None:
    path = state_name(tmp_path / "out.wav")
    bare = a_state(session=None, caption_mark=None, synced_mark=None, captions=None, is_complete=True)
    for state in (a_state(), bare):
        write_state(path, state, sync=True)
        assert read_state(path) == state
        assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["out.wav.state"]


def test_a_state_that_cannot_be_written_leaves_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "out.wav.state"
    write_state(path, a_state(), sync=False)
    (tmp_path / "out.wav.state.part").mkdir()
    with pytest.raises(OutputFailed, match="cannot write"):
        write_state(path, a_state(samples=9_999), sync=False)
    assert read_state(path) == a_state()


def damaged() -> list[tuple[bytes, str]]:
    whole = json.loads(a_state().to_bytes())
    return [
        (b"", "is damaged"),
        (a_state().to_bytes()[:-40], "is damaged"),
        (b"[]", "is no state"),
        (b'{"format": "something else"}', "is no state"),
        (json.dumps({**whole, "version": 1}).encode(), "is of version 1, and this program knows 2"),
        (json.dumps({**whole, "whole": {"text": -1, "samples": 0}}).encode(), "is damaged"),
        (json.dumps({**whole, "whole": 5}).encode(), "is damaged"),
        (json.dumps({**whole, "container": "mp3"}).encode(), "is damaged"),
        (json.dumps({**whole, "session": {"session": "s"}}).encode(), "is damaged"),
        (json.dumps({**whole, "extra": 1}).encode(), "is damaged"),
        (json.dumps({**whole, "arguments": {}}).encode(), "is damaged"),
    ]


@pytest.mark.parametrize(("data", "said"), damaged())
def test_a_state_that_is_none_is_said(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "out.wav.state"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"{re.escape(str(path))} {said}"):
        read_state(path)


def test_a_state_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="that run is complete, was of another name, or kept no state"):
        read_state(tmp_path / "out.wav.state")


@pytest.mark.parametrize("name", ["out.wav", "out.wav.state", "out.wav.part"])
def test_a_state_is_found_by_the_name_of_its_file_too(name: str) -> None:
    assert find_state(name) == (Path("out.wav.state"), Path("out.wav"))


# ---- --resume-from ----


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("你好。", encoding="utf-8")
    state = a_state(source=Source.of("book.txt"), captions=str(tmp_path / "c.vtt"))
    write_state(tmp_path / "out.wav.state", state, sync=False)
    return tmp_path


def plan_of(*arguments: str) -> Plan:
    return make_plan(parse(["stream", *arguments]))


def test_everything_is_as_the_state_says(folder: Path) -> None:
    for arguments in ((), ("--speed", "1.2", "-o", "out.wav", "--captions", "c.vtt", "book.txt")):
        args = parse(["stream", "--resume-from", "out.wav", *arguments])
        plan = make_plan(args)
        assert (plan.output, plan.container, plan.format) == (Path("out.wav"), "wav", "pcm")
        assert (args.speed, args.voice, args.url, plan.captions) == (1.2, "v", "ws://h:1", folder / "c.vtt")
        assert (args.instruct, args.seed) == ("softly", 7)
        assert Path(plan.source).name == "book.txt"
        assert plan.state is not None
        assert plan.keeps_state


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--speed", "1.0"), "--speed 1.0 contradicts out.wav.state, which has 1.2"),  # though it is the default
        (("--voice", "x"), "--voice x contradicts out.wav.state, which has v"),
        (("--seed", "0"), "--seed 0 contradicts out.wav.state, which has 7"),
        (("--instruct", ""), "--instruct  contradicts out.wav.state, which has softly"),
        (("--instruct", "loud\n" * 99), f"--instruct {'loud ' * 11}... contradicts out.wav.state, which has softly"),
        (("--sample-rate", "8000"), "--sample-rate 8000 contradicts"),
        (("-o", "other.wav"), "-o other.wav contradicts"),
        (("--container", "raw"), "--container raw contradicts"),
        (("--captions", "d.vtt"), "--captions d.vtt contradicts"),
        (("--play",), "--play and --resume-from do not go together"),
        (("-",), "leave FILE out, or name the file"),
        (("gone.txt",), "there is no file gone.txt any more"),
    ],
)
def test_what_contradicts_the_state_is_said(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        plan_of("--resume-from", "out.wav.state", *arguments)


def test_a_damaged_state_does_not_make_the_audio_worthless(folder: Path) -> None:
    (folder / "out.wav.state").write_bytes(b"x")
    (folder / "out.wav").write_bytes(b"no audio")
    with pytest.raises(UsageError, match=r"out\.wav\.state is damaged: begin anew, without --resume-from$"):
        plan_of("--resume-from", "out.wav")
    (folder / "out.wav").write_bytes(wav_file_header(24_000, 1_000) + bytes(2_000))
    with pytest.raises(UsageError, match=r"resume-from \(out\.wav plays as it is; a new run of that name overwrites"):
        plan_of("--resume-from", "out.wav")


def test_a_text_that_changed_is_said_and_one_that_moved_is_the_same(folder: Path) -> None:
    (folder / "book.txt").rename(folder / "moved.txt")
    with pytest.raises(UsageError, match=r"there is no file .*book\.txt any more: name it where it is now"):
        plan_of("--resume-from", "out.wav")
    assert plan_of("--resume-from", "out.wav", "moved.txt").source == "moved.txt"
    (folder / "moved.txt").write_text("您好。", encoding="utf-8")
    with pytest.raises(UsageError, match=r"moved\.txt is not the text of out\.wav\.state any more"):
        plan_of("--resume-from", "out.wav", "moved.txt")


def test_standard_input_must_be_given_again(folder: Path) -> None:
    write_state(
        folder / "out.wav.state",
        a_state(source=Source(STDIN), session=None, captions=None, caption_mark=None, synced_mark=None),
        sync=False,
    )
    with pytest.raises(UsageError, match="which is not kept: give the same text again"):
        plan_of("--resume-from", "out.wav")
    assert plan_of("--resume-from", "out.wav", "-").source == "-"


def test_a_text_or_a_state_is_needed(folder: Path) -> None:
    with pytest.raises(UsageError, match="name a FILE to speak"):
        plan_of()
    assert set(ARGUMENTS) <= set(vars(parse(["stream", "x"])))
    assert parse(["stream", "x", "--speed", "1.0"]).given >= {"file", "speed"}
    assert "speed" not in parse(["stream", "x"]).given


def test_a_name_whose_file_is_incomplete_is_taken(folder: Path) -> None:
    write_state(folder / "book.wav.state", a_state(), sync=False)
    assert plan_of("book.txt").output == Path("book-2.wav")


# ---- progress ----


def test_progress_says_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    out = io.StringIO()
    progress = Progress(shown=True, quiet=False, stream=out)
    progress.begin(60.0, 1_000, 5_000)
    progress.audio(60.0)
    now[0] = 110.0
    progress.text(2_000)
    progress.audio(260.0)
    now[0] = 110.05
    progress.audio(261.0)  # at most ten a second
    lines = out.getvalue().split("\r")[1:]
    assert [line.rstrip() for line in lines] == [
        "1,000 of 5,000 characters (20 %), 60.0 s of audio",
        "2,000 of 5,000 characters (40 %), 0:04:20 of audio, 20x real time, 0:30 left",
    ]


@pytest.mark.parametrize(
    ("columns", "trying", "line"),
    [
        ("60", None, "2,000 of 5,000 characters (40 %), 60.0 s of audio"),
        ("65", None, "2,000 of 5,000 characters (40 %), 60.0 s of audio, 50x real time"),
        ("20", None, "2,000 of 5,000 char"),
        ("60", 0.4, "2,000 of 5,000 characters (40 %), 60.0 s of audio"),
        ("60", 7.0, "2,000 of 5,000 characters (40 %); still trying, 7 s"),
        ("30", 7.0, "still trying, 7 s"),
        ("400", 7.0, "2,000 of 5,000 characters (40 %), 60.0 s of audio; still trying, 7 s"),
    ],
)
def test_progress_never_is_longer_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: str, trying: float | None, line: str
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setenv("COLUMNS", columns)
    out = io.StringIO()
    progress = Progress(shown=True, quiet=False, stream=out)
    progress.begin(10.0, 1_000, 5_000)
    now[0] = 101.0
    progress.text(2_000)
    progress.trying(trying)
    progress.audio(60.0)
    assert out.getvalue().split("\r")[-1].rstrip() == line
    progress.error("x")
    assert all(len(part) < int(columns) for part in out.getvalue().split("\r"))


def test_progress_counts_words_and_shares_of_the_open_segment() -> None:
    ledger = Ledger(START)
    ledger.take(SegmentBegin(1, 1, 1, 0, 10, 0, "x"))
    assert ledger.spoken(100) == 0  # nothing is known of its length
    ledger.take(Timing(2, 1, 1, (Word("a", 0, 4, 0, 400), Word("b", 5, 10, 500, 1_000))))
    assert [ledger.spoken(samples) for samples in (399, 400, 999, 1_000)] == [0, 4, 4, 10]
    ledger.take(SegmentEnd(3, 1, 1, 1_000, DIGEST))
    ledger.take(SegmentBegin(4, 1, 2, 10, 30, 1_000, "x"))
    ledger.advance(1_000)
    assert [ledger.spoken(samples) for samples in (1_000, 2_000, 9_000)] == [10, 20, 30]  # at the pace so far
    ledger.take(SegmentEnd(5, 1, 2, 4_000, DIGEST))
    assert ledger.spoken(2_000) == 15


def test_progress_of_a_text_of_unknown_length(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    out = io.StringIO()
    progress = Progress(shown=True, quiet=False, stream=out)
    progress.begin(0.0, 0, None)
    now[0] = 4_000.0
    progress.text(1_234)
    progress.audio(6_000.0)
    assert out.getvalue() == "\r1,234 characters, 1:40:00 of audio, 1.5x real time"
