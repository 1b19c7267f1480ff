"""States that something damaged, files that are lost, and what reaches the disk in which order."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from client.captions import CueMaker, WordReader, vtt_block
from client.cli import text_source
from client.cli.arguments import parse
from client.cli.caption_file import CaptionFile, CaptionMark
from client.cli.exit_codes import ExitCode
from client.cli.keeper import Keeper
from client.cli.ledger import START, Ledger, Place
from client.cli.opening import lost_file, usable
from client.cli.plan import Plan, make_plan
from client.cli.progress import Progress
from client.cli.speak import Speaking
from client.cli.state import Source, State, _digest, read_state, write_state
from client.disk import folder_to_disk, to_disk
from client.errors import ClientError, OutputFailed, UsageError
from client.items import Audio
from client.sinks import Claim, FileSink, kept_audio
from protocol import decode_client, encode
from protocol.server_messages import SegmentBegin, SegmentEnd
from tests.support.client_state import DIGEST, a_state

VALUES: list[Any] = [None, -1, 0, 1, 1e308, 2**70, 2**60, "", "x" * 1_000, "../../x", [], [0], {}, {"a": {}}, True, 0.5]


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field, however deep."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places_in(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    copy = orjson.loads(orjson.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return copy


FIELDS = orjson.loads(a_state().to_bytes())
PATHS = list(places_in(FIELDS))


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_whatever_field_is_damaged_that_is_said(tmp_path: Path, path: tuple[Any, ...]) -> None:
    for value in VALUES:
        damaged = changed(FIELDS, path, value)
        if damaged == FIELDS or path == ("version",):
            continue
        data = json.dumps(damaged).encode()
        with pytest.raises(UsageError, match=r"is damaged: begin anew|is no state"):
            State.of_bytes(data, tmp_path / "out.wav.state")


@pytest.mark.parametrize("path", [path for path in PATHS if path[0] not in ("format", "version", "digest")], ids=str)
def test_a_state_that_is_taken_can_be_worked_with_whoever_wrote_it(tmp_path: Path, path: tuple[Any, ...]) -> None:
    """With a digest that is right."""
    for value in VALUES:
        fields = changed(FIELDS, path, value)
        for name in ("format", "version", "digest"):
            del fields[name]
        try:
            digest = _digest(fields)
        except TypeError:  # too large for orjson, and so for a state
            continue
        whole = {"format": FIELDS["format"], "version": FIELDS["version"], "digest": digest, **fields}
        state = taken(orjson.dumps(whole))
        if state is None:
            continue
        assert State.of_bytes(state.to_bytes(), tmp_path) == state
        if state.session is not None:
            assert decode_client(encode(state.session.greeting)) == state.session.greeting
        for mark in (state.caption_mark, state.synced_mark):
            if mark is not None:
                say_on(mark)


def taken(data: bytes) -> State | None:
    """None: it is damaged, and that is said."""
    try:
        return State.of_bytes(data, Path("out.wav.state"))
    except UsageError:
        return None


def say_on(mark: CaptionMark) -> None:
    """A few more words."""
    reader, maker = WordReader(24_000, mark.begin, mark.span), CueMaker(mark.group)
    reader.write("some words, more words. And more")
    words = [reader.word(at, at + 3, at * 9_000, at * 9_000 + 8_000) for at in range(5, 25, 5)]
    cues = [maker.add(word) for word in words if word is not None] + [maker.finish()]
    assert all(vtt_block(cue, 2) for cue in cues if cue is not None)


def test_the_reported_damages_are_none_that_pass() -> None:
    with_stale = [
        (("caption_mark", "group", 0, "text"), 0),
        (("caption_mark", "span", 1), 2**70),
        (("session", "epoch"), []),
        (("session", "generation"), {}),
        (("session", "next_sample"), -1),
    ]
    for path, value in with_stale:
        fields = changed(FIELDS, path, 0)
        for name in ("format", "version", "digest"):
            del fields[name]
        at = fields
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        with pytest.raises(ValueError, match=r"."):
            State._of_json(fields)


# ---- what is no file ----


def test_a_pipe_where_a_file_should_be_holds_nobody_up(tmp_path: Path) -> None:
    pipe = tmp_path / "out.wav.state"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=r"cannot read .*: it is no regular file"):
        read_state(pipe)
    with pytest.raises(UsageError, match=r"cannot read .*: it is no regular file"):
        Source.of(str(pipe))
    os.mkfifo(tmp_path / "out.wav.part")
    with pytest.raises(OutputFailed, match="it is no regular file"):
        kept_audio(tmp_path / "out.wav", "wav")
    os.mkfifo(tmp_path / "a.state.part")
    with pytest.raises(OutputFailed, match="cannot write"):
        write_state(tmp_path / "a.state", a_state(), sync=False)


# ---- files that are lost ----


async def going_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, captions: bytes | None, synced: int = 4
) -> tuple[Any, Plan]:
    """A run that goes on with 700 samples, and captions of so many bytes where there should be 9 (synced: 4)."""
    monkeypatch.chdir(folder)
    (folder / "book.txt").write_text("你好。" * 9, encoding="utf-8")
    state = a_state(
        source=Source.of("book.txt"), captions=str(folder / "c.vtt"), synced_mark=CaptionMark(synced, 1, 0, None, ())
    )
    write_state(folder / "out.wav.state", state, sync=False)
    sink = FileSink(folder / "out.wav", "wav")
    await sink.begin(24_000, 0)
    await sink.write(Audio(1, 0, 700, bytes(1_400)))
    await sink.abandon()
    if captions is not None:
        (folder / "c.vtt.part").write_bytes(captions)
    args = parse(["stream", "--resume-from", "out.wav"])
    return args, make_plan(args)


async def test_captions_that_lost_their_end_are_gone_on_with_from_what_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, plan = await going_on(tmp_path, monkeypatch, bytes(9))
    assert plan.state is not None
    assert usable(args, plan) == (plan.state.whole, plan.state.caption_mark, plan.state.session)
    (tmp_path / "c.vtt.part").write_bytes(bytes(8))
    assert usable(args, plan) == (plan.state.synced, plan.state.synced_mark, None)
    assert lost_file(plan) is None


@pytest.mark.parametrize(
    ("captions", "said"), [(bytes(3), "c.vtt.part is shorter than its state says"), (None, "c.vtt is missing")]
)
async def test_captions_that_are_lost_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captions: bytes | None, said: str
) -> None:
    args, plan = await going_on(tmp_path, monkeypatch, captions)
    with pytest.raises(UsageError, match=re.escape(said)):
        usable(args, plan)
    assert lost_file(plan) == (None if captions else tmp_path / "c.vtt.part")


async def test_captions_that_somebody_removed_cost_no_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what was synced needs none of them."""
    args, plan = await going_on(tmp_path, monkeypatch, None, synced=0)
    with pytest.raises(UsageError, match=r"c\.vtt is missing \(and there is no c\.vtt\.part\): put it back"):
        usable(args, plan)
    assert plan.state is not None
    (tmp_path / "out.wav.part").write_bytes((tmp_path / "out.wav.part").read_bytes()[:-400])  # a power cut
    assert usable(args, plan) == (plan.state.synced, plan.state.synced_mark, None)


