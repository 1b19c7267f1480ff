"""A text of which one segment in twenty fails: everything else must sound as if nothing had happened."""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from bench._common import Report, run, server_process
from bench._longtext_texts import english, text_of
from bench._session import Heard, open_session
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame, FrameFlag
from server.jobs import Letter, LetterFolder

CHARACTERS: Final = 40_000
PIECE: Final = 4_000  # characters of a message
LETTERS_BYTES: Final = 16 * 1024 * 1024
SCRIPT: Final = (
    {"action": "fail", "at": 1, "rate": 0.02, "seed": 1},
    {"action": "fail", "at": 0, "rate": 0.01, "seed": 2},
    {"action": "oom", "at": 1, "rate": 0.01, "seed": 3},
    {"action": "crash", "at": 2, "rate": 0.01, "seed": 4},
    {"action": "fail", "at": 1, "rate": 0.01, "seed": 5, "times": 1, "transient": True},  # succeeds the second time
)


@dataclass(frozen=True, slots=True)
class Said:
    """A segment as it was told and as it sounds."""

    start: int
    end: int
    pcm: bytes
    digest: str
    degraded: bool


@dataclass(frozen=True, slots=True)
class Book:
    """A text as it was spoken. `twice`, `missing`: samples of the timeline."""

    segments: tuple[Said, ...]
    twice: int
    missing: int
    out_of_order: int  # segments that do not begin where the one before ends


