"""The sending side of a session: answers first, then how much text may come, then events and audio."""

from dataclasses import replace
from typing import Final

from protocol import limits
from protocol import server_messages as s
from protocol.codec import encode
from protocol.frames import AudioFrame
from server.engines.base import Capabilities
from server.link import Switch
from server.session import journal
from server.session.answers import MAX_ANSWERS, Answers
from server.session.delivery import Delivery
from server.session.entries import Place
from server.session.policy import Policy
from server.session.writing import WritingSide

SEND_ROOM_AFTER: Final = limits.TEXT_WINDOW_CHARS // 4  # tell a waiting writer once this much room came back


class SendingSide(WritingSide):
    """Hands out one message after the other, and has the mode decided on the way."""

    def __init__(self, policy: Policy, capabilities: Capabilities, now: float, *, recorded: bool) -> None:
        super().__init__(policy, capabilities, now, recorded=recorded)
        self.generation = 1
        self._sent_at = now
        self._answers = Answers()
        self._answers_after = 0  # the journal record that `opened` and `resumed` wait for
        self._seq = 0  # the last numbered message that was taken,
        self._seq_after = 0  # the journal record that its ack waits for,
        self._seq_acked = 0  # and the last that the client was told of
        self._room_told = limits.TEXT_WINDOW_CHARS

    @property
    def verified(self) -> bool:
        """False while a session from a journal has still to prove that it goes on with the same audio."""
        return True

    @property
    def answers_full(self) -> bool:
        """Whether so many answers wait to be sent that no more messages should be read."""
        return len(self._answers) + self._delivery.ring.cancelled_ready >= MAX_ANSWERS

    def next_outgoing(self, now: float) -> str | bytes | None:
        """The next message to write, or None while nothing may be sent."""
        self._now = now
        outgoing = self._next_outgoing()
        if outgoing is None and self._consider_mode():
            outgoing = self._next_outgoing()
        if outgoing is not None:
            self._sent_at = now
        return outgoing

    def _next_outgoing(self) -> str | bytes | None:
        if not self.attached or self.journal.written < self._answers_after:
            return None
        answer = self._answers.next()
        if answer is not None:
            return encode(answer)
        if self.config is None or not self.verified:
            return None
        room = self.room
        news = self._seq > self._seq_acked or room - self._room_told >= SEND_ROOM_AFTER
        if news and self.journal.written >= self._seq_after:
            self._seq_acked, self._room_told = self._seq, room
            return encode(s.SeqAck(self._seq, room))
        item = self._delivery.take(self._now, paused=self._paused, written=self.journal.written)
        if isinstance(item, AudioFrame):
            self._frame_went(item)
            return item.encode(self.generation)
        return None if item is None else encode(self._event_went(item))

    def _frame_went(self, frame: AudioFrame) -> None:
        if self._delivery.flow.oldest_sent_at == self._now:
            self._acked_at = self._now  # an ack is awaited from here on
        utterance = self._sending.get(frame.utterance)
        if utterance is None:
            return  # it was heard, but a new connection may lack its last frame
        if not utterance.was_sent:
            utterance.was_sent = True
            if utterance.awaited_since is not None:
                self.observer.first_audio(utterance.id, self._now - utterance.awaited_since)
        utterance.sent = max(utterance.sent, frame.end_sample)
        utterance.furthest = max(utterance.furthest, utterance.sent)

    def _event_went(self, event: s.Event) -> s.Event:
        if not isinstance(event, s.Done):
            return event
        utterance = self._sending.get(event.utterance)
        if utterance is not None and not utterance.done_sent:
            utterance.done_sent = True
            self.utterances += 1
            if utterance.sent == 0:
                del self._sending[utterance.id]  # nothing to hear
                self.journal.add(journal.GONE, utterance.id)
            self.observer.spoken(event.utterance, event.statistics)
        return replace(event, wire_digest=self._delivery.wire_digest(event.utterance))

    @property
    def delivery(self) -> Delivery:
        """What is sent and how, to look at."""
        return self._delivery

    def _consider_mode(self) -> bool:
        """Whether the mode changed."""
        place = self._mode_place()
        return place is not None and self._tell_of(self._delivery.consider(self._now, self._paused, *place))

    def _tell_of(self, switch: Switch | None) -> bool:
        if switch is not None:
            self.observer.switched(switch)
        return switch is not None

    def _mode_place(self) -> Place | None:
        """The utterance and timeline sample that a change of the mode would begin at; None: there is none yet."""
        if self.config is None or not self.attached or not self.verified:
            return None
        number = self._delivery.ring.last_sent[0]
        utterance = self._sending.get(number) or next(iter(self._sending.values()), None)
        if utterance is not None:
            return utterance.id, self._timeline_sample(utterance, utterance.sent)
        return (number, 0) if number else None
