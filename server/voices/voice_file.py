"""One learnt voice as a file: a safetensors container whose metadata says what it is, and whose one tensor is what the
engine made of the recording.

Format: https://github.com/huggingface/safetensors (length of the head u64le, head in JSON, data). It is written and
read here, so that no package is needed; everything is checked before it is used.
"""

import re
import secrets
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Any, BinaryIO, Final

import orjson

FORMAT: Final = "cosystream-voice-1"
SUFFIX: Final = ".safetensors"
MAX_HEAD_BYTES: Final = 65_536
MAX_VOICE_BYTES: Final = 16 * 1024 * 1024  # of what the engine made: 30 s of speech take about 0.6 MB
MAX_NAME_CHARS: Final = 64
MAX_TEXT_CHARS: Final = 1_000  # said within 30 s
_LENGTH_BYTES: Final = 8
_ID: Final = re.compile(r"own-[0-9a-f]{16}")


class BadVoiceFile(ValueError):
    """This is no file of a voice, or not a whole one; the text says why, in a line."""


@dataclass(frozen=True, slots=True)
class OwnVoice:
    """What is known of a learnt voice. `text`: what is said in its recording; `created`: ISO 8601, UTC; `kind`: which
    engines understand it; `fingerprint`: of the one that made it. The speaker's consent was stated when it was made.
    """

    id: str
    name: str
    owner: str  # a principal's name
    text: str
    created: str
    kind: str
    fingerprint: str
    sha256: str  # of what the engine made


def is_own(voice: str) -> bool:
    """Whether a learnt voice may be called so. Nothing else ever becomes part of a path."""
    return _ID.fullmatch(voice) is not None


def new_id() -> str:
    """One that no voice had before."""
    return f"own-{secrets.token_hex(8)}"


def encode(voice: OwnVoice, data: bytes) -> bytes:
    """The whole file. Raises ValueError where something of it is too long."""
    metadata = {"format": FORMAT, "consent": "true", **asdict(voice)}
    tensor = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    head = orjson.dumps({"__metadata__": metadata, "voice": tensor})
    head += b" " * (-len(head) % _LENGTH_BYTES)
    if len(head) > MAX_HEAD_BYTES or not 0 < len(data) <= MAX_VOICE_BYTES:
        raise ValueError(f"a voice takes from 1 to {MAX_VOICE_BYTES} bytes, and {MAX_HEAD_BYTES} of description")
    return len(head).to_bytes(_LENGTH_BYTES, "little") + head + data


def digest(data: bytes) -> str:
    """For `OwnVoice.sha256`."""
    return sha256(data).hexdigest()


def read_head(file: BinaryIO, size: int) -> OwnVoice:
    """The description in an open file of `size` bytes; the data follows. Raises BadVoiceFile and OSError."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 0 < length <= MAX_HEAD_BYTES:
        raise BadVoiceFile("it does not begin as a voice does")
    head = file.read(length)
    if len(head) < length:
        raise BadVoiceFile("it is cut short")
    try:
        told: Any = orjson.loads(head)
        metadata, shape = told["__metadata__"], told["voice"]["shape"]
        known = {each.name: metadata[each.name] for each in fields(OwnVoice)}
    except (ValueError, KeyError, TypeError):
        raise BadVoiceFile("its description is not in the expected form") from None
    if metadata.get("format") != FORMAT:
        raise BadVoiceFile("it has another format")
    if not all(isinstance(value, str) for value in known.values()) or not is_own(known["id"]):
        raise BadVoiceFile("its description is not in the expected form")
    if size != _LENGTH_BYTES + length + (shape[0] if isinstance(shape, list) and shape else -1):
        raise BadVoiceFile("it is cut short, or longer than it says")
    return OwnVoice(**known)


def read_data(file: BinaryIO, voice: OwnVoice) -> bytes:
    """What the engine made, from a file whose head was just read. Raises BadVoiceFile and OSError."""
    data = file.read(MAX_VOICE_BYTES + 1)
    if digest(data) != voice.sha256:
        raise BadVoiceFile("its data does not have the checksum that it should have")
    return data
