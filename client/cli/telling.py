"""How an error is told to who runs the command: by its options, not by the protocol's fields."""

from typing import Final

from client.errors import ClientError, ServerError

_OPTIONS: Final = (
    "voice", "language", "speed", "pitch", "volume", "seed", "instruct", "format", "sample_rate", "bitrate", "mode",
)  # fmt: skip
_LIST: Final = "python -m client voices"


def told(error: ClientError) -> str:
    """The error in one line."""
    if not isinstance(error, ServerError):
        return str(error)
    message, field = error.message, error.field or ""
    kind, _, name = field.partition(".")
    if kind in ("open", "start") and name in _OPTIONS:
        option = f"--{name.replace('_', '-')}"
        message, field = message.replace(field, option), option
    if error.code == "unknown_voice":
        message = f"{message.rstrip('.')} (see: {_LIST})"
    return str(ServerError(error.code, message, field or None, error.retryable))
