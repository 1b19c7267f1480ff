"""What is logged, counted and shown of sessions, the same for every way in."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal

import structlog

from protocol.errors import ERRORS, ErrorCode, ProtocolError
from server.link import Switch
from server.observe.account import SessionAccount
from server.observe.watch import Trouble, Watch
from server.session import Session, SessionObserver

log = structlog.get_logger(__name__)

SHOWN_ID: Final = 6
_OURS: Final = frozenset({ErrorCode.ENGINE_FAILED, ErrorCode.INTERNAL})
_FAILED: Final = frozenset({*_OURS, ErrorCode.CLIENT_STALLED, "lost", "expired", "not restored"})
_NO_LINE_OF_ITS_OWN: Final = frozenset(ERRORS) - _OURS  # where it never was open, `client error` says all there is


def short_id(session: str) -> str:
    """What strangers may see of a session's id: enough to find it in the log, and which gateway has it."""
    owner, separator, own = session.rpartition(".")
    return owner.partition("-")[0] + separator + own[:SHOWN_ID]


def internal_error(cause: Exception) -> ProtocolError:
    """What a client is told about a fault of our own."""
    error = ProtocolError(ErrorCode.INTERNAL, "the server failed; its log has the cause")
    error.__cause__ = cause
    return error


class Summary(SessionObserver):
    """Keeps account of one session. `principal` is whose it is, once that is known.

    It is shown on the status page from `begun` to `ended`.
    """

    def __init__(
        self,
        session: Session,
        watch: Watch,
        engine: str,
        transport: Literal["websocket", "http"],
        principal: str | None = None,
    ) -> None:
        self.session = session
        self.principal = principal
        self.transport = transport
        self._watch = watch
        self._engine = engine
        self._account = SessionAccount()
        self._failure: ProtocolError | None = None
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        session.observer = self

    # ---- what the session tells (SessionObserver) ----

    def first_audio(self, utterance: int, seconds: float) -> None:
        """See SessionObserver."""
        mode = self.session.mode
        self._watch.first_audio(self._engine, mode, seconds)
        self._account.first_audio(utterance, self._age(), seconds, mode)

    def spoken(self, utterance: int, statistics: Mapping[str, Any]) -> None:
        """See SessionObserver."""
        self._account.spoken(utterance, self._age(), statistics)

    def degraded(self, utterance: int, reason: str) -> None:
        """See SessionObserver."""
        self._account.degraded_segment(utterance, self._age(), reason)

    def stalled(self, utterance: int, count: int) -> None:
        """See SessionObserver."""
        self._watch.metrics.underruns.inc(count)
        self._account.stalled(utterance, self._age(), count)

    def switched(self, switch: Switch) -> None:
        """See SessionObserver."""
        self._watch.metrics.mode_switches.labels(switch.mode, switch.reason).inc()
        self._account.switched(self._age(), switch)

    # ---- what its shell tells ----

    def begun(self) -> None:
        """It has a place."""
        self._watch.open.add(self)

    def waited(self, utterance: int, seconds: float) -> None:
        """The engine gave a chunk, so long after it was asked."""
        self._account.waited(utterance, self._age(), seconds)

    def resumed(self) -> None:
        """Another connection carries it."""
        self._account.resumed(self._age())

    def failed(self, error: ProtocolError) -> None:
        """The client is told about `error`: a line without a trace where it is the client's, with one where ours.

        Told once, whoever noticed it. What the message says may quote the client: it is for the client, and `debug`.
        """
        if error is self._failure:
            return
        self._failure = error
        self._watch.metrics.errors.labels(code=error.code).inc()
        if not self._watch.may_log(error.code):
            return
        if error.code in _OURS:
            log.error("session failed", session=self.session.id, code=error.code, exc_info=error)
        else:
            log.info("client error", session=self.session.id, code=error.code, field=error.field)
        log.debug("what the client was told", session=self.session.id, message=error.message)

    def ended(self, outcome: str) -> None:
        """The session is over."""
        self._watch.open.discard(self)
        session, metrics = self.session, self._watch.metrics
        audio_s = session.delivery.samples_sent / (session.config.open.sample_rate if session.config else 1)
        metrics.audio_seconds.inc(audio_s)
        metrics.characters.inc(session.chars)
        metrics.resent_bytes.inc(session.delivery.bytes_resent)
        metrics.sessions_total.labels(outcome=outcome).inc()
        if self._deserves_a_line(outcome):
            self._log_end(outcome, audio_s)

    def _deserves_a_line(self, outcome: str) -> bool:
        if self.session.config is None and outcome in _NO_LINE_OF_ITS_OWN:
            return False
        return bool(self.session.chars) or self._watch.may_log(f"silent session, {outcome}")

    def _log_end(self, outcome: str, audio_s: float) -> None:
        session, account = self.session, self._account
        first = account.first_audio_s
        log.info(
            "session ended",
            session=session.id,
            transport=self.transport,
            principal=self.principal,
            outcome=outcome,
            utterances=session.utterances,
            characters=session.chars,
            audio_s=round(audio_s, 2),
            first_audio_ms=None if first is None else round(first * 1000, 1),
            underruns=account.underruns,
            degraded=account.degraded_segments,
            resumes=session.resumes,
            mode=session.mode,
            switches=session.delivery.switches_made,
            duration_s=round(self._age(), 2),
        )
        why = self._watch.details.why(
            session.id, failed=outcome in _FAILED, degraded=account.degraded, first_audio_s=account.slowest_s
        )
        if why is not None:
            log.info(
                "session detail",
                session=session.id,
                why=why,
                engine=self._engine,
                bytes_sent=session.delivery.bytes_sent,
                bytes_resent=session.delivery.bytes_resent,
                **account.detail(),
            )

    # ---- what the status page asks (OpenSession) ----

    def trouble(self, now: float) -> tuple[Trouble, float]:
        """See OpenSession: the longest wait for a first sound, or the least in hand."""
        session = self.session
        if not session.unfinished:
            return (Trouble.IDLE if session.attached else Trouble.IDLE_AWAY), 0.0
        if not session.attached:
            return Trouble.AWAY, 0.0
        waited = session.waited_s(now)
        if waited is not None:
            return Trouble.WAITING, -waited
        return (Trouble.COLLECTING, 0.0) if session.collects else (Trouble.LISTENING, session.delivery.lead_s)

    def row(self, now: float) -> dict[str, Any]:
        """See OpenSession. Milliseconds, seconds and bits, as people read them; None: not known."""
        session, account = self.session, self._account
        delivery, link = session.delivery, session.delivery.link
        rate = session.config.open.sample_rate if session.config else 1
        waited = session.waited_s(now)
        first, rtt, goodput = account.first_audio_s if waited is None else waited, link.rtt_s, link.goodput
        return {
            "id": short_id(session.id),
            "transport": self.transport,
            "state": self._state(waited),
            "mode": session.mode,
            "reason": account.mode_reason,
            "first_audio_ms": None if first is None else round(1000 * first),
            "lead_ms": None if session.collects else round(1000 * max(0.0, delivery.lead_s)),
            "buffer_ms": None if session.collects else link.listener_ms,
            "waiting_ms": round(1000 * delivery.ring.samples / rate),
            "rtt_ms": None if rtt is None else round(1000 * rtt),
            "kbit_s": None if goodput is None else round(goodput * 8 / 1000),
            "underruns": account.underruns,
            "resumes": session.resumes,
            "age_s": round(self._age()),
        }

    def _state(self, waited: float | None) -> str:
        session = self.session
        if not session.attached:
            return "away"
        if session.paused:
            return "paused"
        if not session.unfinished:
            return "playing" if session.delivery.lead_s > 0 and not session.collects else "idle"
        return "waiting" if waited is not None else "speaking"

    def _age(self) -> float:
        return self._loop.time() - self._started
