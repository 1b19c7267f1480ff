"""What can go wrong for a client. Each message is one line that says what to do; `str(error)` is fit for a user."""

from typing import Final

from client.durations import in_words


class ClientError(Exception):
    """Base of everything this package raises on purpose."""


class ConnectFailed(ClientError):
    """No session could be opened: nothing listens, a wrong address, a refused key, or no CosyStream server there."""


class ServerError(ClientError):
    """The server reported an error. `field` names what was wrong with a request, for instance `open.speed`."""

    def __init__(self, code: str, message: str, field: str | None = None, retryable: bool = False) -> None:
        where = f" [{field}]" if field and field not in message else ""
        again = " Trying again may help." if retryable else ""
        super().__init__(f"the server reports {code}: {message.rstrip('.')}{where}.{again}")
        self.code = code
        self.message = message
        self.field = field
        self.retryable = retryable


class ServerLost(ClientError):
    """The connection ended, or fell silent, while audio was owed. `close_code`: of the WebSocket, None if none came."""

    def __init__(self, message: str, close_code: int | None = None) -> None:
        super().__init__(message)
        self.close_code = close_code

    @classmethod
    def closed(cls, code: int | None, reason: str, *, going_away: bool) -> "ServerLost":
        """The connection ended too early; `code` of the close frame, None where none came."""
        why = f" ({reason})" if reason else ""
        if going_away or code in (1001, 1012):
            text = "the server stopped or restarts: run this again in a moment"
        elif code == 1000:
            text = f"the server closed the connection before the audio was complete{why}: run this again"
        elif code is None or code == 1006:
            text = "the connection broke before the audio was complete"
        else:
            text = f"the server closed the connection with code {code}{why} before the audio was complete: see its log"
        return cls(text, code)

    @staticmethod
    def briefly(code: int | None) -> str:
        """The same for a client that comes back."""
        if code == 1012:
            return "the server stopped or restarts"
        return "the connection broke" if code in (None, 1006) else f"the server closed the connection (code {code})"


_WHY_GONE: Final = {
    "unknown": "the server does not know the session any more",
    "expired": "the server did not keep the session for so long",
    "evicted": "the server gave up the session for want of memory",
    "auth": "the server does not take the session's token any more",
    "range": "the server cannot go on with the session from here",
    "epoch": "the server restarted and cannot go on with the session as it was",
}


def why_gone(reason: str) -> str:
    """What a reason of `resume_failed` means, for a user."""
    return _WHY_GONE.get(reason, f"the session could not be resumed ({reason})")


class SessionGone(ServerLost):
    """The server does not know the session any more, and this one was not to be replaced. `reason` as the server says
    it (docs/protocol.md, "resume_failed").
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"{why_gone(reason)}: run this again")
        self.reason = reason


class ServerMisbehaved(ClientError):
    """The server broke the protocol: a gap in the audio, an unknown message, a number out of order."""


class Gap(ServerMisbehaved):
    """Audio or an event is missing in between. A session that can be resumed asks for it again."""


class DigestMismatch(ServerMisbehaved):
    """The audio that arrived is not the audio the server made."""


class Busy(ClientError):
    """The server takes no session, or no further utterance, now. `retry_after_ms` says when to try again, `reason` why
    (loading, capacity, sessions, rate, quota, stopping; newer servers may have more), `message` the same for people.
    """

    def __init__(self, retry_after_ms: int, reason: str = "capacity", message: str = "") -> None:
        self.retry_after_ms = retry_after_ms
        self.reason = reason
        self.message = message or "the server is full or still starting"
        super().__init__(f"{self.message}: try again in {in_words(self.retry_after_s)}")

    @property
    def retry_after_s(self) -> float:
        """The same in seconds; never at once."""
        return max(self.retry_after_ms, 100) / 1000


class OutputFailed(ClientError):
    """The output cannot be written: no such folder, no permission, no space, or its reader went away."""


class UsageError(ClientError):
    """The user asked for what cannot be."""
