"""The voices that an engine speaks with, and what is computed once for each: kept while there is room.

A voice comes with the model (`spk2info.pt`), or was learnt and lies in the server's folder of voices. Nothing that is
kept here decides a sample: what was thrown away is computed again, with the same result.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from server.cache.forgotten import Forgotten
from server.engines.base import EngineError
from server.engines.cosyvoice.flow.matching import FlowModel, FlowPrefix, FlowPrompt, PrefixPass
from server.engines.cosyvoice.llm.jobs import VoicePrefix
from server.engines.cosyvoice.voice.data import VoiceData

MOST_SPOKEN: Final = 8  # of one voice: its own text and the instructions that were used last


class VoiceGone(EngineError):
    """A voice that was there is no longer, or cannot be read."""


@dataclass(slots=True, eq=False)
class KeptVoice:
    """A voice on the model's device. `flow` is there once a segment was spoken block by block, and `making` while it
    is made; `spoken` has what the language model keeps of the voice's text, and of instructions for it.
    """

    id: str
    data: VoiceData
    prompt: FlowPrompt
    flow: FlowPrefix | None = None
    making: PrefixPass | None = None
    spoken: OrderedDict[tuple[int, ...], VoicePrefix] = field(default_factory=OrderedDict)

    @property
    def bytes(self) -> int:
        """What is held for it."""
        held = sum(tensor.nbytes for tensor in (self.prompt.codes, self.prompt.mel, self.prompt.embedding))
        held += sum(prefix.bytes for prefix in list(self.spoken.values()))
        return held + (self.flow.bytes if self.flow is not None else 0)

    def spoken_prefix(self, ids: tuple[int, ...], compute: Callable[[tuple[int, ...]], VoicePrefix]) -> VoicePrefix:
        """What the language model keeps of these first input ids."""
        prefix = self.spoken.get(ids)
        if prefix is None:
            prefix = self.spoken[ids] = compute(ids)
            if len(self.spoken) > MOST_SPOKEN:
                self.spoken.popitem(last=False)
        else:
            self.spoken.move_to_end(ids)
        return prefix


class VoiceShelf:
    """See the module text. Safe to use from several threads."""

    def __init__(
        self,
        flow: FlowModel,
        built_in: Mapping[str, VoiceData],
        parse: Callable[[bytes], VoiceData],
        *,
        history: int | None,
        max_bytes: int,
    ) -> None:
        """`parse` reads the bytes of a learnt voice (ValueError: one line); `history`: see `FlowModel.prefix`."""
        self._flow = flow
        self._built_in = built_in
        self._parse = parse
        self._history = history
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._forgotten = Forgotten()
        self._kept: OrderedDict[str, KeptVoice] = OrderedDict()
        self.read: Callable[[str], bytes | None] = lambda _: None

    @property
    def bytes(self) -> int:
        """What is kept, of all voices."""
        with self._lock:
            return sum(voice.bytes for voice in self._kept.values())

    def take(self, voice: str) -> KeptVoice:
        """The voice of this id. Raises VoiceGone."""
        with self._lock:
            if (kept := self._kept.get(voice)) is not None:
                self._kept.move_to_end(voice)
                return kept
        kept = self._load(voice)
        with self._lock:
            if voice not in self._forgotten:  # while it was read
                kept = self._kept.setdefault(voice, kept)
                self._make_room(kept)
        return kept

    def flow_prefix(self, voice: KeptVoice) -> FlowPrefix | None:
        """What the flow model makes of its recording. None while that is being made: each call makes a step of it."""
        if voice.flow is None:
            making = voice.making or self._flow.begin_prefix(voice.prompt, self._history)
            voice.making = None  # a step that raises leaves it half done: it is begun anew then
            if not making.step():
                voice.making = making
                return None
            voice.flow = making.prefix
            with self._lock:
                self._make_room(voice)
        return voice.flow

    def forget(self, voice: str) -> None:
        """A voice was deleted. Segments that are being spoken keep what they have."""
        with self._lock:
            self._forgotten.add(voice)
            self._kept.pop(voice, None)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()

    def _make_room(self, newest: KeptVoice) -> None:
        """Let go of voices that were not used for longest. Call it with the lock held."""
        held = sum(voice.bytes for voice in self._kept.values())
        for voice_id in list(self._kept):
            if held <= self._max_bytes:
                return
            if voice_id != newest.id:
                held -= self._kept.pop(voice_id).bytes

    def _load(self, voice: str) -> KeptVoice:
        data = self._built_in.get(voice)
        if data is None:
            stored = self.read(voice)
            if stored is None:
                raise VoiceGone(f"there is no voice {voice} (any more)")
            try:
                data = self._parse(stored)
            except ValueError as error:
                raise VoiceGone(f"voice {voice}: {error}") from error
        weight = self._flow.spk_embed_affine_layer.weight
        prompt = FlowPrompt(
            torch.tensor(data.codes, dtype=torch.int64, device=weight.device),
            torch.from_numpy(data.mel).to(weight.device, weight.dtype),
            torch.from_numpy(data.embedding).to(weight.device),
        )
        return KeptVoice(voice, data, prompt)
