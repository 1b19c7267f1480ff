"""Makes the protocol's test vectors, `protocol/vectors/*.json`, which clients in any language can be checked against.

`python -m tests.support.protocol_vectors` writes them again. docs/protocol.md says how to read them.
"""

import dataclasses
import json
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from protocol import SUBPROTOCOL
from protocol import client_messages as c
from protocol.codec import decode_client, decode_server, encode
from protocol.errors import ERRORS, ProtocolError, close_reason
from protocol.frames import AudioFrame, Codec, FrameFlag, decode_frame, unpack_packets
from protocol.media.opus import packet_count
from tests.support.protocol_samples import (
    BAD_FRAMES,
    BAD_TEXTS,
    CLOSE_REASONS,
    FRAMES,
    FULL_MESSAGES,
    LENIENT,
    frame_bytes,
)

FOLDER: Final = Path(__file__).resolve().parents[2] / "protocol" / "vectors"
Json = dict[str, Any]


def messages() -> Json:
    """Every message with all and with only its required fields, then what a reader must accept besides."""
    cases = []
    for full in FULL_MESSAGES:
        least = dataclasses.replace(
            full,
            **{f.name: f.default for f in dataclasses.fields(full) if f.default is not dataclasses.MISSING},
        )
        variants = [("all fields", full)] + ([("required fields only", least)] if least != full else [])
        for what, message in variants:
            direction = "client" if isinstance(message, c.CLIENT_MESSAGES) else "server"
            cases.append(_message(f"{message.type}: {what}", direction, encode(message)))
    cases += [_message(name, direction, text) for name, direction, text in LENIENT]
    return {"protocol": SUBPROTOCOL, "cases": cases}


def _message(name: str, direction: str, text: str) -> Json:
    message = decode_client(text) if direction == "client" else decode_server(text)
    fields = {"type": message.type, **dataclasses.asdict(message)}
    return {"name": name, "direction": direction, "text": text, "fields": fields, "encoded": encode(message)}


# --- frames.json -----------------------------------------------------------------------------------------------------


def frames() -> Json:
    """Audio frames and what they hold; then frames that a receiver must refuse."""
    cases = [_frame(name, frame.encode(generation)) for name, frame, generation in FRAMES]
    cases.append(_frame("unknown flags are ignored", frame_bytes(flags=0xFFF8)))
    bad = [{"name": name, "hex": data.hex(), **_refusal(decode_frame, data)} for name, data in BAD_FRAMES]
    return {"protocol": SUBPROTOCOL, "cases": cases, "bad": bad}


def _frame(name: str, data: bytes) -> Json:
    frame = decode_frame(data)
    case: Json = {
        "name": name,
        "hex": data.hex(),
        "header": {
            "version": data[0],
            "codec": int(frame.codec),
            "flags": int.from_bytes(data[2:4], "big"),
            "generation": frame.generation,
            "utterance": frame.utterance,
            "first_sample": frame.first_sample,
            "count": frame.count,
            "crc": frame.crc,
        },
        "known_flags": [flag.name.lower() for flag in FrameFlag if flag.name and flag & frame.flags],
        "payload_sha256": sha256(frame.payload).hexdigest(),
    }
    if frame.codec is Codec.OPUS:
        case["packets"] = [packet.hex() for packet in unpack_packets(frame.payload)]
    elif not frame.flags & FrameFlag.SILENCE_RUN:
        case["samples"] = [value for (value,) in struct.iter_unpack("<h", frame.payload)]
    return case


# --- errors.json -----------------------------------------------------------------------------------------------------


def errors() -> Json:
    """Every error code, messages that a reader must refuse, and close reasons cut to what a close frame holds."""
    codes = {code.value: {"retryable": kind.retryable, "close": int(kind.close)} for code, kind in ERRORS.items()}
    cases = []
    for name, direction, text in BAD_TEXTS:
        decode: Callable[[str], object] = decode_client if direction == "client" else decode_server
        cases.append({"name": name, "direction": direction, **_shortened(text), **_refusal(decode, text)})
    invalid = b'{"type":"text","seq":1,"text":"\xc3\x28"}'
    cases.append({"name": "not UTF-8", "direction": "client", "hex": invalid.hex(), **_refusal(decode_client, invalid)})
    reasons = [{"text": text, "reason": close_reason(text)} for text in CLOSE_REASONS]
    return {"protocol": SUBPROTOCOL, "codes": codes, "cases": cases, "close_reasons": reasons}


