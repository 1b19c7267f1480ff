"""A session from its journal: the text is cut again exactly as before; its audio waits until the client comes back."""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from protocol import client_messages as c
from protocol import limits
from protocol.codec import decode_client
from protocol.frames import Codec
from protocol.media.opus import packet_count
from protocol.server_messages import Done
from server.engines import codes as speech_codes
from server.engines.base import FAILURE_KINDS, Capabilities, RenderPlan
from server.engines.rendering import Part
from server.session import journal
from server.session.entries import Place
from server.session.machine import Session
from server.session.policy import Policy
from server.session.refusal import ResumeRefused
from server.session.ring import Ring
from server.session.tokens import is_token
from server.session.utterance import Utterance, joined
from server.session.verifying import KnownSegment, KnownUtterance, Restored
from server.session.work import Work

MAX_RECORDS: Final = 400_000  # of one journal: a day of speech, and about 100 MB while it is read


class CannotRestore(ValueError):
    """A journal does not hold together, or asks for what this server no longer has."""


def restore(
    lines: Iterable[bytes], policy: Policy, capabilities: Capabilities, *, epoch: int, now: float
) -> "RestoredSession":
    """The session, without a connection. Raises CannotRestore."""
    try:
        records = [journal.read(line) for line in islice(lines, MAX_RECORDS + 1)]
        if len(records) > MAX_RECORDS:
            raise ValueError(f"it has more than {MAX_RECORDS} records")
        if not records or records[0][0] != journal.OPEN:
            raise ValueError("it does not begin with `open`")
        session = RestoredSession(records[0][1], policy, capabilities, epoch, now)
        _Replay(session, journal.drawer(capabilities.fingerprint)).run(records[1:])
        return session
    except Exception as error:  # whatever a journal that somebody else wrote makes of the code
        raise CannotRestore(f"the journal cannot be used: {error}") from error


def belongs_to(lines: Sequence[bytes], principal: str, token: str) -> bool:
    """Whether this principal with this token may have the session; also True where only reading on can tell."""
    hashes: list[str] = []
    try:
        for line in lines:
            if line.startswith((b'["open"', b'["token"')):
                kind, values = journal.read(line)
                if kind == journal.OPEN:
                    if values[1] != principal:
                        return False
                    hashes = [values[3]]
                else:
                    hashes = values[:-1]
        return is_token(token, hashes)
    except (ValueError, IndexError, TypeError):
        return True


