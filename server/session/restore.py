"""A session from its journal: the text is cut again exactly as before; its audio waits until the client comes back."""

from collections.abc import Iterable
from typing import Any

from protocol.codec import decode_client
from protocol.errors import ProtocolError
from protocol.server_messages import Done
from server.engines.base import Capabilities, RenderPlan
from server.session import journal
from server.session.machine import Policy, Session
from server.session.resuming import KnownSegment, KnownUtterance, Restored
from server.session.utterance import Utterance


class CannotRestore(ValueError):
    """A journal does not hold together, or asks for what this server no longer has."""


def restore(lines: Iterable[bytes], policy: Policy, capabilities: Capabilities, *, epoch: int, now: float) -> Session:
    """The session, without a connection. Raises CannotRestore."""
    try:
        records = [journal.read(line) for line in lines]
        if not records or records[0][0] != journal.OPEN:
            raise ValueError("it does not begin with `open`")
        return _Restoring(records[0][1], policy, capabilities, epoch, now).replay(records[1:])
    except (ValueError, TypeError, KeyError, IndexError, AssertionError, ProtocolError) as error:
        raise CannotRestore(f"the journal cannot be used: {error}") from error


class _Restoring:
    def __init__(self, opened: list[Any], policy: Policy, capabilities: Capabilities, epoch: int, now: float) -> None:
        session_id, principal, message, token_hash = opened
        self.restored = Restored()
        self.session = Session(
            policy, capabilities, session_id=session_id, token="", now=now, recorded=True, principal=principal
        )
        self.session.begin_restored(decode_client(message), self.restored, [token_hash], epoch)

    def replay(self, records: list[tuple[str, list[Any]]]) -> Session:
        for kind, values in records:
            self._one(kind, values)
        return self.session

    def _one(self, kind: str, values: list[Any]) -> None:
        session = self.session
        match kind, values:
            case journal.MESSAGE, [text]:
                session.take_again(decode_client(text))
            case journal.FLUSH, [number]:
                if (utterance := session.unfinished_utterance(number)) is not None:
                    utterance.segmenter.flush(soft=True)
            case journal.SEGMENT, [number, segment, start, end, first_sample, mode, chunk_ms]:
                if (utterance := session.unfinished_utterance(number)) is not None:
                    plan = RenderPlan(mode=mode, chunk_ms=tuple(chunk_ms))
                    self._segment(utterance, segment, (start, end, first_sample), plan)
            case journal.CRC, [number, end_sample, crc]:
                self._known(number).chunks.append((end_sample, crc))
            case journal.END, [number, segment, samples, digest]:
                if (utterance := session.unfinished_utterance(number)) is not None:
                    known = self._known(number).segments[segment]
                    known.samples, known.digest = samples, bytes.fromhex(digest)
                    utterance.segments, utterance.record = segment + 1, None
                    utterance.samples += samples
            case journal.DONE, [number, samples, digest, statistics]:
                self._known(number).done = Done(0, number, samples, digest, "", statistics)
                session.rendered_before(number)
            case journal.GONE, [number]:
                session.gone_before(number)
            case journal.ACK, [number, next_sample, played_sample, complete]:
                session.acked_before(number, next_sample, played_sample, complete=complete)
            case journal.TOKEN, [newest, older, generation]:
                session.token_before([newest, older], generation)
            case journal.CODEC, [number, sample]:
                if (utterance := session.unfinished_utterance(number)) is not None:
                    utterance.opus_from = sample
            case _:
                raise ValueError(f"an unknown record {kind!r}")

    def _segment(self, utterance: Utterance, segment: int, span: tuple[int, int, int], plan: RenderPlan) -> None:
        start, end, first_sample = span
        work = utterance.next_work(plan)
        record = utterance.record
        if work is None or record is None or (record.id, record.start, record.end) != (segment, start, end):
            raise ValueError(f"segment {segment} of utterance {utterance.id} is cut differently now")
        record.first_sample = first_sample
        self._known(utterance.id).segments.append(KnownSegment(work, record))

    def _known(self, number: int) -> KnownUtterance:
        return self.restored.utterances.setdefault(number, KnownUtterance())
