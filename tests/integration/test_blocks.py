"""Long sentences through a whole server: blocks, their context, and every word heard once."""

import random
from typing import Any, Literal

import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from server.engines import Segment
from server.engines.base import Job, RenderPlan
from server.engines.tone import ToneEngine, count_tokens
from tests.support.server import BareClient, bare_client, running_server

LATIN = "lorem ipsum dolor wonderful bird quick because without".split()
HANZI = "今天公园散步我们认为因为但是问题复杂了的山水"
LARGE = {"max_tokens": 1024, "context_tokens": 16}


def a_text(seed: int) -> tuple[str, list[tuple[int, int]]]:
    """Random sentences, some very long, and where the words of it stand."""
    rng = random.Random(seed)
    text = ""
    places: list[tuple[int, int]] = []
    for _ in range(6):
        chinese = rng.random() < 0.5
        for _ in range(rng.choice([3, 40, 300, 400])):
            word = rng.choice(HANZI) if chinese or rng.random() < 0.05 else rng.choice(LATIN)
            places.append((len(text), len(text) + len(word)))
            text += word + ("" if len(word) == 1 else " ")
            if rng.random() < 0.06:
                text = text.rstrip() + rng.choice(["，", ", ", "；", "、", " 😀 "])
        text = text.rstrip() + rng.choice(["。", ". ", "！", "\n"])
    return text, places


async def heard(client: BareClient, text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where the words that sounded, and the segments, stand in the text."""
    await client.numbered(c.Start, utterance=1)
    rng = random.Random(len(text))
    at = 0
    while at < len(text):
        size = rng.choice([1, 7, 500])
        await client.numbered(c.Text, text=text[at : at + size])
        at += size
    await client.numbered(c.End)
    await client.until(s.Done, timeout=60)
    words = [word for message in client.messages if isinstance(message, s.Timing) for word in message.words]
    assert words == sorted(words, key=lambda word: word.first_sample)
    segments = [(each.start, each.end) for each in client.messages if isinstance(each, s.SegmentBegin)]
    return [(word.start, word.end) for word in words], segments


@pytest.mark.parametrize("mode", ["stream", "block"])
@pytest.mark.parametrize("seed", range(3))
async def test_every_word_sounds_once(
    seed: int, mode: Literal["stream", "block"], monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = []

    def prepare(self: ToneEngine, segment: Segment, plan: RenderPlan, *others: Any) -> Job:
        contexts.append(segment.before)
        return prepare_as_ever(self, segment, plan, *others)

    prepare_as_ever = ToneEngine.prepare
    monkeypatch.setattr(ToneEngine, "prepare", prepare)
    text, places = a_text(seed)
    asked = c.Open(mode=mode, max_lead_ms=None, max_buffer_delay_ms=None)
    async with running_server(engine_options=LARGE) as url, bare_client(url, open=asked) as client:
        words, segments = await heard(client, text)
    assert words == places
    assert [start for start, _ in segments[1:]] == [end for _, end in segments[:-1]]
    sizes = [count_tokens(text[start:end]) for start, end in segments]
    assert 40 < max(sizes) <= 256
    assert any(contexts)
    assert all(sum(token.kind == "word" for token in context) <= 16 for context in contexts)
