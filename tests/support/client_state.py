"""A state as a run in the middle of a book writes it."""

from client.captions import SpokenWord
from client.cli.caption_file import CaptionMark
from client.cli.ledger import Place
from client.cli.state import Source, State
from client.saved import Blocks, SavedSegment, SavedSession
from protocol.server_messages import Word

DIGEST = "0" * 64


def a_state(**changes: object) -> State:
    word = Word("a", 0, 1, 0, 400)
    session = SavedSession(
        "s", "t", 1, 2, {"voice": "v", "format": "pcm"}, {"text_chars": 5}, 1, 700, 9, 4,
        (
            SavedSegment(3, 5, 9, 600, False, None, "", (word,)),
            SavedSegment(4, 9, 12, 900, True, 300, DIGEST, (), "clip"),
        ),
        Blocks(2, 4_096, 7, 21_000),
    )  # fmt: skip
    arguments: dict[str, object] = {
        "voice": "v", "language": "auto", "speed": 1.2, "pitch": 1.0, "volume": 1.0, "mode": "auto",
        "instruct": "softly", "seed": 7,
        "format": "pcm", "sample_rate": 24_000, "bitrate": None,
    }  # fmt: skip
    fields: dict[str, object] = {
        "source": Source("/a/book.txt", 5, 6, DIGEST),
        "url": "ws://h:1",
        "container": "wav",
        "arguments": arguments,
        "whole": Place(5, 600),
        "synced": Place(1, 100),
        "samples": 700,
        "captions": "/a/c.vtt",
        "caption_mark": CaptionMark(9, 1, 0, (1, 2, 3, 4), (SpokenWord("x", 0.1, 0.2),)),
        "synced_mark": CaptionMark(0, 0, 0, None, ()),
        "session": session,
    }
    return State(**{**fields, **changes})  # type: ignore[arg-type]
