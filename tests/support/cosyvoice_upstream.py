"""A small stand-in for upstream's package: its calls, its threads and its mistakes, without its models.

Every code is a text's character; a code is 960 samples.
"""

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

HOP: Final = 25
LOOKAHEAD: Final = 3
CODE: Final = 960


class FakeLm:
    """Draws codes for ever so long, unless told to fail."""

    def __init__(self) -> None:
        self.codes, self.fails_after, self.pause_s, self.drawn = 60, -1, 0.0, 0

    def inference(self, **_: Any) -> Iterator[int]:
        for number in range(self.codes):
            if number == self.fails_after:
                raise RuntimeError("the text that nobody may read in a log")
            time.sleep(self.pause_s)
            self.drawn += 1
            yield number


class CosyVoice2Model:
    """As upstream's driver: a thread for the codes, a loop that waits for them, one length of chunks for all."""

    def __init__(self) -> None:
        self.llm = FakeLm()
        self.token_hop_len = HOP
        self.tts_speech_token_dict: dict[str, list[int]] = {}
        self.llm_end_dict: dict[str, bool] = {}
        self.hift_cache_dict: dict[str, object] = {}
        self.solved = 0

    def llm_job(self, text: str, name: str) -> None:
        for code in self.llm.inference(text=text):
            self.tts_speech_token_dict[name].append(code)
        self.llm_end_dict[name] = True

    def token2wav(self, codes: list[int]) -> np.ndarray[Any, Any]:
        self.solved += 1
        return np.full((1, CODE * len(codes)), 0.1, np.float32)

    def tts(self, text: str, stream: bool) -> Iterator[dict[str, Any]]:
        name, offset = str(uuid.uuid1()), 0
        self.tts_speech_token_dict[name], self.llm_end_dict[name], self.hift_cache_dict[name] = [], False, None
        thread = threading.Thread(target=self.llm_job, args=(text, name))
        thread.start()
        codes = self.tts_speech_token_dict[name]
        while stream:
            time.sleep(0.001)
            ended, hop = self.llm_end_dict[name], self.token_hop_len
            if len(codes) - offset >= hop + LOOKAHEAD:
                made = self.token2wav(codes[offset : offset + hop])
                offset += hop
                self.token_hop_len = min(4 * HOP, 2 * hop)
                yield {"tts_speech": made}
            elif ended:
                break
        thread.join()
        yield {"tts_speech": self.token2wav(codes[offset:])}
        for kept in (self.tts_speech_token_dict, self.llm_end_dict, self.hift_cache_dict):
            kept.pop(name)


class CosyVoice3Model(CosyVoice2Model):
    """The same by another name."""


class Frontend:
    """The speakers."""

    def __init__(self) -> None:
        self.spk2info: dict[str, dict[str, Any]] = {
            "trained": {"embedding": 1},
            "saved": {"embedding": 1, "flow_prompt_speech_token": 2},
        }


class FakeCosyVoice:
    """As upstream's `CosyVoice2`; `calls` are what was asked of it."""

    def __init__(self, driver: CosyVoice2Model) -> None:
        self.model, self.frontend, self.sample_rate = driver, Frontend(), 24_000
        self.calls: list[tuple[Any, ...]] = []

    def add_zero_shot_spk(self, prompt_text: str, prompt_wav: str, zero_shot_spk_id: str) -> bool:
        assert Path(prompt_wav).read_bytes()[:4] == b"RIFF"
        self.calls.append(("add", prompt_text, zero_shot_spk_id))
        self.frontend.spk2info[zero_shot_spk_id] = {"embedding": 1, "flow_prompt_speech_token": 2}
        return True

    def inference_sft(self, tts_text: str, spk_id: str, stream: bool, speed: float, text_frontend: bool) -> Any:
        return self._speak(("sft", tts_text, spk_id), stream, speed, text_frontend)

    def inference_zero_shot(
        self, tts_text: str, prompt_text: str, prompt_wav: str, zero_shot_spk_id: str, stream: bool, speed: float,
        text_frontend: bool,
    ) -> Any:  # fmt: skip
        assert zero_shot_spk_id in self.frontend.spk2info
        return self._speak(("zero_shot", tts_text, zero_shot_spk_id), stream, speed, text_frontend)

    def inference_cross_lingual(
        self, tts_text: str, prompt_wav: str, zero_shot_spk_id: str, stream: bool, speed: float, text_frontend: bool
    ) -> Any:
        assert zero_shot_spk_id in self.frontend.spk2info
        return self._speak(("cross_lingual", tts_text, zero_shot_spk_id), stream, speed, text_frontend)

    def inference_instruct2(
        self, tts_text: str, instruct_text: str, prompt_wav: str, stream: bool, speed: float, text_frontend: bool
    ) -> Any:
        assert Path(prompt_wav).read_bytes()[:4] == b"RIFF"
        return self._speak(("instruct2", tts_text, instruct_text), stream, speed, text_frontend)

    def _speak(self, call: tuple[Any, ...], stream: bool, speed: float, text_frontend: bool) -> Any:
        assert not text_frontend  # the server has read the text already
        assert speed == 1.0 or not stream
        self.calls.append(call)
        return self.model.tts(call[1], stream)
