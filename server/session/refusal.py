"""Why a session cannot go on for a client who comes back."""

from protocol.server_messages import ResumeFailure


class ResumeRefused(Exception):
    """The session cannot go on for this client. `position`: where in the text of `utterance` its audio ended."""

    def __init__(self, reason: ResumeFailure, utterance: int | None = None, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason: ResumeFailure = reason
        self.utterance = utterance
        self.position = position
