"""Finished audio of segments, for texts that come again: what makes two of them the same, and how one is told again.

Pure. A segment's samples are a function of its request alone, so they may be given to whoever asks for the same.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Final

from server.cache.counts import CacheSize, CacheUse
from server.cache.forgotten import Forgotten
from server.cache.keys import BlockKey
from server.cache.segmented import SegmentedLru
from server.engines.base import Capabilities, WordTiming
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.text.characters import HANZI_CLASS

WORD_BYTES: Final = 300  # of a word's timing, as Python keeps it
CHUNK_BYTES: Final = 150  # of a chunk without its samples
CODE_BYTES: Final = 36  # of a speech code, likewise

_TOKEN: Final = re.compile(r"[A-Za-z0-9]+|\s+|.", re.DOTALL)  # nothing of the text is left out
_SPACE: Final = " \t\n"
_SETTLED: Final = re.compile(rf"[A-Za-z0-9{HANZI_CLASS},.?!;:'\"，。？！、；：…）)」』”’]\Z")
"""Where a text ends like this, space behind it says nothing. Behind others it may: `- ` is the sign of a list."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A text to be spoken: what it has in common with the same text elsewhere, and where it starts in its own."""

    key: BlockKey
    start: int


def spot_of(request: SegmentRequest, capabilities: Capabilities) -> Spot:
    """The key has everything that decides the samples. White space around the text is none of it, but where a client's
    lexicon may read it.
    """
    text, start = request.cut.text, request.cut.start
    if not request.lexicon:
        bare = text.lstrip(_SPACE)
        start += len(text) - len(bare)
        text = bare.rstrip(_SPACE)
        if not _SETTLED.search(text):
            text = bare
    plan = request.plan
    rendering = "" if capabilities.equality == "exact" else f"{plan.mode} {plan.chunk_ms}"
    key = BlockKey(
        capabilities.fingerprint,
        request.voice,
        (
            float(request.speed),
            float(request.pitch),
            float(request.volume),
            request.sample_rate,
            request.seed,
            request.instruct,
            _digest_of(_Same(request.lexicon)) if request.lexicon else "",
            request.cut.language,
            request.cut.boundary.value,
            rendering,
        ),
        tuple(_TOKEN.findall(text)),
        tuple(_TOKEN.findall(request.before)),
    )
    return Spot(key, start)


class _Same:
    """A lexicon, equal to itself alone: comparing 1000 entries for each segment would be too slow."""

    def __init__(self, readings: Mapping[str, str]) -> None:
        self.readings = readings  # held, so that its identity is not given to another one

    def __hash__(self) -> int:
        return id(self.readings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.readings is self.readings


@lru_cache(maxsize=16)
def _digest_of(lexicon: _Same) -> str:
    """What a lexicon says. It must not change afterwards."""
    digest = sha256()
    for text in (text for entry in sorted(lexicon.readings.items()) for text in entry):
        told = text.encode("utf-8", "surrogatepass")
        digest.update(len(told).to_bytes(8, "little") + told)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class KeptAudio:
    """A whole segment as it was rendered, of a text that started at `start`."""

    chunks: tuple[RenderedChunk, ...]
    start: int

    def again(self, start: int, first_sample: int = 0) -> Iterator[RenderedChunk]:
        """The same for a text that starts at `start`, without samples before `first_sample` and words that ended by
        then.
        """
        shift = start - self.start
        words: tuple[WordTiming, ...] = ()
        codes: tuple[int, ...] = ()
        end = 0
        for chunk in self.chunks:
            begin, end = end, end + chunk.samples
            # of a list, not of a generator: docs/decisions.md, "Tuples of lists"
            heard = [word for word in chunk.words if not first_sample or word.end_sample > first_sample]
            words += tuple([_moved(word, shift) for word in heard])
            codes += chunk.codes
            pcm = chunk.pcm[2 * max(0, first_sample - begin) :]
            if pcm or ((words or codes) and end >= first_sample):
                yield RenderedChunk(pcm, words, codes=codes)
                words, codes = (), ()


def _moved(word: WordTiming, shift: int) -> WordTiming:
    return replace(word, start=word.start + shift, end=word.end + shift) if shift else word


class Recording:
    """A segment's chunks as they come. Once it is spoilt nothing more is kept of it; end each by `keep` or `spoil`."""

    def __init__(self, cache: "AudioCache", spot: Spot) -> None:
        self.spot = spot
        self.chunks: list[RenderedChunk] = []
        self.bytes = 0
        self.spoilt = False
        self._cache = cache

    def add(self, chunk: RenderedChunk) -> None:
        """One more. What was rendered anew after a failure is not what the text sounds like, and spoils it."""
        if self.spoilt:
            return
        more = CHUNK_BYTES + len(chunk.pcm) + WORD_BYTES * len(chunk.words) + CODE_BYTES * len(chunk.codes)
        if chunk.part is not None or not self._cache.may_record(self.spot.key.size + self.bytes, more):
            self.spoil()
            return
        self.chunks.append(chunk)
        self.bytes += more
        self._cache.recording += more

    def spoil(self) -> None:
        """It will never be whole."""
        self.spoilt = True
        self.chunks.clear()
        self._cache.recording -= self.bytes
        self.bytes = 0

    def keep(self) -> None:
        """It is the whole segment, from its first sample on: nothing else may be kept."""
        if not self.spoilt:
            kept, size = KeptAudio(tuple(self.chunks), self.spot.start), self.spot.key.size + self.bytes
            self.spoil()
            self._cache.keep(self.spot, kept, size)


class AudioCache:
    """Finished audio, at most `max_bytes` of it, and a quarter of that again of segments that are being recorded. Not
    thread-safe: it belongs to an event loop.
    """

    def __init__(self, max_bytes: int) -> None:
        self.recording = 0  # bytes
        self._kept: SegmentedLru[KeptAudio] = SegmentedLru(max_bytes)
        self._forgotten = Forgotten()

    @property
    def use(self) -> CacheUse:
        """What was asked of it, ever."""
        return self._kept.use

    @property
    def size(self) -> CacheSize:
        """What is in it."""
        return self._kept.size

    def find(self, spot: Spot) -> KeptAudio | None:
        """What this text sounds like, if it is known."""
        return self._kept.find(spot.key)

    def forget_voice(self, voice: str) -> None:
        """A voice was deleted: nothing is kept of it, from now on."""
        self._forgotten.add(voice)
        self._kept.forget_voice(voice)

    def may_record(self, recorded: int, more: int) -> bool:
        """Whether a recording of so many bytes may take more."""
        largest = self._kept.largest
        return recorded + more <= largest and self.recording + more <= largest

    def keep(self, spot: Spot, audio: KeptAudio, size: int) -> None:
        """What this text sounds like, in so many bytes with its key."""
        if spot.key.voice in self._forgotten:
            return
        self._kept.add(spot.key, audio, size)
