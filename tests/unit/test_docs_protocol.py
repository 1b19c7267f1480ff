"""docs/protocol.md is normative: it must name everything that exists and nothing else, and its traces must be true."""

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from protocol import STREAM_PATH, SUBPROTOCOL, TOKEN_SUBPROTOCOL, limits
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_client, decode_server
from protocol.errors import ERRORS, CloseCode
from protocol.fields import CHECK
from protocol.frames import HEADER, VERSION, Codec, FrameFlag, decode_frame
from server.engines.base import FAILURE_KINDS
from server.gateway.tokens import MAX_TOKEN_CHARS, TOKEN_PREFIX, USES
from server.gateway.websocket import MAX_REFUSALS
from server.link import TRIGGERS
from server.session import Policy
from server.session.states import ALLOWED, State
from server.text.tokens import CutCause
from tests.support.field_specs import MESSAGES, Message, allowed
from tests.support.protocol_trace import logical_lines, matches, replay
from tests.support.session_driver import Driver

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
HEADER_FIELDS = ("version", "codec", "flags", "generation", "utterance", "first_sample", "count", "crc")
REASONS = [trigger.reason for trigger in TRIGGERS] + ["recovered", "idle"]
BOUNDS = {str(limits.U53): "2^53-1", str(limits.U32): "2^32-1"}


def section(title: str, text: str = TEXT) -> str:
    """The text under a heading, up to the next one of its level or above."""
    match = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert match, f"docs/protocol.md has no section {title!r}"
    following = re.compile(rf"^#{{1,{len(match[1])}}} ", re.MULTILINE).search(text, match.end())
    return text[match.end() : following.start() if following else None]


