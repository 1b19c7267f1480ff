"""What is logged and counted about sessions, the same for every way in."""

import asyncio
from dataclasses import dataclass
from typing import Literal

import structlog

from protocol.errors import ErrorCode, ProtocolError
from server.link import Switch
from server.observe.metrics import Metrics
from server.session import Session, SessionObserver

log = structlog.get_logger(__name__)

_OURS = (ErrorCode.ENGINE_FAILED, ErrorCode.INTERNAL)


def internal_error(cause: Exception) -> ProtocolError:
    """What a client is told about a fault of our own."""
    error = ProtocolError(ErrorCode.INTERNAL, "the server failed; its log has the cause")
    error.__cause__ = cause
    return error


@dataclass
class Summary(SessionObserver):
    """Keeps account of one session. `principal` is whose it is, once that is known."""

    session: Session
    metrics: Metrics
    engine: str
    transport: Literal["websocket", "http"]
    principal: str | None = None

    def __post_init__(self) -> None:
        self._failure: ProtocolError | None = None
        self._started = asyncio.get_running_loop().time()
        self._first_audio_ms: float | None = None
        self.session.observer = self

    def first_audio(self, utterance: int, seconds: float) -> None:
        """See SessionObserver."""
        self.metrics.first_audio_seconds.labels(engine=self.engine).observe(seconds)
        if self._first_audio_ms is None:
            self._first_audio_ms = round(seconds * 1000, 1)

    def switched(self, switch: Switch) -> None:
        """See SessionObserver."""
        self.metrics.mode_switches.labels(mode=switch.mode, reason=switch.reason).inc()

    def failed(self, error: ProtocolError) -> None:
        """The client is told about `error`: a line without a trace where it is the client's, with one where ours.

        Told once, whoever noticed it.
        """
        if error is self._failure:
            return
        self._failure = error
        self.metrics.errors.labels(code=error.code).inc()
        if error.code in _OURS:
            log.error("session failed", session=self.session.id, code=error.code, reason=error.message, exc_info=error)
        else:
            log.info("client error", session=self.session.id, code=error.code, field=error.field, reason=error.message)

    def ended(self, outcome: str) -> None:
        """The session is over."""
        session = self.session
        delivery = session.delivery
        audio_s = delivery.samples_sent / (session.config.open.sample_rate if session.config else 1)
        self.metrics.audio_seconds.inc(audio_s)
        self.metrics.characters.inc(session.chars)
        self.metrics.resent_bytes.inc(delivery.bytes_resent)
        self.metrics.sessions_total.labels(outcome=outcome).inc()
        log.info(
            "session ended",
            session=session.id,
            transport=self.transport,
            principal=self.principal,
            outcome=outcome,
            utterances=session.utterances,
            characters=session.chars,
            audio_s=round(audio_s, 2),
            first_audio_ms=self._first_audio_ms,
            resumes=session.resumes,
            mode=session.mode,
            switches=delivery.switches_made,
            duration_s=round(asyncio.get_running_loop().time() - self._started, 2),
        )
