"""What the exit codes mean, and which error gives which."""

from enum import IntEnum
from typing import Final

from client.errors import Busy, ClientError, ConnectFailed, OutputFailed, ServerError, ServerLost, UsageError


class ExitCode(IntEnum):
    """Exit codes of `python -m client`."""

    OK = 0
    SERVER = 1
    USAGE = 2
    CONNECT = 3
    LOST = 4
    OUTPUT = 5
    BUSY = 6
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "everything was spoken and written",
    ExitCode.SERVER: "the server reported an error, or sent audio that is damaged",
    ExitCode.USAGE: "wrong arguments, text that cannot be read, or a state that cannot be gone on from",
    ExitCode.CONNECT: "no server could be reached, or it refused the API key",
    ExitCode.LOST: "the connection was lost before the audio was complete",
    ExitCode.OUTPUT: "the output could not be written",
    ExitCode.BUSY: "the server is full or still starting: try again later",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C): the file holds what was spoken until then",
    ExitCode.TERMINATED: "ended by SIGTERM: the same",
}

VOICES_MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "what was asked for was done",
    ExitCode.SERVER: "the server reported an error, such as a recording that is no good, or its answer has no sense",
    ExitCode.USAGE: "wrong arguments, or a recording that cannot be read",
    ExitCode.CONNECT: "no server could be reached, or it refused the API key",
    ExitCode.OUTPUT: "standard output could not be written",
    ExitCode.BUSY: "the server is full or still starting: try again later",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
    ExitCode.TERMINATED: "ended by SIGTERM",
}
"""Those of `voices`."""


def code_of(error: ClientError) -> ExitCode:
    """The exit code for an error."""
    match error:
        case UsageError():
            return ExitCode.USAGE
        case ConnectFailed() | ServerError(code="unauthorized"):
            return ExitCode.CONNECT
        case ServerLost():
            return ExitCode.LOST
        case OutputFailed():
            return ExitCode.OUTPUT
        case Busy():
            return ExitCode.BUSY
        case _:
            return ExitCode.SERVER