def tables(text: str) -> list[list[tuple[str, ...]]]:
    """Every table of a text: its rows below the head."""
    found: list[list[tuple[str, ...]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append(tuple(cell.strip() for cell in line.strip("|").split("|")))
        elif found[-1]:
            found.append([])
    return [rows[2:] for rows in found if rows]


def table(title: str, number: int = 0) -> list[tuple[str, ...]]:
    return tables(section(title))[number]


def code(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def value_of(field: "dataclasses.Field[Any]") -> str:
    """What a field's `value` cell must say."""
    words = re.sub(r"^an? ", "", allowed(field.metadata[CHECK]))
    for number, short in BOUNDS.items():
        words = words.replace(number, short)
    return words


def rows_of(cls: type[Any]) -> list[tuple[str, ...]]:
    return [
        (f"`{f.name}`", value_of(f), "required" if f.default is dataclasses.MISSING else json.dumps(f.default))
        for f in dataclasses.fields(cls)
    ]


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.type)
def test_every_message_has_its_fields_with_their_ranges_and_defaults(cls: type[Message]) -> None:
    side = "Messages from the client" if cls in c.CLIENT_MESSAGES else "Messages from the server"
    rows = tables(section(f"`{cls.type}`", section(side)))[0]
    assert [row[:3] for row in rows] == rows_of(cls)
    assert all(len(row) == 4 and row[3] for row in rows), "a field without a meaning"


def test_the_words_of_a_timing_have_their_fields() -> None:
    assert [row[:3] for row in table("`timing`", 1)] == rows_of(s.Word)


def test_no_message_is_described_that_does_not_exist() -> None:
    headings = re.findall(r"^### `(\w+)`$", TEXT, re.MULTILINE)
    assert sorted(headings) == sorted(cls.type for cls in MESSAGES)
    assert re.findall(r"`(\w+)`", section("Reserved"))[:2] == list(c.RESERVED)


def test_every_type_and_field_that_is_mentioned_exists() -> None:
    fields = {cls.type: {f.name for f in dataclasses.fields(cls)} for cls in MESSAGES}
    fields |= {"limits": set(opened().limits), "config": set(opened().config)}
    mentioned = {(kind, name) for kind, name in re.findall(r"`([a-z_]+)\.([a-z_]+)`", TEXT) if name != "json"}
    mentioned.remove(("type", "field"))
    wrong = sorted(f"{kind}.{name}" for kind, name in mentioned if name not in fields.get(kind, ()))
    assert not wrong
    types = {cls.type for cls in MESSAGES}
    assert set(re.findall(r'"type": ?"(\w+)"', TEXT)) <= types


def test_every_name_that_is_mentioned_exists() -> None:
    known = {cls.type for cls in MESSAGES} | set(c.RESERVED) | set(ERRORS) | set(State) | set(CutCause)
    known |= {f.name for cls in (*MESSAGES, s.Word) for f in dataclasses.fields(cls)} | set(HEADER_FIELDS)
    known |= {flag.name.lower() for flag in FrameFlag if flag.name} | set(opened().limits)
    known |= {row[0].strip("`") for row in table("`done`", 1)}
    known |= {word for cls in MESSAGES for f in dataclasses.fields(cls) for word in re.findall(r"\w+", value_of(f))}
    known |= set(re.findall(r"`(\w+)`", section("Test vectors"))) | {"type", "websockets"}
    known |= {TOKEN_PREFIX, *USES}
    known |= set(REASONS) | set(s.BUSY_REASONS) | set(FAILURE_KINDS)
    mentioned = re.findall(r"`([a-z_]+)`", TEXT.split("\n## Traces\n")[0])
    assert set(mentioned) - known == {"_ms"}


def test_the_errors_are_those_of_the_code() -> None:
    assert table("Errors") == [
        (f"`{name}`", kind.meaning, "yes" if kind.retryable else "no", str(int(kind.close or 0)))
        for name, kind in ERRORS.items()
    ]


def test_the_close_codes_are_those_of_the_code() -> None:
    rows = table("Close codes")
    assert [row[0] for row in rows] == [str(int(code)) for code in CloseCode]
    assert all(row[1] in ("client", "server", "both") and row[2] for row in rows)
    named = {int(number) for number in re.findall(r"\b1[0-9]{3}\b", section("Connection") + section("Errors"))}
    assert named - {1024, 1006} <= set(CloseCode)


def opened() -> s.Opened:
    driver = Driver(Policy("tone-low"))
    driver.open()
    driver.drain()
    return driver.of(s.Opened)[0]


def test_the_limits_are_those_that_a_server_names() -> None:
    found = {row[0].strip("`"): int(row[1]) for row in table("Limits")}
    assert found == opened().limits


def test_the_configuration_is_what_open_asks_for() -> None:
    assert set(opened().config) == {f.name for f in dataclasses.fields(c.Open)} - {"api_key"}


def test_the_statistics_are_those_of_a_session() -> None:
    driver = Driver()
    driver.open()
    driver.say(1, "好。")
    driver.run()
    assert [row[0].strip("`") for row in table("`done`", 1)] == list(driver.of(s.Done)[0].statistics)


def test_the_states_allow_what_the_code_allows() -> None:
    rows = {row[0].strip("`"): re.findall(r"`(\w+)`", row[2]) for row in table("Which message when")}
    expected = {state.value: [cls.type for cls in ALLOWED[state]] for state in State}
    assert {state: sorted(names) for state, names in rows.items()} == {
        state: sorted(names) for state, names in expected.items()
    }


def test_the_numbered_messages_are_listed() -> None:
    first = section("Numbered messages").split(" carry ")[0]
    assert re.findall(r"`(\w+)`", first) == [cls.type for cls in c.NUMBERED]


def test_the_events_are_marked() -> None:
    marked = [
        cls.type
        for cls in s.SERVER_MESSAGES
        if section(f"`{cls.type}`", section("Messages from the server")).strip().startswith("Event.")
    ]
    assert marked == [cls.type for cls in s.EVENTS]


def test_the_header_is_laid_out_as_the_code_does() -> None:
    kinds = re.findall(r"[A-Z]", HEADER.format)
    sizes = [{"B": 1, "H": 2, "I": 4, "Q": 8}[kind] for kind in kinds]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    expected = list(zip(map(str, offsets), map(str, sizes), code(HEADER_FIELDS), strict=True))
    rows = table("Audio frames")
    assert [row[:3] for row in rows] == expected
    assert f"a header of {HEADER.size} bytes, big-endian" in section("Audio frames")
    assert rows[0][3] == str(VERSION)
    assert rows[1][3] == f"{int(Codec.PCM)}: PCM, {int(Codec.OPUS)}: Opus"


def test_the_flags_are_those_of_the_code() -> None:
    rows = tables(section("Audio frames"))[1]
    named = [flag for flag in FrameFlag if flag.name]
    assert [row[:2] for row in rows] == [(f"`{flag.name.lower()}`", str(int(flag))) for flag in named if flag.name]


def test_the_frame_in_the_text_is_what_it_says() -> None:
    header, payload = re.findall(r"`([0-9a-f]{16,})`", section("PCM"))
    frame = decode_frame(bytes.fromhex(header + payload))
    assert (frame.generation, frame.utterance, frame.first_sample, frame.count) == (1, 1, 0, 4)
    assert [int.from_bytes(a, "little", signed=True) for a in re.findall(rb"(?s)..", bytes(frame.payload))] == [
        0, 1, -1, -32_768,
    ]  # fmt: skip


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    def listed(values: Iterable[float]) -> str:
        return ", ".join(f"{value:g}" for value in values)

    rates, frames = limits.SAMPLE_RATES_PCM, limits.FRAME_MS_PCM
    for words in (
        f"PCM: {listed(rates)}; Opus: {listed(limits.SAMPLE_RATES_OPUS)}.",
        f"PCM: {frames[0]:g} to {frames[1]:g}; Opus: {listed(limits.FRAME_MS_OPUS)}.",
        f"at most {limits.MAX_MESSAGE_BYTES} bytes",
        f"every {limits.HEARTBEAT_S * 1000:g} ms",
        f"every {limits.IDLE_HEARTBEAT_S:g} s",
        f"at least every {limits.ACK_TIMER_S * 1000:g} ms",
        f"more than one every {limits.ACK_INTERVAL_S * 1000:g} ms",
        f"after {limits.ACK_BYTES} bytes",
        f"every {limits.RESUME_ATTEMPT_S:g} s, varied by 20 %, for {limits.RESUME_RUSH_S:g} seconds",
        f"up to {limits.OPUS_PREROLL_MS} ms earlier",
        f"after {MAX_REFUSALS} failures",
        f"at most {limits.MAX_CLOSE_REASON_BYTES} bytes",
        f"{Policy('').open_timeout_s:g} s, a setting",
        f"`{STREAM_PATH}`",
        f"`{SUBPROTOCOL}`",
        f"`{TOKEN_SUBPROTOCOL}TOKEN`",
        f"begins with `{TOKEN_PREFIX}` and has at most {MAX_TOKEN_CHARS} characters",
    ):
        assert words in TEXT, words


def test_the_causes_of_cuts_are_listed() -> None:
    cell = next(row[3] for row in table("`segment_begin`") if row[0] == "`cause`")
    assert set(re.findall(r"`(\w+)`", cell)) - {"end"} == {cause.value for cause in CutCause} - {"end"}


def test_the_reasons_of_modes_are_those_of_the_code() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", section("Modes"), re.MULTILINE)
    assert sorted([*listed, "recovered", "idle"]) == sorted(REASONS)


def test_the_reasons_of_a_failed_resume_are_listed() -> None:
    assert sorted(row[0].strip("`") for row in table("Resuming")) == sorted(s.RESUME_FAILURES)


def test_the_reasons_of_busy_are_listed() -> None:
    assert [row[0].strip("`") for row in table("`busy`", 1)] == list(s.BUSY_REASONS)


def test_links_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors


TRACES = re.findall(r"^### ([^\n]+)\n(?:(?!\n#).)*?```trace\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL)


def test_all_traces_are_found() -> None:
    assert len(TRACES) == TEXT.count("```trace") == 6


@pytest.mark.parametrize(("title", "block"), TRACES, ids=[title for title, _ in TRACES])
def test_a_trace_is_what_the_server_says(title: str, block: str) -> None:
    written = logical_lines(block)
    actual = replay(written)
    same = len(written) == len(actual) and all(map(matches, written, actual))
    assert same, "\n".join(
        difflib.unified_diff(written, actual, "docs/protocol.md", "the session machine", lineterm="")
    )


@pytest.mark.parametrize(("title", "block"), TRACES, ids=[title for title, _ in TRACES])
def test_a_trace_decodes_and_counts_well(title: str, block: str) -> None:
    written = logical_lines(block)
    seqs = [decode_client(line[3:]) for line in written if line.startswith("C: ")]
    numbers = [message.seq for message in seqs if isinstance(message, c.NUMBERED)]
    assert numbers == list(range(1, len(numbers) + 1))
    sent = [decode_server(line[3:]) for line in replay(written) if line.startswith("S: {")]
    events = dict.fromkeys(message.event for message in sent if isinstance(message, s.EVENTS))  # some come twice
    assert all(after == before + 1 for before, after in pairwise(events))
