"""Error codes and close codes: what went wrong, whose fault it is, and whether trying again can help."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from protocol.limits import MAX_CLOSE_REASON_BYTES


class CloseCode(IntEnum):
    """WebSocket close codes the server uses (RFC 6455, section 7.4)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    INVALID_DATA = 1007
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTART = 1012
    TRY_AGAIN = 1013


class ErrorCode(StrEnum):
    """What the `code` of an `error` message may be."""

    BAD_JSON = "bad_json"
    BAD_MESSAGE = "bad_message"
    UNKNOWN_TYPE = "unknown_type"
    UNSUPPORTED = "unsupported"
    UNEXPECTED = "unexpected"
    SEQUENCE = "sequence"
    BINARY = "binary"
    TOO_BIG = "too_big"
    TEXT_LIMIT = "text_limit"
    TEXT_WINDOW = "text_window"
    QUEUE_FULL = "queue_full"
    BAD_ACK = "bad_ack"
    UNKNOWN_VOICE = "unknown_voice"
    UNAUTHORIZED = "unauthorized"
    OPEN_TIMEOUT = "open_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CLIENT_STALLED = "client_stalled"
    ENGINE_FAILED = "engine_failed"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """How an error code behaves. Every error ends the session, with the close code `close`."""

    meaning: str
    retryable: bool
    close: CloseCode


ERRORS: Final[dict[ErrorCode, ErrorKind]] = {
    ErrorCode.BAD_JSON: ErrorKind("the message is not a JSON object", False, CloseCode.INVALID_DATA),
    ErrorCode.BAD_MESSAGE: ErrorKind("a field is missing or has a value that is not allowed", False, CloseCode.POLICY),
    ErrorCode.UNKNOWN_TYPE: ErrorKind("the message type does not exist", False, CloseCode.POLICY),
    ErrorCode.UNSUPPORTED: ErrorKind(
        "a reserved message, or an option the voice does not have", False, CloseCode.POLICY
    ),
    ErrorCode.UNEXPECTED: ErrorKind("the message is not allowed in the session's state", False, CloseCode.POLICY),
    ErrorCode.SEQUENCE: ErrorKind("a `seq` was left out", False, CloseCode.POLICY),
    ErrorCode.BINARY: ErrorKind("clients send no binary messages", False, CloseCode.UNSUPPORTED_DATA),
    ErrorCode.TOO_BIG: ErrorKind("a message is longer than `limits.message_bytes`", False, CloseCode.TOO_BIG),
    ErrorCode.TEXT_LIMIT: ErrorKind("an utterance is longer than `limits.utterance_chars`", False, CloseCode.POLICY),
    ErrorCode.TEXT_WINDOW: ErrorKind("more unspoken text than `seq_ack.room` allowed", False, CloseCode.POLICY),
    ErrorCode.QUEUE_FULL: ErrorKind(
        "more unfinished utterances than `limits.queued_utterances`", False, CloseCode.POLICY
    ),
    ErrorCode.BAD_ACK: ErrorKind("an ack names samples or events that were never sent", False, CloseCode.POLICY),
    ErrorCode.UNKNOWN_VOICE: ErrorKind("no voice has this id, or it was deleted", False, CloseCode.POLICY),
    ErrorCode.UNAUTHORIZED: ErrorKind(
        "the API key or token is missing or no good, or pages from this origin may not use the server",
        False,
        CloseCode.POLICY,
    ),
    ErrorCode.OPEN_TIMEOUT: ErrorKind("no `open` came in time", True, CloseCode.POLICY),
    ErrorCode.IDLE_TIMEOUT: ErrorKind("nothing came for longer than `limits.idle_timeout_ms`", True, CloseCode.POLICY),
    ErrorCode.CLIENT_STALLED: ErrorKind("audio stayed unacked for too long", True, CloseCode.POLICY),
    ErrorCode.ENGINE_FAILED: ErrorKind("no engine could be asked, as when the server stops", True, CloseCode.INTERNAL),
    ErrorCode.INTERNAL: ErrorKind("the server failed; its log has the cause", True, CloseCode.INTERNAL),
}


class ProtocolError(Exception):
    """The session cannot go on. `field` names what was wrong, for instance `open.speed`.

    `retryable` says whether trying again may help; without it the code decides.
    """

    def __init__(
        self, code: ErrorCode, message: str, field: str | None = None, *, retryable: bool | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.retryable = ERRORS[code].retryable if retryable is None else retryable

    @property
    def kind(self) -> ErrorKind:
        """Retry and close behaviour of this error."""
        return ERRORS[self.code]


def close_reason(text: str) -> str:
    """`text` cut to what a close frame may hold, never inside a character."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= MAX_CLOSE_REASON_BYTES:
        return raw.decode("utf-8")
    return raw[: MAX_CLOSE_REASON_BYTES - 3].decode("utf-8", "ignore") + "…"
