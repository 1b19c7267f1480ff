"""Codes to mel: the flow of either version, whole or hop by hop with everything that came before kept.

The solver's steps do not see each other, so each has a cache of its own. A pass (a hop, or a whole segment) is advanced
by one step at a time, several passes in one call: `step_passes` in `passes.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engines.cosyvoice.config import FlowConfig
from server.engines.cosyvoice.flow.base import Encoder, Estimator
from server.engines.cosyvoice.flow.blocks import FlowCache, grid, pieces
from server.engines.cosyvoice.flow.dit import Dit
from server.engines.cosyvoice.flow.lookahead import LookaheadEncoder, LookaheadLayer
from server.engines.cosyvoice.flow.passes import CODES_PER_SECOND, LIMIT_S, FlowPass, check_length, noise, step_passes

__all__ = [
    "CODES_PER_SECOND", "LIMIT_S", "FlowModel", "FlowPass", "FlowPrefix", "FlowPrompt", "FlowState", "noise",
    "step_passes",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class FlowPrompt:
    """What is known of a voice: `codes` int64 `[P]` (none at all where there is no recording), the `mel` `[2 P, 80]` of
    the same, and the speaker's `embedding` `[192]`. On the model's device.
    """

    codes: Tensor
    mel: Tensor
    embedding: Tensor


class _Decoder(nn.Module):
    """Only there for the names of the checkpoint's keys."""

    def __init__(self, estimator: nn.Module) -> None:
        super().__init__()
        self.estimator = estimator


