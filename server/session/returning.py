"""The returning side of a session: its connection is lost, and a client comes back on another one."""

from typing import Final

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.frames import AudioFrame, Codec
from server.engines.base import Capabilities
from server.session import journal
from server.session.acking import AckingSide
from server.session.policy import Policy
from server.session.refusal import ResumeRefused
from server.session.ring import RangeError
from server.session.tokens import MAX_TOKENS, hash_token, is_token

MAX_EVENT: Final = limits.U53 // 2  # no session has so many: after a restart the client alone knows how many it had


class ReturningSide(AckingSide):
    """Finds what a client lacks, so that it hears the very next sample."""

    def __init__(self, policy: Policy, capabilities: Capabilities, token: str, now: float, *, recorded: bool) -> None:
        super().__init__(policy, capabilities, token, now, recorded=recorded)
        self.epoch = 0
        self.resumes = 0
        self.dead = False  # the connection takes nothing and says nothing: the shell should abort it
        self._heard_from_at = now
        self._detached_at = now

    def refuse(self, refusal: ResumeRefused) -> None:
        """Tell a client, who may still `open`, that another session cannot be resumed."""
        self._answers.add(s.ResumeFailed(refusal.reason, refusal.utterance, refusal.position))

    def accepts(self, token: str) -> bool:
        """Whether this is the session's token, in constant time."""
        return is_token(token, self._token_hashes)

    def detach(self, now: float) -> None:
        """The connection is gone; what is made waits for another one."""
        self._now = self._detached_at = now
        self.attached = self.dead = False
        self._nobody_listens()
        self._answers.clear()

    def resume(self, message: c.Resume, new_token: str, now: float) -> None:
        """Go on, on a new connection, from what the client has. Raises ResumeRefused, and then nothing has changed.

        A session from a journal first renders again what was cut short: `verified` tells when that agrees.
        """
        self._now = now
        assert self.config is not None
        if message.epoch > self.epoch:
            raise ResumeRefused("epoch")
        if message.generation_seen > self.generation or message.played_sample > message.next_sample:
            raise ResumeRefused("range")
        if (message.next_sample and not message.utterance) or message.events_seen > MAX_EVENT:
            raise ResumeRefused("range")
        self._go_on(message)
        self._tell_of(self._delivery.resumed(now, self._paused))
        self.generation += 1
        # The answer may be lost, and a client may have asked on several connections: until one is used, all are good.
        used = hash_token(message.token)
        others = [known for known in self._token_hashes if known != used]
        self._token_hashes = [hash_token(new_token), used, *others][:MAX_TOKENS]
        self._answers_after = self.journal.add(journal.TOKEN, *self._token_hashes, self.generation)
        self._new_token = new_token
        self._resumed_from = message
        self.attached, self.dead = True, False
        self.resumes += 1
        self._heard_from_at = self._acked_at = self._sent_at = now
        self._answers.clear()
        if self._writing is not None:
            self._writing.last_text_at = now  # the pause was the network's
        if self.verified:
            self._tell_resumed()

    def _go_on(self, message: c.Resume) -> None:
        """Find what the client lacks. Raises ResumeRefused, and then nothing has changed."""
        assert self.config is not None
        place = (message.utterance, message.next_sample)
        current = self._sending.get(message.utterance)
        if current is not None and not current.acked <= message.next_sample <= current.furthest:
            raise ResumeRefused("range")  # it confirmed more, or never got so much
        opus = self.config.codec is Codec.OPUS or (current is not None and current.opus_from is not None)
        preroll = self.config.open.sample_rate * limits.OPUS_PREROLL_MS // 1000
        lost_decoder = opus and current is not None and not message.have_decoder and message.next_sample > 0
        try:
            self._delivery.rewind(
                place, message.events_seen, preroll if lost_decoder else None,
                played=message.played_sample, live=current is not None,
            )  # fmt: skip
        except RangeError:
            raise ResumeRefused("range") from None
        waiting = {each.item.utterance for each in self._delivery.ring.following() if isinstance(each.item, s.Done)}
        for utterance in self._sending.values():
            if utterance.id == message.utterance:
                utterance.sent = message.next_sample
                utterance.played(message.played_sample)
                utterance.acked = max(utterance.acked, message.next_sample)
                utterance.heard = max(utterance.heard, message.played_sample)
            elif utterance.id > message.utterance:
                utterance.sent = utterance.acked = 0
            else:
                utterance.sent = utterance.acked = utterance.coded
            done_sent = utterance not in self._speaking and utterance.id not in waiting
            self.utterances += done_sent - utterance.done_sent
            utterance.done_sent = done_sent

    def _tell_resumed(self) -> None:
        message = self._resumed_from
        place = (message.utterance, message.next_sample)
        frames = (each.item for each in self._delivery.ring.following() if isinstance(each.item, AudioFrame))
        first = next(frames, None)
        utterance, sample = place if first is None else (first.utterance, first.first_sample)
        last = self._sending.get(utterance)
        if first is None and last is not None:
            sample = last.coded  # where the next frame will begin: after a restart Opus begins earlier than asked
        room = self.room
        self._seq_acked, self._room_told = self._seq, room
        self._answers.add(
            s.Resumed(
                self.generation, self.epoch, utterance, sample, last.coded if last else sample, self._new_token,
                self.mode, self._seq, room,
            )
        )  # fmt: skip
