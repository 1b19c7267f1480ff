"""The acking side of a session: what the client has and has heard, and what is forgotten because of that."""

from typing import Final

from protocol import client_messages as c
from protocol.errors import ErrorCode, ProtocolError
from server.engines.base import Capabilities
from server.session import journal
from server.session.policy import Policy
from server.session.sending import SendingSide
from server.session.tokens import hash_token
from server.session.utterance import Utterance

MAX_STALLS: Final = 10  # believed of one ack: nothing plays long enough between two acks to run dry more often


class AckingSide(SendingSide):
    """Takes acks. Those of a connection that is gone, or of an utterance that is over, change little or nothing."""

    def __init__(self, policy: Policy, capabilities: Capabilities, token: str, now: float, *, recorded: bool) -> None:
        super().__init__(policy, capabilities, now, recorded=recorded)
        self._token_hashes = [hash_token(token)]  # the newest, then those before it until the newest was used
        self._ack_recorded_at = now
        self._complete_recorded = False

    def _ack(self, ack: c.Ack) -> None:
        if ack.generation != self.generation:
            return  # of a connection that is gone
        if ack.event > self._delivery.event:
            raise ProtocolError(
                ErrorCode.BAD_ACK, f"event {ack.event} was not sent, the last is {self._delivery.event}", "ack.event"
            )
        if ack.utterance > self._utterance_seen:
            raise ProtocolError(ErrorCode.BAD_ACK, f"utterance {ack.utterance} was not started", "ack.utterance")
        if len(self._token_hashes) > 1:  # the client has the newest
            del self._token_hashes[1:]
            self.journal.add(journal.TOKEN, *self._token_hashes, self.generation)
        utterance = self._sending.get(ack.utterance)
        if utterance is None:  # cancelled meanwhile, or heard before; but a new connection may have sent its end again
            place = (ack.utterance, ack.next_sample)
            if place <= self._delivery.ring.last_sent:
                self._delivery.acked(ack, self._now)
                self._delivery.confirm(place, ack.event)
            else:
                self._delivery.confirm((0, 0), ack.event)
            return
        if ack.next_sample > utterance.furthest:  # on an earlier connection the client may have got more than it said
            raise ProtocolError(
                ErrorCode.BAD_ACK,
                f"sample {ack.next_sample} was not sent, the end is {utterance.furthest}",
                "ack.next_sample",
            )
        if ack.played_sample > ack.next_sample:
            raise ProtocolError(ErrorCode.BAD_ACK, "more was played than received", "ack.played_sample")
        self._acked_at = self._now
        self._delivery.acked(ack, self._now)
        self._delivery.confirm((ack.utterance, ack.next_sample), ack.event)
        utterance.played(ack.played_sample)
        utterance.acked = max(utterance.acked, ack.next_sample)
        utterance.sent = max(utterance.sent, utterance.acked)
        utterance.heard = max(utterance.heard, ack.played_sample)
        self._take_stalls(utterance, ack.stalls)
        self._record_ack(ack)
        collects = self._delivery.flow.max_lead_samples is None
        self._settle(before=ack.utterance if ack.played_sample or collects else 0)
        self._consider_mode()

    def _take_stalls(self, utterance: Utterance, stalls: int) -> None:
        if stalls > utterance.stalls and self._delivery.flow.max_lead_samples is not None:
            self.observer.stalled(utterance.id, min(stalls - utterance.stalls, MAX_STALLS))
            utterance.stalls = stalls

    def _record_ack(self, ack: c.Ack) -> None:
        complete = self._delivery.ring.all_confirmed
        news = complete and not self._complete_recorded
        self._complete_recorded = complete
        if news or self._now >= self._ack_recorded_at + journal.ACK_EVERY_S:
            self._ack_recorded_at = self._now
            self.journal.add(journal.ACK, ack.utterance, ack.next_sample, ack.played_sample, complete)

    def _settle(self, before: int = 0) -> None:
        """Forget utterances that are sent and heard, or followed by one that is being heard."""
        follows_play = self._delivery.flow.max_lead_samples is not None
        for utterance in list(self._sending.values()):
            if not utterance.done_sent:
                break
            if utterance.heard_all(follows_play) or utterance.id < before:
                del self._sending[utterance.id]
                self._delivery.flow.heard(utterance.id)
                self.journal.add(journal.GONE, utterance.id)
