"""Messages, frames and faults that every reader must treat alike; the protocol's test vectors are made from them."""

import struct
from hashlib import sha256
from typing import Final
from zlib import crc32

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame, Codec, FrameFlag, pack_packets
from protocol.limits import MAX_MESSAGE_BYTES

DIGEST_A: Final = sha256(b"a").hexdigest()
DIGEST_B: Final = sha256(b"b").hexdigest()

# --- messages.json ---------------------------------------------------------------------------------------------------

FULL_MESSAGES: Final[tuple[c.ClientMessage | s.ServerMessage, ...]] = (
    c.Open("tone-low", "zh", 1.25, 0.9, 0.5, "opus", 16_000, 20.0, 24_000, "block", 2_000, None, False, "cosy_key"),
    c.Ack(1, 3, 48_000, 24_000, 1_000, 2, 17, False),
    c.Resume("session-1", "token-1", 2, 1, 3, 48_000, 17, 24_000, True, "cosy_key"),
    c.Ping(7),
    c.Start(1, 1, "tone-high", 1.5, 1.1, 0.8, 42, "whisper", {"SQL": "sequel", "重庆": "chóng qìng"}),
    c.Text(2, '你好, "world" 👋🏽\n\t\u0000é'),
    c.Silence(3, 250),
    c.Flush(4, True),
    c.End(5),
    c.Cancel(6, 1, 12_000),
    c.Pause(7),
    c.Unpause(8),
    s.Opened("session-1", "token-1", 0, 1, {"voice": "tone-low", "sample_rate": 24_000}, {"resume_ttl_ms": 0}, 156),
    s.SeqAck(8, 262_144),
    s.Pong(7),
    s.Heartbeat(17),
    s.SegmentBegin(1, 1, 0, 0, 3, 0, "punctuation", "silence", "cue-1"),
    s.Timing(2, 1, 0, (s.Word("你", 0, 1, 0, 2_880), s.Word("好", 1, 2, 2_880, 5_760))),
    s.SegmentEnd(3, 1, 0, 8_640, DIGEST_A, True, "re-rendered"),
    s.ModeChange(4, 1, "block", "the line is slow", 8_640),
    s.Cancelled(5, 1, 8_640, 2),
    s.Done(6, 1, 8_640, DIGEST_A, DIGEST_B, {"segments": 1}),
    s.Resumed(2, 1, 1, 4_800, 8_640, "token-2", "stream", 8, 262_100),
    s.ResumeFailed("expired", 1, 2),
    s.Busy(2_000, "quota", "the quota of 10,000 characters is used up"),
    s.GoAway(3_000, "the server is stopping"),
    s.Error("bad_message", "open.speed must be a number from 0.5 to 2", "open.speed", True),
)

# What the wire may hold besides what `encode` writes: (name, direction, text).
LENIENT: Final = (
    ("unknown fields are ignored", "client", '{"type":"ping","id":1,"colour":"red","nested":{"a":[1,null]}}'),
    ("unknown fields are ignored", "server", '{"type":"pong","id":1,"colour":"red"}'),
    ("a reason that is not known yet", "server", '{"type":"busy","retry_after_ms":500,"reason":"lunch"}'),
    ("defaults may be written out", "client", '{"type":"flush","seq":4,"soft":false}'),
    ("null where it is allowed", "client", '{"type":"cancel","seq":6,"utterance":null,"played_sample":null}'),
    ("max_lead_ms null is not its default", "client", '{"type":"open","max_lead_ms":null}'),
    ("white space and the order of keys do not matter", "client", ' {\n "id" : 1 , "type" : "ping" } '),
    ("of a repeated key the last counts", "client", '{"type":"ping","id":1,"id":2}'),
    ("escapes and surrogate pairs", "client", '{"type":"text","seq":1,"text":"\\u4f60\\ud83d\\ude00\\/"}'),
    ("a number may be written as an integer", "client", '{"type":"open","speed":1,"volume":0}'),
    ("the largest integer", "client", '{"type":"ping","id":9007199254740991}'),
)  # fmt: skip


PCM: Final = struct.pack("<4h", 0, 1, -1, -32_768)
PACKETS: Final = [bytes([0xF8, 0xFF, 0xFE]), bytes(range(1, 20)), b"\x08"]

FRAMES: Final = (
    ("PCM", AudioFrame(Codec.PCM, 1, 0, 4, PCM), 1),
    ("PCM, later, in another generation", AudioFrame(Codec.PCM, 7, 2**40, 4, PCM), 3),
    ("PCM, the empty last frame", AudioFrame(Codec.PCM, 1, 4, 0, b"", FrameFlag.LAST), 1),
    ("silence run of a second", AudioFrame(Codec.PCM, 1, 4, 24_000, b"", FrameFlag.SILENCE_RUN), 1),
    (
        "Opus, the first packet",
        AudioFrame(Codec.OPUS, 1, 0, 480, pack_packets(PACKETS[:1]), FrameFlag.DECODER_RESET),
        1,
    ),
    ("Opus, several packets", AudioFrame(Codec.OPUS, 1, 480, 1_440, pack_packets(PACKETS)), 1),
    ("Opus, the last packet", AudioFrame(Codec.OPUS, 1, 1_920, 480, pack_packets(PACKETS[2:]), FrameFlag.LAST), 1),
    ("the largest numbers", AudioFrame(Codec.PCM, 2**32 - 1, 2**53 - 5, 4, PCM, FrameFlag.LAST), 2**32 - 1),
)


