"""A pure session played against a scripted server over connections that come and go, in virtual time."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from client.effects import Adopt, Connect, Deliver, Drop, Effect, Failed, Finished, Notice, Send, SendOn
from client.errors import ConnectFailed
from client.items import Audio, Item
from client.session import SessionState
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame, Codec, FrameFlag
from tests.support.client_script import Sent, opened

T = TypeVar("T")
TTL_MS = 120_000


def repeated(sent: Sequence[Sent], ask: c.Resume, generation: int, *, renumber: bool = False) -> list[Sent]:
    """What an honest server sends after `resumed`: events after `events_seen`, frames from `next_sample`, in order.

    `renumber`: it was restarted, and tells events of the segment at that sample again under new numbers.
    """
    wire = hashlib.sha256()
    out: list[Sent] = []
    number = ask.events_seen
    segment_at = max(
        (e.first_sample for e in sent if isinstance(e, s.SegmentBegin) and e.first_sample <= ask.next_sample), default=0
    )
    old_segments = {e.segment for e in sent if isinstance(e, s.SegmentBegin) and e.first_sample < segment_at}
    for item in sent:
        if isinstance(item, AudioFrame):
            if item.utterance < ask.utterance or (
                item.utterance == ask.utterance and item.end_sample <= ask.next_sample and item.count
            ):
                continue
            skip = max(0, ask.next_sample - item.first_sample) if item.utterance == ask.utterance else 0
            if skip and item.codec is Codec.PCM:
                payload = b"" if item.flags & FrameFlag.SILENCE_RUN else bytes(item.payload)[2 * skip :]
                item = AudioFrame(
                    Codec.PCM, item.utterance, item.first_sample + skip, item.count - skip, payload, item.flags
                )
            wire.update(item.payload)
            out.append(replace(item, generation=generation))
            continue
        assert isinstance(item, s.Event)
        again = renumber and (isinstance(item, s.Done) or getattr(item, "segment", -1) not in old_segments)
        if item.event <= ask.events_seen and not again:
            continue
        number += 1
        if isinstance(item, s.Done):
            item = replace(item, wire_digest=wire.hexdigest())
            wire = hashlib.sha256()
        out.append(replace(item, event=number))
    return out


class Rehearsal:
    """Executes effects as a shell would, and remembers them."""

    def __init__(self, state: SessionState | None = None, **options: Any) -> None:
        options.setdefault("resume_ttl_ms", TTL_MS)
        self.state = state or SessionState(opened(**options), 0.0)
        self.now = 0.0
        self.carrier = 0
        self.delivered: list[tuple[int, Item]] = []
        self.sent: list[c.ClientMessage] = []  # on the connection that carried the session
        self.asked: list[tuple[int, c.ClientMessage]] = []  # on others
        self.attempts: dict[int, float] = {}  # still open or opening, and when they began
        self.began: list[float] = []  # of every attempt
        self.dropped: list[int] = []
        self.notices: list[str] = []
        self.failure: Exception | None = None
        self.finished: list[int] = []
        self.repeated: list[Sent] = []

    def do(self, effects: Sequence[Effect] | None) -> "Rehearsal":
        for effect in effects or []:
            match effect:
                case Send(message):
                    self.sent.append(message)
                case SendOn(connection, message):
                    assert connection in self.attempts
                    self.asked.append((connection, message))
                case Connect(connection):
                    assert connection not in self.attempts
                    assert connection > len(self.began)
                    self.attempts[connection] = self.now
                    self.began.append(self.now)
                case Adopt(connection):
                    del self.attempts[connection]
                    self.carrier = connection
                case Drop(connection):
                    self.attempts.pop(connection, None)
                    self.dropped.append(connection)
                case Deliver(utterance, item, cost):
                    self.delivered.append((utterance, item))
                    end = item.end_sample if isinstance(item, Audio) and not item.packets else 0
                    self.do(self.state.consumed(utterance, end, cost, self.now))
                case Finished(utterance):
                    self.finished.append(utterance)
                case Notice(text):
                    self.notices.append(text)
                case Failed(error):
                    self.failure = error
                case _:
                    pass
        assert len(self.attempts) <= 3
        return self

    def until(self, when: float) -> "Rehearsal":
        """Lets time pass."""
        while (due := self.state.deadline()) is not None and due <= when:
            self.now = max(self.now, due)
            self.do(self.state.tick(self.now, due))
        self.now = when
        return self

    def feed(self, *items: Sent, connection: int | None = None) -> "Rehearsal":
        """From the server, on the connection that carries the session or another one."""
        at = self.carrier if connection is None else connection
        for item in items:
            if isinstance(item, AudioFrame):
                self.do(self.state.feed_frame(item, self.now, at))
            else:
                self.do(self.state.feed_message(item, self.now, at))
        return self

    def say(self, text: str, *, end: bool = True) -> "Rehearsal":
        """Begins an utterance."""
        self.do(self.state.start(c.Start(0, 1), self.now)).do(self.state.text(text, self.now))
        return self.do(self.state.end(self.now)) if end else self

    def lose(self, code: int | None = None) -> "Rehearsal":
        """The carrier is closed."""
        return self.do(self.state.lost(code, "", self.now, self.carrier))

    def connect(self, connection: int | None = None) -> c.ClientMessage | None:
        """An attempt gets through (the newest, unless said). What it asks for, if it does."""
        number = connection if connection is not None else max(self.attempts)
        before = len(self.asked)
        self.do(self.state.connected(number, self.now))
        return self.asked[-1][1] if len(self.asked) > before else None

    def refuse(self, why: str = "nothing listens there") -> "Rehearsal":
        """Every attempt is refused."""
        for number in list(self.attempts):
            del self.attempts[number]
            self.do(self.state.refused(number, ConnectFailed(why), self.now))
        return self

    def resume(
        self, sent: Sequence[Sent], *, epoch: int = 0, seq: int | None = None, first: int | None = None
    ) -> c.Resume:
        """The newest attempt gets through, asks, and is told to go on; `sent` is what the whole session is about.

        `first`: only so many of the messages that follow arrive; all of them are in `repeated`.
        """
        ask = self.connect()
        assert isinstance(ask, c.Resume)
        number = self.asked[-1][0]
        generation = ask.generation_seen + 1
        taken = self.state.window.acked if seq is None else seq
        self.feed(
            s.Resumed(generation, epoch, ask.utterance, ask.next_sample, 0, "next", "stream", taken, 1_000),
            connection=number,
        )
        self.repeated = repeated(sent, ask, generation, renumber=epoch != ask.epoch)
        self.feed(*self.repeated[:first])
        return ask

    def of(self, kind: type[T]) -> list[T]:
        """What was sent on carriers, of one type."""
        return [message for message in self.sent if isinstance(message, kind)]

    def pcm(self, utterance: int = 1) -> bytes:
        """The audio delivered, checked to be one piece."""
        parts: list[bytes] = []
        at = 0
        for number, item in self.delivered:
            if number == utterance and isinstance(item, Audio):
                assert item.first_sample == at
                at = item.end_sample
                parts.append(item.pcm)
        return b"".join(parts)

    def events(self, utterance: int = 1) -> list[Item]:
        return [item for number, item in self.delivered if number == utterance and not isinstance(item, Audio)]
