"""The engine: our words and voices in the form of upstream's calls."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from server.engines.base import Capabilities, EngineError, RenderPlan, Samples, Segment, Voice
from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.standard_voice import STANDARD_VOICE, standard_recording
from server.engines.cosyvoice.text.marks import END_OF_PROMPT, markup
from server.engines.cosyvoice.text.prompts import SYSTEM
from server.engines.cosyvoice.text.wording import estimate_tokens, text_of, wording
from server.engines.cosyvoice_upstream.speech import Driver, Speech
from server.engines.cosyvoice_upstream.voices import KIND, RecordedVoice, from_bytes, make_recorded, to_bytes
from server.engines.simple import SimpleEngine, SimpleJob

MAX_TOKENS: Final = 80  # of a segment: what upstream itself cuts texts into
_VERSIONS: Final[Mapping[str, ModelVersion]] = {"CosyVoice2Model": 2, "CosyVoice3Model": 3}
_TAIL_BYTES: Final = 1024 * 1024
_WAIT_FOR_END_S: Final = 10.0


class UpstreamEngine(SimpleEngine):
    """Speaks one segment at a time with upstream's `CosyVoice2` or `CosyVoice3`."""

    def __init__(self, model: Any, folder: Path) -> None:
        """`model`: what upstream's `AutoModel` makes. Raises EngineError for a model of another kind."""
        kind = type(model.model).__name__
        if kind not in _VERSIONS:
            raise EngineError(f"{folder}: upstream calls this model {kind}; it must be one of {', '.join(_VERSIONS)}")
        self._version = _VERSIONS[kind]
        self._model = model
        self._driver = Driver(model.model)
        self._lock = threading.Lock()  # of what follows
        self._own: dict[str, tuple[RecordedVoice, Path]] = {}  # learnt voices, and their files
        self._running: set[Speech] = set()
        self._number = 0
        self._read: Callable[[str], bytes | None] = lambda _: None
        self._files = tempfile.TemporaryDirectory(prefix="cosyvoice-upstream-")
        self._speakers: dict[str, Any] = dict(model.frontend.spk2info)
        voices = [_voice(name, entry) for name, entry in self._speakers.items()]
        if not voices:
            self._use(STANDARD_VOICE.id, make_recorded(*standard_recording()))
            voices = [STANDARD_VOICE]
        self._capabilities = Capabilities(
            name="cosyvoice-upstream",
            languages=("zh", "en"),
            sample_rate=int(model.sample_rate),
            voices=tuple(voices),
            max_tokens=MAX_TOKENS,
            count_tokens=estimate_tokens,
            fingerprint=_fingerprint(folder, self._version),
            parameters=frozenset({"speed", "instruct"}),
            cloning=True,
            lanes=1,
            markup=markup(self._version),
            voice_kind=KIND,
        )

    @property
    def capabilities(self) -> Capabilities:
        """What upstream can do."""
        return self._capabilities

    # ---- voices ----

    def make_voice(self, recording: bytes, text: str) -> bytes:
        """See `ClonesVoices`."""
        return to_bytes(make_recorded(recording, text))

    def use_voices(self, read: Callable[[str], bytes | None]) -> None:
        """See `ClonesVoices`."""
        self._read = read

    def forget_voice(self, voice: str) -> None:
        """See `ClonesVoices`. An utterance that speaks with it may fail."""
        with self._lock:
            _, file = self._own.pop(voice, (None, None))
        if file is not None:
            self._model.frontend.spk2info.pop(_saved(voice), None)
            file.unlink(missing_ok=True)

    def _take(self, voice: str) -> tuple[RecordedVoice, Path] | None:
        """A learnt voice, None for a speaker of the model. Raises EngineError."""
        if voice in self._speakers:
            return None
        with self._lock:
            if (known := self._own.get(voice)) is not None:
                return known
        stored = self._read(voice)
        if stored is None:
            raise EngineError(f"there is no voice {voice} (any more)")
        try:
            return self._use(voice, from_bytes(stored))
        except ValueError as error:
            raise EngineError(f"voice {voice}: {error}") from error

    def _use(self, voice: str, recorded: RecordedVoice) -> tuple[RecordedVoice, Path]:
        with self._lock:
            self._number += 1
            file = Path(self._files.name) / f"{self._number}.wav"
            file.write_bytes(recorded.wav)
            return self._own.setdefault(voice, (recorded, file))

    # ---- speech ----

    def prepare(self, segment: Segment, plan: RenderPlan, seed: int = 0, start_sample: int = 0) -> SimpleJob:
        """See Engine. Raises EngineError for a voice that is gone, ValueError for an instruction that it cannot follow.
        The seed is not used: upstream draws from one source of chances on several threads.
        """
        known = self._take(segment.voice)
        if segment.instruct and known is None:
            raise ValueError("instruct: this voice came with the model, and follows none; voices of recordings do")
        # Upstream knows no other speed where it streams.
        stream = plan.mode == "stream" and segment.speed == 1.0
        return SimpleJob(segment, plan, self._pieces(segment, known, stream), start_sample)

    def synthesize(self, segment: Segment, seed: int) -> Iterator[Samples]:
        """See SimpleEngine."""
        return self.prepare(segment, RenderPlan(), seed).pieces

    def close(self) -> None:
        """Stop what is being spoken, and delete the files of voices."""
        with self._lock:
            running = list(self._running)
        for speech in running:
            speech.stop()
        for speech in running:
            speech.thread.join(_WAIT_FOR_END_S)
        self._files.cleanup()

    def _pieces(self, segment: Segment, known: tuple[RecordedVoice, Path] | None, stream: bool) -> Iterator[Samples]:
        text = _plain(text_of(wording(segment.tokens, segment.boundary)))
        if not text:
            return
        speech = Speech(self._driver, partial(self._call, segment, text, known, stream))
        with self._lock:
            self._running = {each for each in self._running if each.thread.is_alive()} | {speech}
        yield from speech.pieces()

    def _call(
        self, segment: Segment, text: str, known: tuple[RecordedVoice, Path] | None, stream: bool
    ) -> Iterator[Any]:
        """Upstream's generator for it. Version 3 wants its prompt's mark somewhere before the text."""
        options = {"stream": stream, "speed": segment.speed, "text_frontend": False}
        start = f"{SYSTEM}{END_OF_PROMPT}" if self._version == 3 else ""
        model = self._model
        if known is None:
            entry = self._speakers[segment.voice]
            if "flow_prompt_speech_token" in entry:  # a zero-shot speaker that somebody saved: its prompt has the mark
                return iter(model.inference_zero_shot(text, "", "", zero_shot_spk_id=segment.voice, **options))
            return iter(model.inference_sft(start + text, segment.voice, **options))
        recorded, file = known
        if segment.instruct:
            asked = f"{SYSTEM} {_plain(segment.instruct)}" if self._version == 3 else _plain(segment.instruct)
            return iter(model.inference_instruct2(text, asked + END_OF_PROMPT, str(file), **options))
        name = _saved(segment.voice)
        if name not in model.frontend.spk2info:
            model.add_zero_shot_spk(start + _plain(recorded.text) if recorded.text else "", str(file), name)
        if recorded.text:
            return iter(model.inference_zero_shot(text, "", "", zero_shot_spk_id=name, **options))
        return iter(model.inference_cross_lingual(start + text, "", zero_shot_spk_id=name, **options))


def _plain(text: str) -> str:
    """Without what would steer the model: upstream takes marks for marks, whoever wrote them."""
    while "<|" in text or "|>" in text:
        text = text.replace("<|", "").replace("|>", "")
    return text.strip()


def _saved(voice: str) -> str:
    """The name that upstream keeps a learnt voice under, which none of its own has."""
    return f"learnt\n{voice}"


def _voice(name: str, entry: Mapping[str, Any]) -> Voice:
    kind = "a voice of a recording" if "flow_prompt_speech_token" in entry else "a trained speaker"
    return Voice(name, name, ("zh", "en"), f"{kind}, came with the model", "that of the CosyVoice model")


def _fingerprint(folder: Path, version: ModelVersion) -> str:
    """Of a checkpoint: its length and its end, which lists a CRC of every tensor."""
    digest = sha256()
    for name in ("llm.pt", "flow.pt", "hift.pt"):
        file = folder / name
        if file.is_file():
            with file.open("rb") as opened:
                size = opened.seek(0, 2)
                opened.seek(max(0, size - _TAIL_BYTES))
                digest.update(f"{name} {size} ".encode() + opened.read())
    return f"cosyvoice-upstream{version}-{digest.hexdigest()[:16]}"
