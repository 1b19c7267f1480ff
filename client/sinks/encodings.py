"""Which encoding makes which container."""

from typing import BinaryIO

from client.sinks import ogg, pcm
from client.sinks.base import Container, Encoding
from client.sinks.ogg import OggEncoding
from client.sinks.pcm import PcmEncoding

DEFAULT_BITRATE = 32_000  # bit/s of Opus that is encoded here


def encoding_for(container: Container, *, live: bool = False, bitrate: int | None = None) -> Encoding:
    """The encoding of a container. `live`: a listener waits at the other end. `bitrate`: of Opus encoded here."""
    if container == "ogg":
        return OggEncoding(live=live, bitrate=bitrate or DEFAULT_BITRATE)
    if container == "flac":
        from client.sinks.flac import FlacEncoding  # numpy takes 0.1 s to load

        return FlacEncoding()
    return PcmEncoding(wav=container == "wav", live=live)


def kept_in(file: BinaryIO, container: Container) -> tuple[int | None, int]:
    """The sample rate, where a file says it, and how many samples of the timeline it holds. Raises CannotContinue."""
    if container == "flac":
        from client.sinks import flac

        return flac.kept(file)
    return ogg.kept(file) if container == "ogg" else pcm.kept(file, container == "wav")