class RestoredSession(Session):
    """A session that another process began. Until its client comes back it renders nothing; then it renders again what
    that client had begun to hear, and goes on where the two agree.
    """

    def __init__(self, opened: list[Any], policy: Policy, capabilities: Capabilities, epoch: int, now: float) -> None:
        session_id, principal, message, token_hash = opened
        super().__init__(
            policy, capabilities, session_id=session_id, token="", now=now, recorded=True, principal=principal
        )
        accepted = decode_client(message)
        if not isinstance(accepted, c.Open):
            raise ValueError("it does not begin with `open`")
        self._begin(accepted)
        self._token_hashes, self.epoch, self.attached = [token_hash], epoch, False
        self.restored = Restored()
        self._begun_at: Place = (0, 0)  # where the client was when it came back first

    @property
    def verified(self) -> bool:
        """Whether the client may hear what is rendered."""
        return self.restored.verified

    @property
    def wants_audio(self) -> bool:
        """Not before a client has come back."""
        return self.restored.continued and super().wants_audio

    def _recorded_before(self, utterance: Utterance, first_sample: int, pcm: bytes) -> bool:
        if self.restored.agrees_now(utterance.id, first_sample, pcm) and self.attached:
            self._tell_resumed()
        return self.restored.knows(utterance.id, utterance.samples)

    def _go_on(self, message: c.Resume) -> None:
        """Find what to render again so that the audio goes on at the client's next sample."""
        restored = self.restored
        if restored.continued:
            if (message.utterance, message.next_sample) <= self._begun_at:  # nothing of the new encoder has arrived
                message = replace(message, have_decoder=False)
            super()._go_on(message)
            return
        number, position = message.utterance, message.next_sample
        if number > self._utterance_seen:
            raise ResumeRefused("range")
        current = self._sending.get(number)
        heard = 0 if current is None else self._timeline_sample(current, position)
        known = restored.utterances.get(number)
        end = known.end if known else 0
        if current is not None and heard > end:
            if position > self._padded(current, end):
                raise ResumeRefused("epoch", number, known.text_position(heard) if known else 0)
            heard = end
        for earlier in [each for each in self._sending.values() if each.id < number]:
            self._drop(earlier)
            self.journal.add(journal.GONE, earlier.id)
        start = 0 if current is None else self._code_from(current, position)
        for utterance in self._sending.values():
            before = restored.utterances.get(utterance.id)
            if before is not None:
                begin = before.prepare(utterance, start if utterance is current else 0)
                start = begin if utterance is current else start
        for settled, before in restored.utterances.items():  # the client may lack their `done`
            if before.done is not None and settled >= number and settled not in self._sending:
                self._delivery.ring.add(before.done)
        self._speaking = deque(self._sending.values())
        if current is not None:
            current.sent = current.acked = current.furthest = position
            current.heard = message.played_sample
        self._delivery.event = message.events_seen
        self._begun_at = (number, position)
        self._delivery.ring.begin(self._begun_at, message.events_seen)
        self._delivery.flow.restart(number, position, message.played_sample, live=current is not None)
        restored.expect(number, start, heard)

    def _padded(self, utterance: Utterance, end: int) -> int:
        """How far frames may reach of an utterance that ends at this timeline sample."""
        assert self.config is not None
        if not end or (self.config.codec is Codec.PCM and utterance.opus_from is None):
            return end
        coder = self.config.coder
        return packet_count(end, self.config.pre_skip, coder.samples_per_packet) * coder.samples_per_packet

    def _code_from(self, utterance: Utterance, position: int) -> int:
        """Let the coder begin so that the client can go on at `position`. Returns the first sample it needs."""
        assert self.config is not None
        if utterance.opus_from is not None and position <= utterance.opus_from:
            utterance.opus_from = None  # the client got no Opus yet
            self.journal.add(journal.CODEC, utterance.id, None)
        known = self.restored.utterances.get(utterance.id)
        if known is not None and known.done is not None and position >= self._padded(utterance, known.end):
            utterance.coded, utterance.code_from = position, known.end  # the client has all of it
            return known.end
        if self.config.codec is Codec.OPUS or utterance.opus_from is not None:
            packet = self.config.coder.samples_per_packet
            preroll = self.config.open.sample_rate * limits.OPUS_PREROLL_MS // 1000
            position = max(0, position // packet - -(-preroll // packet)) * packet
        utterance.coded = utterance.code_from = position
        return position

    # ---- from the journal ----

    def take_again(self, message: c.ClientMessage) -> None:
        """A numbered message that was taken before."""
        assert isinstance(message, c.NUMBERED)
        self._numbered(message)
        self._seq = self._seq_acked = message.seq

    def unfinished_utterance(self, number: int) -> Utterance | None:
        """One that was neither cancelled nor heard to its end."""
        return self._sending.get(number)

    def rendered_before(self, number: int) -> None:
        """All of an utterance was rendered."""
        self._speak_no_more(number)

    def cut_again(self, utterance: Utterance, plan: RenderPlan) -> Work | None:
        """The next piece of its text, as it was cut before."""
        return self._cut(utterance, plan)

    def acked_before(self, number: int, next_sample: int, played_sample: int, *, complete: bool) -> None:
        """What the client had; `complete`: nothing was on the way."""
        if (utterance := self._sending.get(number)) is not None:
            utterance.acked, utterance.heard = next_sample, played_sample
        if complete:  # so every `cancelled`, too
            self._delivery.ring = Ring()

    def gone_before(self, number: int) -> None:
        """An utterance was settled, or passed over because a client was in a later one."""
        self._sending.pop(number, None)
        self._speak_no_more(number)

    def _speak_no_more(self, number: int) -> None:
        self._unspoken -= sum(each.unspoken for each in self._speaking if each.id == number)
        self._speaking = deque(each for each in self._speaking if each.id != number)

    def token_before(self, hashes: Sequence[str], generation: int) -> None:
        """A client had come back."""
        self._token_hashes, self.generation = list(hashes), generation


def _are_hashes(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(each, str) and re.fullmatch("[0-9a-f]{64}", each) for each in values)


class _Replay:
    """Reads a journal's records, in order. `drawer`: whose codes still mean the same."""

    def __init__(self, session: RestoredSession, drawer: str) -> None:
        self.session = session
        self.drawer = drawer
        self.restored = session.restored

    def run(self, records: list[tuple[str, list[Any]]]) -> None:
        for kind, values in records:
            self._one(kind, values)

    def _one(self, kind: str, values: list[Any]) -> None:
        session = self.session
        match kind, values:
            case journal.MESSAGE, [str(text)]:
                session.take_again(decode_client(text))
            case journal.FLUSH, [int(number)]:
                if (utterance := session.unfinished_utterance(number)) is not None:
                    utterance.segmenter.flush(soft=True)
                    utterance.clock_flushed = True
            case journal.SEGMENT, [
                int(number),
                int(segment),
                int(start),
                int(end),
                int(first_sample),
                "stream" | "block" as mode,
                list(chunk_ms),
            ]:
                if (utterance := session.unfinished_utterance(number)) is not None:
                    plan = RenderPlan(mode=mode, chunk_ms=tuple(chunk_ms))
                    self._segment(utterance, segment, (start, end, first_sample), plan)
            case journal.PART, [
                int(number),
                int(segment),
                "engine" | "fallback" | "clip" as source,
                int(start),
                int(end),
                int(first_sample),
                str(why),
            ] if why in FAILURE_KINDS:
                if session.unfinished_utterance(number) is not None:
                    part = Part(source, start, end, first_sample, why)
                    known_segment = self._known(number).segments[segment].segment
                    known_segment.parts = joined(known_segment.parts, part)
            case journal.DRAWN, [str(by)]:
                session.journal.drawn_by = by
            case journal.CODES, [int(number), int(segment), str(told)]:
                if session.unfinished_utterance(number) is not None:
                    known, codes = self._known(number).segments[segment], speech_codes.from_text(told)
                    if session.journal.drawn_by == self.drawer:  # to another model they are other sounds
                        known.codes += codes
            case journal.CRC, [int(number), int(end_sample), int(crc)]:
                self._known(number).chunks.append((end_sample, crc))
            case journal.END, [int(number), int(segment), int(samples), str(digest)]:
                if (utterance := session.unfinished_utterance(number)) is not None:
                    known = self._known(number).segments[segment]
                    known.samples, known.digest = samples, bytes.fromhex(digest)
                    utterance.segments, utterance.open_segment = segment + 1, None
                    utterance.degraded += bool(known.segment.parts)
                    utterance.samples += samples
            case journal.DONE, [int(number), int(samples), str(digest), dict(statistics)]:
                self._known(number).done = Done(0, number, samples, digest, "", statistics)
                session.rendered_before(number)
            case journal.GONE, [int(number)]:
                session.gone_before(number)
            case journal.ACK, [int(number), int(next_sample), int(played_sample), bool(complete)]:
                session.acked_before(number, next_sample, played_sample, complete=complete)
            case journal.TOKEN, [*hashes, int(generation)] if _are_hashes(hashes) and 0 < generation <= limits.U32:
                session.token_before(hashes, generation)
            case journal.CODEC, [int(number), int() | None as sample]:
                if (utterance := session.unfinished_utterance(number)) is not None:
                    utterance.opus_from = sample
            case _:
                raise ValueError(f"an unknown record {kind!r}")

    def _segment(self, utterance: Utterance, number: int, span: tuple[int, int, int], plan: RenderPlan) -> None:
        start, end, first_sample = span
        work = self.session.cut_again(utterance, plan)
        segment = utterance.open_segment
        if work is None or segment is None or (segment.id, segment.start, segment.end) != (number, start, end):
            raise ValueError(f"segment {number} of utterance {utterance.id} is cut differently now")
        segment.first_sample = first_sample
        self._known(utterance.id).segments.append(KnownSegment(work, segment))

    def _known(self, number: int) -> KnownUtterance:
        return self.restored.utterances.setdefault(number, KnownUtterance())