def frame_bytes(
    *, version: int = 1, codec: int = 1, flags: int = 0, count: int = 4, payload: bytes = PCM, crc: int | None = None
) -> bytes:
    """A frame of utterance 1 that may break any rule."""
    return struct.pack(
        "!BBHIIQII", version, codec, flags, 1, 1, 0, count, crc32(payload) if crc is None else crc
    ) + payload  # fmt: skip


BAD_FRAMES: Final = (
    ("no bytes", b""),
    ("a header cut short", frame_bytes()[:27]),
    ("a payload cut short", frame_bytes()[:-1]),
    ("a byte too many", frame_bytes() + b"\0"),
    ("an unknown version", frame_bytes(version=2)),
    ("an unknown codec", frame_bytes(codec=3)),
    ("a wrong CRC", frame_bytes(crc=0)),
    ("fewer samples than announced", frame_bytes(count=5)),
    ("more samples than announced", frame_bytes(count=3)),
    ("half a sample", frame_bytes(payload=PCM[:-1])),
    ("a silence run with payload", frame_bytes(flags=4)),
    ("a silence run of Opus", frame_bytes(codec=2, flags=4, payload=b"")),
    ("an Opus length past the end", frame_bytes(codec=2, payload=b"\x00\x05\x08")),
    ("half an Opus length", frame_bytes(codec=2, payload=b"\x00\x01\x08\x00")),
    ("an empty Opus packet", frame_bytes(codec=2, payload=b"\x00\x00")),
)


BAD_TEXTS: Final = (
    ("nothing", "client", ""),
    ("not JSON", "client", "hello"),
    ("JSON cut short", "client", '{"type":"ping"'),
    ("an array", "client", "[1]"),
    ("a number", "client", "1"),
    ("null", "client", "null"),
    ("NaN", "client", '{"type":"ping","id":NaN}'),
    ("an infinite number", "client", '{"type":"open","speed":1e999}'),
    ("a lone surrogate", "client", '{"type":"text","seq":1,"text":"\\ud800"}'),
    ("a byte order mark", "client", '\ufeff{"type":"ping"}'),
    ("nested too deep", "client", "[" * 2_000 + "]" * 2_000),
    ("too long", "client", '{"type":"ping","x":"' + "x" * MAX_MESSAGE_BYTES + '"}'),
    ("no type", "client", "{}"),
    ("a type that is no string", "client", '{"type":[["ping"]]}'),
    ("an unknown type", "client", '{"type":"sing"}'),
    ("a server's type", "client", '{"type":"pong"}'),
    ("a client's type", "server", '{"type":"ping"}'),
    ("reserved", "client", '{"type":"cue","seq":1}'),
    ("reserved", "client", '{"type":"revise","seq":1}'),
    ("a field is missing", "client", '{"type":"text","seq":1}'),
    ("null where it is not allowed", "client", '{"type":"text","seq":1,"text":null}'),
    ("a string for a number", "client", '{"type":"open","speed":"1"}'),
    ("true for an integer", "client", '{"type":"ping","id":true}'),
    ("a fraction for an integer", "client", '{"type":"ping","id":1.0}'),
    ("an integer too large", "client", '{"type":"ping","id":9007199254740992}'),
    ("an integer of thirty digits", "client", '{"type":"ping","id":123456789012345678901234567890}'),
    ("out of range", "client", '{"type":"open","speed":2.1}'),
    ("not one of the choices", "client", '{"type":"open","format":"mp3"}'),
    ("an empty name", "client", '{"type":"open","voice":""}'),
    ("a lexicon of numbers", "client", '{"type":"start","seq":1,"utterance":1,"lexicon":{"a":1}}'),
    ("an array", "server", "[]"),
    ("an unknown type", "server", '{"type":"song"}'),
    ("a field is missing", "server", '{"type":"seq_ack","seq":1}'),
    ("a negative count", "server", '{"type":"seq_ack","seq":-1,"room":0}'),
    ("event numbers start at 1", "server",
     '{"type":"cancelled","event":0,"utterance":1,"sample":0,"heard_text_end":0}'),
    ("a digest cut short", "server",
     '{"type":"segment_end","event":1,"utterance":1,"segment":0,"samples":0,"digest":"00"}'),
    ("a word without its place", "server",
     '{"type":"timing","event":1,"utterance":1,"segment":0,"words":[{"text":"a","start":0,"end":1}]}'),
)  # fmt: skip

CLOSE_REASONS: Final = (
    "",
    "busy",
    "x" * 123,
    "x" * 124,
    "会" * 41,
    "会" * 42,
    "a" + "会" * 60,
    "👋" * 31,
    "\u0301" * 80,
)
