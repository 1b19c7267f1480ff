"""Where audio goes: files, and pipes. Sound devices: `client.device`."""

from client.sinks.base import CONTAINERS, CannotContinue, Container, Encoding, Sink
from client.sinks.encodings import encoding_for
from client.sinks.files import Claim, FileSink, Kept, kept_audio, partial_name
from client.sinks.pipes import PipeSink, open_special

__all__ = [
    "CONTAINERS",
    "CannotContinue",
    "Claim",
    "Container",
    "Encoding",
    "FileSink",
    "Kept",
    "PipeSink",
    "Sink",
    "encoding_for",
    "kept_audio",
    "open_special",
    "partial_name",
]
