"""The session machine: decides what one client hears and when, and does nothing itself.

A shell feeds it messages (`receive`), rendered audio (`place`, `complete`) and the time (`on_time`), and asks it what
to render (`next_work`) and what to send (`next_outgoing`). Times are seconds on the shell's monotonic clock. Every
method may raise ProtocolError: the session is then over, and the shell says so to the client and closes.

This file opens a session and tells messages apart; what follows from them is in the sides that it builds on.
"""

from dataclasses import replace
from typing import Any

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.codec import encode
from protocol.errors import ErrorCode, ProtocolError
from server.engines.base import Capabilities
from server.session import journal
from server.session.clock import ClockSide
from server.session.config import configure
from server.session.delivery import Delivery
from server.session.policy import Policy
from server.session.states import State, check_allowed


class Session(ClockSide):
    """See the module text."""

    def __init__(
        self,
        policy: Policy,
        capabilities: Capabilities,
        *,
        session_id: str,
        token: str,
        now: float,
        recorded: bool = False,
        principal: str = "",
    ) -> None:
        super().__init__(policy, capabilities, token, now, recorded=recorded)
        self.id = session_id
        self.principal = principal
        self._token = token

    def receive(self, message: c.ClientMessage, now: float) -> None:
        """Take a client's message. A `resume` is for the shell, which answers with `resume` or `refuse`."""
        self._now = self._heard_from_at = now
        if isinstance(message, c.NUMBERED):
            if message.seq <= self._seq:
                self._seq_acked = min(self._seq_acked, message.seq - 1)  # a repeat: ack it again
                return
            if message.seq != self._seq + 1:
                raise ProtocolError(
                    ErrorCode.SEQUENCE,
                    f"seq {message.seq} follows {self._seq}: it must grow by one",
                    f"{message.type}.seq",
                )
        check_allowed(self.state, message)
        match message:
            case c.Ping():
                self._answers.add(s.Pong(message.id))
            case c.Open():
                self._open(message)
            case c.Ack():
                self._ack(message)
            case _ if isinstance(message, c.NUMBERED):
                self._take_numbered(message)

    def is_next(self, message: c.Numbered) -> bool:
        """Whether it was not taken before, nor one left out."""
        return message.seq == self._seq + 1

    def _take_numbered(self, message: c.Numbered) -> None:
        if isinstance(message, c.Start):
            self._settle()  # before it is recorded, so that it finds the same room when the journal is read
        if isinstance(message, c.Cancel):
            self._check_answers_of_cancel()
        self._seq_after = self.journal.message(message)
        self._numbered(message)
        self._seq = message.seq

    def _open(self, message: c.Open) -> None:
        self._begin(message)
        assert self.config is not None
        self._answers.add(
            s.Opened(
                self.id,
                self._token,
                epoch=self.epoch,
                generation=self.generation,
                config=self.config.echo(),
                limits=self._limits(),
                pre_skip=self.config.pre_skip,
            )
        )
        self._answers_after = self.journal.add(
            journal.OPEN, self.id, self.principal, encode(replace(message, api_key=None)), self._token_hashes[0]
        )

    def _begin(self, message: c.Open) -> None:
        self.config = configure(message, self._capabilities, self._policy.default_voice, self._owns)
        lead_ms = message.max_lead_ms
        self._delivery = Delivery(
            self._now,
            pinned=None if message.mode == "auto" else message.mode,
            max_lead_samples=None if lead_ms is None else lead_ms * message.sample_rate // 1000,
            sample_rate=message.sample_rate,
        )
        self.state = State.IDLE
        self._acked_at = self._now

    def _limits(self) -> dict[str, Any]:
        return {
            "message_bytes": limits.MAX_MESSAGE_BYTES,
            "text_chars": limits.MAX_TEXT_CHARS,
            "utterance_chars": limits.MAX_UTTERANCE_CHARS,
            "text_window_chars": limits.TEXT_WINDOW_CHARS,
            "queued_utterances": limits.MAX_QUEUED_UTTERANCES,
            "silence_ms": limits.MAX_SILENCE_MS,
            "unacked_bytes": limits.MAX_UNACKED_BYTES,
            "idle_timeout_ms": round(self._policy.idle_timeout_s * 1000),
            "stall_timeout_ms": round(self._policy.stall_timeout_s * 1000),
            "resume_ttl_ms": round(self._policy.resume_ttl_s * 1000),
        }
