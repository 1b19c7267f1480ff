"""A set compared entry by entry, and the table of it."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import torch

from server.engines.base import EngineError
from server.engines.cosyvoice.parity import checks, driver
from server.engines.cosyvoice.parity.body import settle
from server.engines.cosyvoice.parity.findings import Finding, MissingInput
from server.engines.cosyvoice.parity.sets import VectorSet
from server.engines.cosyvoice.sections import ModelError, one_line

_CHECKS: Final = (
    *checks.CHECKS,
    (re.compile(r"e2e_stream_lens"), driver.lengths),
    (re.compile(r"e2e_stream"), driver.streamed),
    (re.compile(r"e2e_offline"), driver.offline),
)


def passes(vectors: VectorSet, tag: str) -> bool:
    """Compare a set and print it. Whether it passes."""
    print(f"{vectors.name}: CosyVoice {vectors.config.version}" + (f", tag {tag!r}" if tag else ""))
    notes: list[str] = []
    findings = list(compare_set(vectors, tag, notes))
    width = max((len(each.entry) for each in findings), default=0)
    manner = max((len(each.how) for each in findings), default=0)
    for each in findings:
        verdict = "ok" if each.ok else "FAILED"
        print(
            f"  {each.entry:{width}}  {each.how:{manner}}  {each.difference:9.2e}  of {each.bound:7.0e}  {verdict}"
            + (f"  ({each.note})" if each.note else "")
        )
    for line in notes:
        print(f"  {line}")
    failed = sum(not each.ok for each in findings)
    entries = len({each.entry for each in findings})
    verdict = f"{failed} FAILED" if failed else "all within their bounds"
    print(f"  {len(findings)} comparisons of {entries} entries: {verdict}")
    if not findings:
        print("  FAILED: there was nothing to compare")
    return bool(findings) and not failed


def compare_set(vectors: VectorSet, tag: str, notes: list[str]) -> Iterator[Finding]:
    """Every entry that is known, in the order of the table. `notes` gets a line for each one that is left out, with the
    reason. Raises ModelError where the set's model cannot be built.
    """
    case, found = settle(vectors, tag)
    if found:
        notes.append(found)
    done: set[str] = set(checks.INPUTS)
    with torch.inference_mode():
        for pattern, check in _CHECKS:
            for entry in sorted(filter(pattern.fullmatch, vectors.golden), key=_naturally):
                done.add(entry)
                yield from _guarded(entry, check(case, entry), notes)
    notes += [f"not compared: {entry} (unknown)" for entry in vectors.golden if entry not in done]


def _guarded(entry: str, findings: Iterable[Finding], notes: list[str]) -> Iterator[Finding]:
    """An entry that cannot be computed fails, and the next ones are still compared."""
    try:
        yield from findings
    except MissingInput as missing:
        notes.append(f"not compared: {entry} (is computed of {missing}, which is not there)")
    except (EngineError, ModelError, RuntimeError, ValueError, IndexError, AssertionError) as problem:
        yield Finding(entry, "not computed", float("inf"), 0.0, one_line(problem) or type(problem).__name__)


def _naturally(entry: str) -> list[tuple[int, str]]:
    """Numbers in names by their size."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", entry)]