@dataclass(frozen=True, slots=True)
class Failed:
    """What a dead letter says. `first_sample`: where it went on after the first failure."""

    start: int
    end: int
    recovered: bool
    first_sample: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What a text with failures has to do with the same text without; all but the first two should be 0."""

    failures: int
    recovered: int
    otherwise_cut: int  # segments
    intact_changed: int  # segments in which nothing failed and which sound otherwise
    sent_changed: int  # segments that sound otherwise before the failure
    wrong_digests: int
    unwritten: int  # degraded segments without a letter
    untold: int  # letters of segments that were not called degraded, but for those that succeeded after all
    written_twice: int


def book_of(heard: Heard) -> Book:
    """An utterance from its first frame to `done`."""
    pcm = bytearray()
    twice = missing = 0
    for _, frame in heard.frames:
        at = len(pcm) // 2
        twice += max(0, at - frame.first_sample)
        missing += max(0, frame.first_sample - at)
        pcm += bytes(2 * max(0, frame.first_sample - at)) + _pcm(frame)[2 * max(0, at - frame.first_sample) :]
    (done,) = (event for event in heard.events if isinstance(event, s.Done))
    begins = [event for event in heard.events if isinstance(event, s.SegmentBegin)]
    ends = {event.segment: event for event in heard.events if isinstance(event, s.SegmentEnd)}
    said = tuple(
        Said(
            begin.start, begin.end,
            bytes(pcm[2 * begin.first_sample : 2 * (begin.first_sample + ends[begin.segment].samples)]),
            ends[begin.segment].digest, ends[begin.segment].degraded,
        )
        for begin in begins
    )  # fmt: skip
    samples, out_of_order = 0, 0
    for number, begin in enumerate(begins):
        follows = not number or begin.start == begins[number - 1].end
        out_of_order += (begin.segment, begin.first_sample) != (number, samples) or not follows
        samples += ends[begin.segment].samples
    return Book(said, twice, missing + abs(done.samples - samples), out_of_order)


def _pcm(frame: AudioFrame) -> bytes:
    return bytes(2 * frame.count) if frame.flags & FrameFlag.SILENCE_RUN else bytes(frame.payload)


def compare(calm: Book, book: Book, failed: Sequence[Failed]) -> Difference:
    """See Difference."""
    written = Counter((each.start, each.end) for each in failed)
    went_on = {(each.start, each.end): each.first_sample for each in failed}
    recovered = {(each.start, each.end) for each in failed if each.recovered}
    degraded = {(each.start, each.end) for each in book.segments if each.degraded}
    intact = sent = digests = 0
    for undisturbed, each in zip(calm.segments, book.segments, strict=False):
        digests += sha256(each.pcm).hexdigest() != each.digest
        if not each.degraded:
            intact += each.pcm != undisturbed.pcm
        else:
            before = 2 * went_on.get((each.start, each.end), 0)
            sent += each.pcm[:before] != undisturbed.pcm[:before]
    return Difference(
        failures=len(written),
        recovered=len(recovered),
        otherwise_cut=_otherwise(calm.segments, book.segments),
        intact_changed=intact,
        sent_changed=sent,
        wrong_digests=digests,
        unwritten=len(degraded - set(written)),
        untold=len(set(written) - recovered - degraded) + len(recovered & degraded),
        written_twice=sum(count - 1 for count in written.values()),
    )


def _otherwise(first: Sequence[Said], second: Sequence[Said]) -> int:
    cuts, others = ([(each.start, each.end) for each in said] for said in (first, second))
    return len(set(cuts) ^ set(others)) + (sorted(cuts) != cuts) + (sorted(others) != others)


def failing(report: Report, share: float = 1.0) -> None:
    """The same text without and with failures."""
    text = text_of(round(share * CHARACTERS), english, seed=7)
    calm, _, _ = _spoken(text, ())
    book, letters, counted = _spoken(text, SCRIPT)
    difference = compare(calm, book, [_failed(each) for each in letters])
    least = 1 if share < 1 else 0.04 * len(book.segments)
    report.add(f"{len(book.segments)} segments: failed", difference.failures, "segments", least=least)
    report.add("  of them the engine succeeded at the second time", difference.recovered, "")
    report.add("  segments out of order", book.out_of_order, "", 0)
    report.add("  segments that are cut otherwise", difference.otherwise_cut, "", 0)
    report.add("  others that sound otherwise than undisturbed", difference.intact_changed, "", 0)
    report.add("  that sound otherwise before the failure", difference.sent_changed, "", 0)
    report.add("  digests that are wrong", difference.wrong_digests, "", 0)
    report.add("  samples sent twice", book.twice, "", 0)
    report.add("  samples that are missing", book.missing, "", 0)
    report.add("  degraded, and not in the dead-letter queue", difference.unwritten, "", 0)
    report.add("  in the dead-letter queue, and not called degraded", difference.untold, "", 0)
    report.add("  in the dead-letter queue twice", difference.written_twice, "", 0)
    report.add("  failures counted that are not in it", abs(counted - len(letters)), "", 0)


def _spoken(text: str, script: Iterable[dict[str, Any]]) -> tuple[Book, list[Letter], float]:
    """By a server with this script: the text, the dead letters, and how many failures the server counted."""
    options = f"script={json.dumps(list(script))}"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "letters")
        with server_process("--engine", "tone", "--engine-option", options, "--dead-letters", str(place)) as server:
            book = run(hear(server.url, text, mode="stream", speed=2.0))
            counted = server.metric("cosystream_failed_segments_total")
        letters = [entry for entry in LetterFolder(place, LETTERS_BYTES).read() if isinstance(entry, Letter)]
    return book, letters, counted


async def hear(url: str, text: str, **options: Any) -> Book:
    """A text, spoken in a session with these options."""
    async with open_session(url, **options) as session:
        hearing = asyncio.ensure_future(session.hear())
        await session.start()
        for at in range(0, len(text), PIECE):
            await session.send(c.Text, text=text[at : at + PIECE])
        await session.send(c.End)
        return book_of(await hearing)


def _failed(letter: Letter) -> Failed:
    failed, cut = letter.failed, letter.failed.request.cut
    went_on = failed.attempts[1].first_sample if len(failed.attempts) > 1 else 0
    return Failed(cut.start, cut.end, failed.outcome == "recovered", went_on)