async def test_captions_that_were_removed_meanwhile_are_found_soon(tmp_path: Path) -> None:
    captions = CaptionFile(tmp_path / "c.vtt", "vtt", 24_000)
    await captions.sync()
    captions.partial.unlink()
    with pytest.raises(OutputFailed, match=r"c\.vtt\.part was removed meanwhile"):
        await captions.sync()
    captions.abandon(keep=False)


def test_captions_of_which_nothing_was_written_need_no_file(tmp_path: Path) -> None:
    CaptionFile(tmp_path / "c.vtt", "vtt", 24_000, CaptionMark(0, 0, 0, None, ())).finish()
    assert (tmp_path / "c.vtt").read_text() == "WEBVTT\n"


@pytest.mark.parametrize("name", ["out.wav.part", "out.wav"])
@pytest.mark.parametrize("at", [0, 100])
async def test_a_claimed_file_is_written_by_who_claimed_it(tmp_path: Path, name: str, at: int) -> None:
    sink = FileSink(tmp_path / "out.wav", "wav")
    await sink.begin(24_000, 0)
    await sink.write(Audio(1, 0, 100, bytes(200)))
    await sink.finish(100)
    (tmp_path / "out.wav").rename(tmp_path / name)
    claim = Claim(tmp_path / "out.wav")
    with pytest.raises(OutputFailed, match="another run is writing"):
        Claim(tmp_path / "out.wav")
    mine = FileSink(tmp_path / "out.wav", "wav", at_sample=at or None, claim=claim)
    await mine.begin(24_000, 0)
    await mine.abandon()
    if at:
        with pytest.raises(OutputFailed, match="another run is writing"):  # between two sinks, too
            await FileSink(tmp_path / "out.wav", "wav", at_sample=100).begin(24_000, 0)
    claim.release()
    await FileSink(tmp_path / "out.wav", "wav").begin(24_000, 0)


# ---- the order of things ----


class FakeUtterance:
    """Takes no text and gives no audio."""

    taken = 0
    number = 1
    unconfirmed_bytes = 10**9

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    def cancel_now(self) -> None:
        self.cancelled.set()

    def confirm(self, taken: int, sample: int) -> None:
        """Nothing is held."""