def _shortened(text: str) -> Json:
    """Long inputs as pieces: [text, repetitions] each."""
    if len(text) < 1_000:
        return {"text": text}
    pieces: list[list[Any]] = []
    for char in text:
        if pieces and pieces[-1][0] == char:
            pieces[-1][1] += 1
        else:
            pieces.append([char, 1])
    return {"pieces": pieces}


def _refusal(decode: Callable[[Any], object], data: str | bytes) -> Json:
    try:
        decode(data)
    except ProtocolError as error:
        return {"code": error.code.value, "field": error.field}
    raise AssertionError(f"accepted: {data[:80]!r}")


# --- digests.json ----------------------------------------------------------------------------------------------------


def digests() -> Json:
    """How the three digests follow from samples and payloads; how long Opus is."""
    pcm = _ramp(300)
    return {
        "protocol": SUBPROTOCOL,
        "cases": [
            _utterance("no segment at all", [], []),
            _utterance("a segment without audio", [b""], []),
            _utterance("one segment, one frame", [pcm], [AudioFrame(Codec.PCM, 1, 0, 300, pcm)]),
            _utterance("two segments, cut elsewhere into frames", [pcm[:400], pcm[400:]], _cut(pcm, 128)),
            _utterance(
                "speech, then a silence run, which adds nothing to the wire digest",
                [pcm, bytes(2_000)],
                [*_cut(pcm, 300), AudioFrame(Codec.PCM, 1, 300, 1_000, b"", FrameFlag.SILENCE_RUN)],
            ),
        ],
        "opus_lengths": [
            _opus_length(samples, pre_skip, per_packet)
            for samples, pre_skip, per_packet in (
                (0, 156, 480), (1, 156, 480), (324, 156, 480), (325, 156, 480), (24_000, 156, 480), (960, 312, 120),
            )
        ],
    }  # fmt: skip


def _ramp(samples: int) -> bytes:
    return struct.pack(f"<{samples}h", *((i * 331) % 20_001 - 10_000 for i in range(samples)))


def _cut(pcm: bytes, count: int) -> list[AudioFrame]:
    pieces = [pcm[at : at + 2 * count] for at in range(0, len(pcm), 2 * count)]
    return [AudioFrame(Codec.PCM, 1, i * count, len(piece) // 2, piece) for i, piece in enumerate(pieces)]


def _utterance(name: str, segments: list[bytes], sent: list[AudioFrame]) -> Json:
    raw = [sha256(pcm).digest() for pcm in segments]
    if any(segments):
        samples = sum(len(pcm) for pcm in segments) // 2
        sent = [*sent, AudioFrame(Codec.PCM, 1, samples, 0, b"", FrameFlag.LAST)]
    return {
        "name": name,
        "segments": [
            {"samples": len(pcm) // 2, "pcm_hex": pcm.hex(), "digest": digest.hex()}
            for pcm, digest in zip(segments, raw, strict=True)
        ],
        "frames_hex": [frame.encode(1).hex() for frame in sent],
        "done": {
            "samples": sum(len(pcm) for pcm in segments) // 2,
            "digest": sha256(b"".join(raw)).hexdigest(),
            "wire_digest": sha256(b"".join(bytes(frame.payload) for frame in sent)).hexdigest(),
        },
    }


def _opus_length(samples: int, pre_skip: int, per_packet: int) -> Json:
    packets = packet_count(samples, pre_skip, per_packet)
    coded = packets * per_packet
    return {
        "samples": samples,
        "pre_skip": pre_skip,
        "samples_per_packet": per_packet,
        "packets": packets,
        "coded_samples": coded,
        "drop_at_start": pre_skip if samples else 0,
        "drop_at_end": coded - pre_skip - samples if samples else 0,
    }


# --- files -----------------------------------------------------------------------------------------------------------

FILES: Final[dict[str, Callable[[], Json]]] = {
    "messages.json": messages,
    "frames.json": frames,
    "errors.json": errors,
    "digests.json": digests,
}


def text_of(name: str) -> str:
    """A vector file as it must be."""
    return json.dumps(FILES[name](), ensure_ascii=False, indent=1) + "\n"


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name in FILES:
        (FOLDER / name).write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    main()
