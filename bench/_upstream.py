"""FunAudioLLM/CosyVoice's own classes and driver, out of a checkout that somebody has: the benchmark's baseline.

Nothing of theirs lies here. What their modules import but inference never uses (audio files, downloads, a training
framework) is replaced by empty modules, so that a few packages are enough: see PACKAGES.
"""

import importlib
import logging
import sys
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from bench._cosyvoice_model import Speaker
from bench._cosyvoice_speed import Spoken
from bench._upstream_parts import body_of, flow_of, vocoder_options
from server.engines.cosyvoice.config import LlmConfig, ModelConfig
from server.engines.cosyvoice.folder import Model

PACKAGES: Final = "transformers diffusers einops omegaconf x_transformers conformer scipy"
_EMPTY: Final = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "whisper", "modelscope")
_HOP: Final = 25  # codes of its first chunk
_TEXT_HEAD: Final = "llm.model.lm_head.weight"


class NotUsable(Exception):
    """The checkout is none, or a package is missing; the text is one line for who asked."""


class Upstream:
    """`CosyVoice2Model` or `CosyVoice3Model` with the weights of a model of ours. Call `speak` from any thread."""

    def __init__(self, checkout: Path, matcha: Path | None, model: Model) -> None:
        """Copies the weights: make it before the model is laid out for computing. Raises NotUsable."""
        with _importable(checkout, matcha):
            try:
                self._end, self._codes = model.config.llm.end, model.config.llm.codes
                self._draw = importlib.import_module("cosyvoice.utils.common").ras_sampling
                self.model = self._made(model.config)
            except ImportError as error:
                raise NotUsable(f"--upstream: {error}; besides torch it needs: pip install {PACKAGES}") from error
        for part, theirs, ours in (
            ("llm", self.model.llm, model.lm),
            ("flow", self.model.flow, model.flow),
            ("hift", self.model.hift, model.vocoder.network),
        ):
            state = _unfolded(ours.state_dict(), theirs.state_dict())
            if part == "llm":
                state[_TEXT_HEAD] = state["llm.model.model.embed_tokens.weight"]
            theirs.load_state_dict(state, strict=True)
            theirs.eval()
        self._length = 0

    def start_anew(self) -> None:
        """Forget what earlier requests did to the length of the chunks of all: it only ever grows."""
        self.model.token_hop_len = _HOP

    def speak(self, speaker: Speaker, text: str, codes: int) -> Spoken:
        """One request, streamed, as its server would make it; exactly so many codes."""
        self._length = codes  # of all requests at a time
        voice, prompt = speaker.voice, speaker.prompt
        recorded = torch.tensor([voice.codes], dtype=torch.int32)
        begun = time.perf_counter()
        times, lengths = [], []
        for made in self.model.tts(
            text=torch.tensor([speaker.text_ids(text)], dtype=torch.int32),
            flow_embedding=torch.from_numpy(voice.embedding)[None],
            llm_embedding=torch.from_numpy(voice.embedding)[None],
            prompt_text=torch.tensor([prompt.text], dtype=torch.int32),
            llm_prompt_speech_token=recorded,
            flow_prompt_speech_token=recorded,
            prompt_speech_feat=torch.from_numpy(voice.mel)[None],
            stream=True,
        ):
            times.append(time.perf_counter() - begun)
            lengths.append(int(made["tts_speech"].shape[1]))
        return Spoken(times, lengths)

    def mel(self, speaker: Speaker, codes: Sequence[int]) -> Tensor:
        """What its flow model makes of these codes, all but the last three, `[frames, 80]`."""
        voice = speaker.voice
        given, recorded = torch.tensor([codes], dtype=torch.int32), torch.tensor([voice.codes], dtype=torch.int32)
        mel, _ = self.model.flow.inference(
            token=given, token_len=_length(given), prompt_token=recorded, prompt_token_len=_length(recorded),
            prompt_feat=torch.from_numpy(voice.mel)[None], prompt_feat_len=torch.tensor([len(voice.mel)]),
            embedding=torch.from_numpy(voice.embedding)[None], streaming=True, finalize=False,
        )  # fmt: skip
        return mel[0].T  # type: ignore[no-any-return]

    def _sample(self, scores: Tensor, drawn: Sequence[int], sampling: int) -> int:
        """Its own way to draw, but the end comes where it is wanted."""
        if len(drawn) >= self._length:
            return self._end
        scores[self._codes :] = -torch.inf
        return int(self._draw(scores, list(drawn), sampling))

    def _made(self, config: ModelConfig) -> Any:
        cli = importlib.import_module("cosyvoice.cli.model")
        generator = importlib.import_module("cosyvoice.hifigan.generator")
        second = config.version == 2
        make = generator.HiFTGenerator if second else generator.CausalHiFTGenerator
        hift = make(**vocoder_options(config.vocoder))
        driver = cli.CosyVoice2Model if second else cli.CosyVoice3Model
        return driver(self._language_model(config.llm), flow_of(config.flow), hift)

    def _language_model(self, config: LlmConfig) -> nn.Module:
        llm: Any = importlib.import_module("cosyvoice.llm.llm")
        body = body_of(config)
        llm.Qwen2ForCausalLM = types.SimpleNamespace(from_pretrained=lambda _: body)
        encoder = llm.Qwen2Encoder("")
        make = llm.Qwen2LM if config.version == 2 else llm.CosyVoice3LM
        return make(  # type: ignore[no-any-return]
            llm_input_size=config.hidden, llm_output_size=config.hidden, speech_token_size=config.codes,
            llm=encoder, sampling=self._sample, mix_ratio=[config.text_share, config.code_share],
        )  # fmt: skip


