"""Bounds of the protocol, with their units. The server echoes those a client must respect in `opened.limits`."""

from typing import Final

MAX_MESSAGE_BYTES: Final = 262_144  # one WebSocket message, either direction, after any decompression
MAX_TEXT_CHARS: Final = 16_384  # code points in one `text`
MAX_UTTERANCE_CHARS: Final = 2_000_000  # code points in one utterance
TEXT_WINDOW_CHARS: Final = 262_144  # code points accepted but not yet handed to an engine, per session
MAX_QUEUED_UTTERANCES: Final = 64  # started and not finished, per session
MAX_SILENCE_MS: Final = 60_000  # one `silence`
MAX_UNACKED_BYTES: Final = 524_288  # audio payload sent and not covered by an ack, per session
MAX_LEXICON_ENTRIES: Final = 1_000
MAX_INSTRUCT_CHARS: Final = 2_000
MAX_CLOSE_REASON_BYTES: Final = 123  # RFC 6455, section 5.5: a control frame holds 125 bytes, two are the code

SAMPLE_RATES_PCM: Final = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)  # Hz
SAMPLE_RATES_OPUS: Final = (8_000, 12_000, 16_000, 24_000, 48_000)  # Hz
FRAME_MS_OPUS: Final = (2.5, 5.0, 10.0, 20.0, 40.0, 60.0)
FRAME_MS_PCM: Final = (5.0, 1_000.0)  # smallest and largest
BITRATE: Final = (16_000, 128_000)  # bit/s, Opus
DEFAULT_BITRATE: Final = 32_000  # bit/s, where a client leaves it to the server
LOW_BITRATE: Final = 16_000  # bit/s, what the server may lower it to on a bad link
OPUS_PREROLL_MS: Final = 80  # decoded and dropped to warm a new decoder up (RFC 7845, section 4.6)
SPEED: Final = (0.5, 2.0)
PITCH: Final = (0.5, 2.0)
VOLUME: Final = (0.0, 2.0)

HEARTBEAT_S: Final = 0.5  # while an utterance is unfinished
IDLE_HEARTBEAT_S: Final = 15.0  # otherwise: proxies close what is silent for a minute
ACK_INTERVAL_S: Final = 0.1  # a client acks received audio at most this often ...
ACK_TIMER_S: Final = 0.2  # ... and at least this often while an utterance is unfinished
ACK_BYTES: Final = 32_768  # ... or after this much payload, so that fast transfers never wait for the clock
RESUME_ATTEMPT_S: Final = 0.5  # a client that lost its connection tries again this often ...
RESUME_RUSH_S: Final = 30.0  # ... for so long; then ever less often

U32: Final = 0xFFFF_FFFF
U53: Final = 2**53 - 1  # the largest integer that JSON readers in every language keep exact