class FakeSession:
    limits: dict[str, int] = {}  # noqa: RUF012  # never changed


async def begun_keeper(folder: Path, advance: Any) -> tuple[Keeper, FakeUtterance, FileSink]:
    state = a_state(session=None, whole=START, synced=START, samples=0, caption_mark=None, synced_mark=None)
    made, utterance, sink = Keeper(folder / "out.wav", state, Ledger(START), advance), FakeUtterance(), None
    sink = FileSink(folder / "out.wav", "wav")
    await sink.begin(24_000, 0)
    await made.follow(FakeSession(), utterance, sink, None)  # type: ignore[arg-type]
    return made, utterance, sink


async def test_captions_are_on_the_disk_before_a_state_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    (tmp_path / "other").mkdir()

    def synced(descriptor: int) -> None:
        order.append("captions")
        to_disk(descriptor)

    def folder_synced(folder: Path) -> None:
        order.append(folder.name)
        folder_to_disk(folder)

    def written(path: Path, state: State, *, sync: bool) -> None:
        order.append(f"state {state.synced_mark is not None}")
        write_state(path, state, sync=sync)

    monkeypatch.setattr("client.cli.caption_file.to_disk", synced)
    monkeypatch.setattr("client.cli.caption_file.folder_to_disk", folder_synced)
    monkeypatch.setattr("client.cli.keeper.write_state", written)
    made, _, sink = await begun_keeper(tmp_path, lambda _: None)
    made.captions = CaptionFile(tmp_path / "other" / "c.vtt", "vtt", 24_000)
    await made.checkpoint()
    await sink.abandon()
    made.captions.abandon(keep=False)
    assert order == ["state False", "captions", "other", "state True"]


async def test_what_goes_wrong_with_a_state_ends_the_utterance(tmp_path: Path) -> None:
    def advance(_: int) -> None:
        raise TypeError("a mistake of this program")

    made, utterance, sink = await begun_keeper(tmp_path, advance)
    made.took()
    with pytest.raises(TypeError):
        await asyncio.wait_for(made.run(), 5)
    assert utterance.cancelled.is_set()
    await sink.abandon()


async def test_a_disk_that_takes_its_time_holds_nothing_else_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "book.txt").write_text("a text")
    source = text_source.open_text(str(tmp_path / "book.txt"))
    read = text_source._read
    slept: list[float] = []

    def slow(descriptor: int, name: str) -> bytes:
        time.sleep(0.2)  # as a file server that does not answer
        return read(descriptor, name)

    async def ticks() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            slept.append(time.monotonic() - before)

    monkeypatch.setattr(text_source, "_read", slow)
    ticking = asyncio.create_task(ticks())
    assert "".join([piece async for piece in text_source.read_text(source)]) == "a text"
    ticking.cancel()
    os.close(source.descriptor)
    assert len(slept) > 10
    assert max(slept) < 0.15


# ---- signals ----


@pytest.mark.parametrize(
    ("first", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
async def test_nothing_stops_the_last_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, code: ExitCode
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("x")
    args = parse(["stream", "book.txt", "--quiet"])
    speaking = Speaking(args, make_plan(args), Progress(shown=False, quiet=True))
    done: list[bool] = []

    async def run() -> None:
        speaking._interrupt(first)
        await asyncio.sleep(60)

    async def end(*, interrupted: bool) -> ClientError | None:
        for number in (signal.SIGTERM, signal.SIGINT):
            speaking._interrupt(number)
            await asyncio.sleep(0.01)
        done.append(interrupted)
        return None

    monkeypatch.setattr(speaking._reading, "run", run)
    monkeypatch.setattr(speaking._reading, "end", end)
    assert await speaking.run() == code
    assert done == [True]


# ---- segments that do not sound as they should ----


def test_degraded_segments_count_once_they_are_in_the_file() -> None:
    ledger = Ledger(Place(100, 0))
    for number in range(1, 6):
        ledger.take(SegmentBegin(2 * number, 1, number, 1_000 * number, 1_001 * number, 10 * number, "x"))
        ledger.take(SegmentEnd(2 * number + 1, 1, number, 10, DIGEST, number != 2, "clip" if number == 1 else ""))
    ledger.advance(30)
    assert str(ledger.degraded) == "1 segment does not sound as intended: at character 1,100 (clip)"
    again = Ledger(START)
    again.begin(Place(100, 0), ledger.open_segments)  # what a state keeps
    for each in (ledger, again):
        each.advance(60)
    assert str(ledger.degraded) == (
        "4 segments do not sound as intended: at character 1,100 (clip), at character 3,100, "
        "at character 4,100 and 1 more"
    )
    assert again.degraded.segments == 3
