"""What both ends of a connection share: messages, audio frames, error codes, limits and media formats.

Imports nothing of the server or the client and does no I/O, so that a client in another language can be checked against
the same test vectors (`protocol/vectors/`). The normative text is docs/protocol.md.
"""

from protocol.codec import decode_client, decode_server, encode
from protocol.errors import CloseCode, ErrorCode, ProtocolError
from protocol.frames import AudioFrame, Codec, FrameFlag

SUBPROTOCOL = "cosystream.v1"
STREAM_PATH = "/v1/stream"
TOKEN_SUBPROTOCOL = "cosystream.token."  # noqa: S105  # and the token itself: a browser can send it no other way

__all__ = [
    "STREAM_PATH",
    "SUBPROTOCOL",
    "TOKEN_SUBPROTOCOL",
    "AudioFrame",
    "CloseCode",
    "Codec",
    "ErrorCode",
    "FrameFlag",
    "ProtocolError",
    "decode_client",
    "decode_server",
    "encode",
]