class FlowModel(nn.Module):
    """The flow of either version. Results are inference tensors, mel in float32."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.input_embedding = nn.Embedding(config.codes, config.input_size)
        self.spk_embed_affine_layer = nn.Linear(config.speaker_size, config.mels)
        if config.version == 2:
            from server.engines.cosyvoice.flow.conformer import (
                ConformerEncoder,
            )  # only here: a process runs one of the versions
            from server.engines.cosyvoice.flow.unet import UNet

            assert config.encoder is not None
            self.encoder = ConformerEncoder(config)
            self.encoder_proj = nn.Linear(config.encoder.dim, config.mels)
            self.decoder = _Decoder(UNet(config))
        else:
            assert config.dit is not None
            self.pre_lookahead_layer = LookaheadLayer(
                config.input_size, config.dit.lookahead_channels, config.lookahead
            )
            self.decoder = _Decoder(Dit(config))
        self.requires_grad_(False).eval()

    @property
    def estimator(self) -> Estimator:
        """The network that the solver asks for the velocity."""
        return cast(Estimator, self.decoder.estimator)

    @property
    def _encoder(self) -> Encoder:
        if self.config.version == 2:
            return cast(Encoder, self.encoder)
        return LookaheadEncoder(self.pre_lookahead_layer, self.config.frames_per_code)

    @torch.inference_mode()
    def whole(self, codes: Tensor, prompt: FlowPrompt, *, streaming: bool, final: bool) -> FlowPass:
        """All of a segment at once, nothing kept. `streaming`: in blocks of 25 codes from the prompt's first, else in
        one block. Not `final`: the last three codes are only looked at. Its mel has the frames of the other codes.

        Raises ValueError: codes of a wrong shape or with no frame to make, a prompt that does not fit, too long.
        """
        self._check_prompt(prompt)
        config, known, given = self.config, len(prompt.codes), _checked_codes(codes)
        ahead = None
        if not final:
            given, ahead = given[: -config.lookahead], given[-config.lookahead :]
        if not len(given):
            raise ValueError(
                f"codes: there are {len(codes)}, none of which gets a frame; allowed: at least one that does"
            )
        total = known + len(given)
        check_length(total)
        blocks = grid(0, total, config.block) if streaming else (total,)
        mu = self._mu(torch.cat([prompt.codes, given]), ahead, blocks, None)
        speaker, skip = self._speaker(prompt), config.frames_per_code * known
        return FlowPass(self.estimator, config, mu, speaker, prompt.mel, 0, blocks, None, skip=skip)

    @torch.inference_mode()
    def prefix(self, prompt: FlowPrompt, history: int | None, *, aligned: bool = False) -> "FlowPrefix":
        """`begin_prefix`, and all of its steps."""
        making = self.begin_prefix(prompt, history, aligned=aligned)
        while not making.step():
            pass
        return making.prefix

    @torch.inference_mode()
    def begin_prefix(self, prompt: FlowPrompt, history: int | None, *, aligned: bool = False) -> "PrefixPass":
        """What depends on the prompt alone: all of the prompt's codes but the last three, which wait for what follows
        them. `history` frames are looked back at later on, besides these; None: all.

        `aligned`: blocks lie on the grid of 25 codes that starts with the prompt, as in `whole(streaming=True)`, so the
        prompt's last, incomplete block waits, too: the first hop costs more.

        Raises ValueError: a prompt that does not fit, too long, a history below 0.
        """
        self._check_prompt(prompt)
        if history is not None and history < 0:
            raise ValueError(f"history: {history} frames; allowed: 0 or more")
        config = self.config
        known = max(0, len(prompt.codes) - config.lookahead)
        if aligned:
            known -= known % config.block
        encoder_cache = self._encoder.new_cache(history)
        caches = tuple(self.estimator.new_cache(history) for _ in range(config.steps))
        speaker, solving = self._speaker(prompt), None
        if known:
            blocks = pieces(known, config.block)
            ahead = prompt.codes[known : known + config.lookahead]
            mu = self._mu(prompt.codes[:known], ahead, blocks, encoder_cache)
            solving = FlowPass(self.estimator, config, mu, speaker, prompt.mel, 0, blocks, caches, skip=0)
        return PrefixPass(FlowPrefix(self, prompt, speaker, known, aligned, encoder_cache, caches), solving)

    def start(self, prefix: "FlowPrefix") -> "FlowState":
        """A segment that is spoken with this prefix, hop by hop."""
        return FlowState(prefix)

    def _mu(self, codes: Tensor, ahead: Tensor | None, blocks: Sequence[int], cache: FlowCache | None) -> Tensor:
        """`[2 n, 80]` of the codes."""
        embedded = self.input_embedding(codes.clamp(min=0))
        after = None if ahead is None else self.input_embedding(ahead.clamp(min=0))
        encoded = self._encoder.encode(embedded, after, blocks, cache)
        return cast(Tensor, self.encoder_proj(encoded)) if self.config.version == 2 else encoded

    def _speaker(self, prompt: FlowPrompt) -> Tensor:
        """`[80]`."""
        embedding = functional.normalize(prompt.embedding.float(), dim=0)
        return cast(Tensor, self.spk_embed_affine_layer(embedding.to(self.spk_embed_affine_layer.weight.dtype)))

    def _check_prompt(self, prompt: FlowPrompt) -> None:
        check_length(len(_checked_codes(prompt.codes, "prompt codes")))
        wanted = (self.config.frames_per_code * len(prompt.codes), self.config.mels)
        if tuple(prompt.mel.shape) != wanted:
            raise ValueError(
                f"prompt mel: shape {tuple(prompt.mel.shape)}; allowed: {wanted}, two frames for each code"
            )
        if tuple(prompt.embedding.shape) != (self.config.speaker_size,):
            raise ValueError(
                f"prompt embedding: shape {tuple(prompt.embedding.shape)}; allowed: ({self.config.speaker_size},)"
            )


@dataclass(frozen=True, slots=True, eq=False)
class FlowPrefix:
    """What depends on a voice alone. Any number of segments start from it; none of them changes it."""

    model: FlowModel
    prompt: FlowPrompt
    speaker: Tensor
    known: int  # codes of the prompt that are in the caches
    aligned: bool
    encoder_cache: FlowCache
    caches: tuple[FlowCache, ...]

    @property
    def bytes(self) -> int:
        """What is held for it; segments that start from it share this."""
        return sum(cache.bytes + cache.pinned_bytes for cache in (self.encoder_cache, *self.caches))


class PrefixPass:
    """A prefix that is being made, step by step as a segment's pieces are: a long recording's takes as long as speech
    of its length.
    """

    def __init__(self, prefix: FlowPrefix, solving: "FlowPass | None") -> None:
        self._prefix, self._solving, self._done = prefix, solving, False

    def step(self) -> bool:
        """One step of the solver; True when all are made."""
        if not self._done and (self._solving is None or self._solving.step()):
            for cache in (self._prefix.encoder_cache, *self._prefix.caches):
                cache.pin()
            self._done, self._solving = True, None
        return self._done

    @property
    def prefix(self) -> FlowPrefix:
        """What was made; RuntimeError before it is done."""
        if not self._done:
            raise RuntimeError("the prefix is being made")
        return self._prefix


class FlowState:
    """One segment, hop by hop. One hop at a time: the next one may begin when the last one's pass is done."""

    def __init__(self, prefix: FlowPrefix) -> None:
        self._prefix = prefix
        self._encoder_cache = prefix.encoder_cache.copy()
        self._caches = tuple(cache.copy() for cache in prefix.caches)
        self._position = prefix.known  # codes so far, the prompt's counted
        self._pass: FlowPass | None = None
        self._ended = False

    @property
    def bytes(self) -> int:
        """What it holds besides its prefix."""
        return sum(cache.bytes for cache in (self._encoder_cache, *self._caches))

    @torch.inference_mode()
    def hop(self, codes: Tensor, ahead: Tensor | None) -> FlowPass:
        """The next codes (int64 `[n]`, n >= 1) and the three after them; None: nothing comes after them. Its mel has
        the two frames of each of these codes.

        Raises ValueError: codes of a wrong shape, no code, a number ahead that is not three, too long;
        RuntimeError: the last hop is not done, or was the last.
        """
        if self._ended or (self._pass is not None and not self._pass.done):
            raise RuntimeError("the last hop has been made" if self._ended else "a hop is being made")
        model, prompt = self._prefix.model, self._prefix.prompt
        config = model.config
        if not len(_checked_codes(codes)):
            raise ValueError("codes: there are none; allowed: one or more")
        if ahead is not None and len(_checked_codes(ahead, "codes ahead")) != config.lookahead:
            raise ValueError(f"codes ahead: there are {len(ahead)}; allowed: {config.lookahead}, or None at the end")
        waiting = prompt.codes[self._position :]  # the prompt's last ones, the first time
        count = len(waiting) + len(codes)
        if self._prefix.aligned:
            blocks = grid(self._position, count, config.block)
        else:
            first = len(waiting) + min(len(codes), config.block)
            blocks = (first, *pieces(count - first, config.block))
        check_length(self._position + count)
        mu = model._mu(torch.cat([waiting, codes]), ahead, blocks, self._encoder_cache)
        mel = prompt.mel[config.frames_per_code * self._position :]
        self._pass = FlowPass(
            model.estimator, config, mu, self._prefix.speaker, mel, self._position, blocks, self._caches,
            skip=config.frames_per_code * len(waiting),
        )  # fmt: skip
        self._position += count
        self._ended = ahead is None
        return self._pass


def _checked_codes(codes: Tensor, field: str = "codes") -> Tensor:
    if codes.ndim != 1 or codes.dtype != torch.int64:
        raise ValueError(f"{field}: {codes.dtype} of shape {tuple(codes.shape)}; allowed: int64 of one dimension")
    return codes
