"""The language model as the checkpoints have it: Qwen2's body between embeddings and a head of codes."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from server.engines.cosyvoice.config import LlmConfig
from server.engines.cosyvoice.linear import MIN_ROWS, FastLinear
from server.engines.cosyvoice.llm.qwen2 import Body, Linear, MakeLinear, Part, Weights, norm
from server.engines.cosyvoice.llm.slots import SlotCache

IGNORED_KEYS: Final = ("llm.model.lm_head.weight",)  # Qwen2's text head


class _Model(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class SpeechLm(nn.Module):
    """Load a checkpoint (without `IGNORED_KEYS`), call `prepare()`, then compute. Its device and type are those of its
    parameters when it is prepared; it cannot be moved, saved or loaded after that.
    """

    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.config = config
        self.llm = _Model(_Model(Body(config)))
        self.llm_decoder = Weights(config.rows, config.hidden, bias=config.version == 2)
        self.speech_embedding = Weights(config.rows, config.hidden)
        if config.version == 2:
            self.llm_embedding = Weights(2, config.hidden)
        self._codes = torch.empty(0)
        self._head: Linear | None = None

    @property
    def body(self) -> Body:
        """The layers."""
        body = self.llm.model.model
        assert isinstance(body, Body)
        return body

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.speech_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.speech_embedding.weight.dtype

    def prepare(self, make: MakeLinear = FastLinear) -> None:
        """Lay out the weights for computing. A second call does nothing. `make` makes the body's linear layers."""
        if self._head is not None:
            return
        with torch.inference_mode():
            self.body.prepare(make)
            self._codes = self.speech_embedding.weight.detach()
            if self.config.version == 2:
                self._codes = torch.cat((self._codes, self.llm_embedding.weight))
            self._head = FastLinear([self.llm_decoder.weight], [self.llm_decoder.bias])

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Input ids (see `ids.py`) to rows `[n, hidden]`."""
        with torch.inference_mode():
            wanted = torch.tensor(ids, device=self.device)
            coded = self._codes[(-1 - wanted).clamp_(min=0)]
            if max(ids) < 0:
                return coded
            text = self.body.embed_tokens.weight[wanted.clamp(min=0)]
            return torch.where((wanted < 0)[:, None], coded, text)

    def run(self, x: Tensor, cache: SlotCache, parts: Sequence[Part]) -> Tensor:
        """Rows `x` `[n, hidden]` of `parts`, one part after the other, through the layers; their keys and values go
        into the cache, and its lengths grow. Returns `[n, hidden]`.

        fp32 on a CPU: a part's result is the same to the last bit whatever other parts of one row come with it, where
        weights can be packed (`linear.packing()`); else within 1e-5 of itself. In half precision: within 2e-2.
        """
        with torch.inference_mode():
            count = x.shape[0]
            if count < MIN_ROWS and x.device.type == "cpu":
                x = torch.cat((x, x.new_zeros(MIN_ROWS - count, x.shape[1])))
            made = self.body.run(x, cache, parts)[:count]
            for part in parts:
                cache.lengths[part.slot] = part.start + part.count
            return made

    def logits(self, rows: Tensor) -> Tensor:
        """Rows `[n, hidden]` of `run` to scores of the codes `[n, config.rows]`, fp32."""
        assert self._head is not None, "prepare() comes first"
        with torch.inference_mode():
            count = rows.shape[0]
            if count < MIN_ROWS and rows.device.type == "cpu":
                rows = torch.cat((rows, rows.new_zeros(MIN_ROWS - count, rows.shape[1])))
            return self._head(norm(rows, self.body.norm.weight, self.config.norm_eps)).float()[:count]