def _length(tokens: Tensor) -> Tensor:
    return torch.tensor([tokens.shape[1]], dtype=torch.int32)


def _unfolded(state: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights in the two parts that weight norm has them in, where these are wanted; computed buffers stay theirs."""
    made = dict(state)
    for key in wanted:
        stem, _, part = key.partition(".parametrizations.weight.")
        if part == "original1":
            weight = made.pop(f"{stem}.weight")
            made[key] = weight
            made[f"{stem}.parametrizations.weight.original0"] = (
                weight.flatten(1).norm(dim=1).view(-1, *[1] * (weight.dim() - 1))
            )
        elif key not in made and key.endswith("inv_freq"):
            made[key] = wanted[key]
    return made


@contextmanager
def _importable(checkout: Path, matcha: Path | None) -> Iterator[None]:
    """Let Python find the checkout, and the library that it carries as a submodule. Raises NotUsable."""
    matcha = matcha or checkout / "third_party" / "Matcha-TTS"
    for folder, inside, option in ((checkout, "cosyvoice", "--upstream"), (matcha, "matcha", "--matcha")):
        if not (folder / inside).is_dir():
            raise NotUsable(f"{option}: {folder} has no folder {inside}")
    for name in _EMPTY:
        _put(name)
    _put("matcha.utils", get_pylogger=logging.getLogger)
    _put("matcha.utils.pylogger", get_pylogger=logging.getLogger)
    # What diffusers had under this name until 0.26; without such weights it is a linear layer.
    _put("diffusers.models.lora", LoRACompatibleLinear=type("LoRACompatibleLinear", (nn.Linear,), {}))
    sys.path[:0] = [str(checkout), str(matcha)]
    if not logging.getLogger().handlers:  # else it logs everything from its import on
        logging.getLogger().addHandler(logging.NullHandler())
    for category in (FutureWarning, UserWarning):  # of newer releases of what it builds on
        warnings.filterwarnings("ignore", category=category, module="cosyvoice|torch|transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    yield


def _put(name: str, **contents: object) -> None:
    """An empty module, unless there is a real one already."""
    if name in sys.modules:
        return
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    for key, value in contents.items():
        setattr(module, key, value)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
