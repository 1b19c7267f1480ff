"""What a sink is, which containers there are, and how audio becomes the bytes of one."""

from typing import BinaryIO, Final, Literal, Protocol, TypeAlias

from client.items import Audio

Container: TypeAlias = Literal["wav", "ogg", "flac", "raw"]
CONTAINERS: Final[dict[str, Container]] = {
    ".wav": "wav",
    ".opus": "ogg",
    ".ogg": "ogg",
    ".flac": "flac",
    ".pcm": "raw",
    ".raw": "raw",
}


class Sink(Protocol):
    """Takes the audio of one utterance."""

    async def begin(self, sample_rate: int, pre_skip: int) -> None:
        """Called once, when the session is open. Raises OutputFailed."""

    async def write(self, audio: Audio) -> None:
        """The next stretch. Raises OutputFailed."""

    async def finish(self, samples: int) -> None:
        """The utterance is complete, `samples` long on its timeline."""

    async def interrupt(self) -> None:
        """The listener stopped it: what is there is what was wanted."""

    async def abandon(self) -> None:
        """It failed. Never raises."""


class CannotContinue(ValueError):
    """A file cannot be gone on with; the text says why, and follows the file's name."""


class Encoding(Protocol):
    """Turns audio into the bytes of a container. Begins with `head`, or, in a file that holds a part, with `resume`."""

    @property
    def replaces_flushed(self) -> bool:
        """Whether what `flush` and `resume` gave is provisional: the next bytes take its place."""

    @property
    def samples(self) -> int:
        """Timeline samples that are whole in the bytes given out: from here back, a file can be gone on with."""

    def head(self, sample_rate: int, pre_skip: int) -> bytes:
        """The bytes before the audio."""

    def resume(self, file: BinaryIO, sample_rate: int, pre_skip: int, at_sample: int) -> tuple[int, bytes]:
        """To go on at exactly this sample: where to cut the file, and what to append then.

        Audio and `tail` count from there; `samples` from the file's start. Raises CannotContinue; OSError.
        """

    def body(self, audio: Audio) -> bytes:
        """The next bytes; some audio may be kept for later."""

    def flush(self) -> bytes:
        """What was kept and can be given out."""

    def tail(self, samples: int | None) -> bytes:
        """The last bytes, for a timeline of this length (None: as long as what came)."""

    def header(self) -> bytes:
        """What a file begins with once it holds all that was given out, in place of what `head` gave; may be empty."""
