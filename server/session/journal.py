"""What a session writes down so that another process can go on with it: one JSON array per line, the kind first.

What a client was told must be on disk before it is told: `made` counts the records, `written` those that the store has
confirmed; `seq_ack`, events and audio wait for theirs. Without a store nothing is recorded and nothing waits.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import orjson

from protocol import client_messages as c
from protocol.codec import encode
from server.engines import codes as speech_codes

ACK_EVERY_S: Final = 1.0  # what was played is recorded at most this often

OPEN: Final = "open"  # session, principal, the message without its key, hash of the token
TOKEN: Final = "token"  # noqa: S105  # a record's kind: hashes of those that are good, generation
MESSAGE: Final = "message"  # a numbered message that was taken
FLUSH: Final = "flush"  # utterance: the clock flushed it
SEGMENT: Final = "segment"  # utterance, segment, text start and end, first sample, mode and chunks of the plan
PART: Final = "part"  # utterance, segment, source, text start and end, first sample and reason of a `Part`
DRAWN: Final = "drawn"  # who draws the codes that follow: see `drawer`
CODES: Final = "codes"  # utterance, segment, speech codes that were told now (`server/engines/codes.py`)
CRC: Final = "crc"  # utterance, end sample of a rendered chunk, its CRC-32
END: Final = "end"  # utterance, segment, samples, digest
DONE: Final = "done"  # utterance, samples, digest, statistics: all of it was rendered
GONE: Final = "gone"  # utterance: it is heard, or had nothing to hear
ACK: Final = "ack"  # utterance, next sample, played sample, whether nothing was on the way
CODEC: Final = "codec"  # utterance, timeline sample where PCM ended and Opus began; null: it did not


def drawer(fingerprint: str) -> str:
    """An engine's fingerprint, in short: codes mean something to the engine alone that drew them."""
    return sha256(fingerprint.encode()).hexdigest()[:16]


class SessionJournal:
    """Lines that wait for the store."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.drawn_by = ""  # the latest `DRAWN`
        self.made = 0
        self.written = 0
        self._lines: list[bytes] = []

    def add(self, kind: str, *values: Any) -> int:
        """Record something. Returns the number to wait for."""
        if self.enabled:
            self._lines.append(orjson.dumps([kind, *values]))
            self.made += 1
        return self.made

    def message(self, message: c.ClientMessage) -> int:
        """A message of the client that was taken."""
        return self.add(MESSAGE, encode(message)) if self.enabled else self.made

    def codes(self, utterance: int, segment: int, codes: Sequence[int], fingerprint: str) -> int:
        """Speech codes that an engine with this fingerprint told of. Returns as `add`."""
        if not self.enabled:
            return self.made
        if self.drawn_by != (by := drawer(fingerprint)):
            self.drawn_by = by
            self.add(DRAWN, by)
        return self.add(CODES, utterance, segment, speech_codes.to_text(codes))

    def take(self) -> tuple[list[bytes], int]:
        """Lines to write now, and what `written` becomes once they are."""
        lines, self._lines = self._lines, []
        return lines, self.made

    @property
    def waits(self) -> bool:
        """Whether lines are to be written."""
        return bool(self._lines)

    def stop(self) -> None:
        """The store failed: the session goes on without."""
        self.enabled = False
        self._lines.clear()
        self.written = self.made


def read(line: bytes) -> tuple[str, list[Any]]:
    """A record. Raises ValueError where it is none."""
    record = orjson.loads(line)
    if not isinstance(record, list) or not record or not isinstance(record[0], str):
        raise ValueError(f"not a record: {line[:80]!r}")
    return record[0], record[1:]
