"""Voices: learnt with a tiny model, kept as bytes, and read of a model folder."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from server.engines.cosyvoice.config import ModelConfig, ModelVersion
from server.engines.cosyvoice.reading import BODY_FOLDER, read_config
from server.engines.cosyvoice.sections import ModelError
from server.engines.cosyvoice.text.tokenizer import TextTokenizer
from server.engines.cosyvoice.voice import storing
from server.engines.cosyvoice.voice.data import VoiceData
from server.engines.cosyvoice.voice.features import flow_mel
from server.engines.cosyvoice.voice.learning import learn_voice, spoken_text
from server.engines.cosyvoice.voice.onnx_models import VoiceModels
from server.engines.cosyvoice.voice.recording import Recording
from server.engines.cosyvoice.voice.speakers import read_speakers
from tests.support.cosyvoice import CODES, SPEAKER, tiny_folder
from tests.support.cosyvoice_features import signal

VERSIONS: list[ModelVersion] = [2, 3]
RECORDING = Recording(np.resize(signal(24_000), 24_000 * 3 + 700), 24_000)


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> ModelVersion:
    chosen: ModelVersion = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(version: ModelVersion, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"), version)


@pytest.fixture(scope="module")
def config(folder: Path) -> ModelConfig:
    return read_config(folder)


@pytest.fixture(scope="module")
def learnt(folder: Path, config: ModelConfig) -> VoiceData:
    return learn_voice(RECORDING, "他有3个 apples", VoiceModels(folder, config.version, CODES), config)


def test_a_voice_is_learnt_with_two_frames_for_each_code(learnt: VoiceData, config: ModelConfig) -> None:
    assert learnt.text == "他有三个apples."
    assert len(learnt.codes) == 75
    assert all(0 <= code < CODES for code in learnt.codes)
    assert np.array_equal(learnt.mel, flow_mel(RECORDING.samples, config.mel_top_hz)[:150])
    assert learnt.embedding.shape == (192,)


def test_what_is_learnt_depends_on_the_recording_alone(learnt: VoiceData, folder: Path, config: ModelConfig) -> None:
    models = VoiceModels(folder, config.version, CODES)
    again = learn_voice(RECORDING, "", models, config)
    assert again.text == ""
    assert again.codes == learnt.codes
    assert np.array_equal(again.embedding, learnt.embedding)
    other = learn_voice(Recording(RECORDING.samples[::-1].copy(), 24_000), "", models, config)
    assert not np.array_equal(other.embedding, learnt.embedding)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("……😀", "text says nothing: give what is said in the recording, or leave it out"),
        ("很" * 41, "text has 41 words, which nobody says in 3.0 s: give exactly what is said in the recording"),
        ("很" * 2001, "text has 2,001 characters; at most 2,000 are allowed"),
    ],
)
def test_a_text_that_cannot_be_of_the_recording_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as failure:
        spoken_text(text, 3.0, 2)
    assert str(failure.value) == message


@pytest.mark.parametrize("text", ["hello", "你"])
def test_a_text_that_is_far_too_short_for_the_recording_is_refused(text: str) -> None:
    """Who speaks as slowly as one can is still taken at their word."""
    assert spoken_text(text, 3.3, 2)
    assert spoken_text(" ".join([text] * 9), 30.0, 2)
    assert spoken_text("みなさんこんにちはおげんきですか", 7.0, 2)  # one word, by its blanks
    for given, seconds, words in ((text, 3.4, "1 word"), (" ".join([text] * 8), 30.0, "8 words")):
        with pytest.raises(ValueError) as failure:
            spoken_text(given, seconds, 2)
        assert str(failure.value) == (
            f"text has {words}, too few for {seconds} s of speech: give all that is said in the recording, or leave it"
            " out"
        )


def test_the_recordings_text_may_hold_marks() -> None:
    assert spoken_text("他[breath][h][ǎo]", 3.0, 3) == "他[breath][h][ǎo]。"
    assert spoken_text(" \n ", 3.0, 3) == ""


def test_a_voice_is_the_same_from_its_bytes(learnt: VoiceData, version: ModelVersion) -> None:
    for voice in (learnt, VoiceData("", (), np.zeros((0, 80), np.float32), learnt.embedding)):
        again = storing.from_bytes(storing.to_bytes(voice, version, "model"), version, "model")
        assert (again.text, again.codes) == (voice.text, voice.codes)
        assert np.array_equal(again.mel, voice.mel)
        assert np.array_equal(again.embedding, voice.embedding)


def test_a_voice_of_another_model_is_refused(learnt: VoiceData, monkeypatch: pytest.MonkeyPatch) -> None:
    data = storing.to_bytes(learnt, 2, "model")
    for other in ((3, "model"), (2, "another")):
        with pytest.raises(ValueError, match=r"learnt with another model \(CosyVoice 2\): learn it again"):
            storing.from_bytes(data, other[0], other[1])
    monkeypatch.setattr(storing, "FORMAT", storing.FORMAT + 1)
    with pytest.raises(ValueError, match="the voice is of format 1; this server reads format 2: learn it again"):
        storing.from_bytes(data, 2, "model")


def test_bytes_that_are_no_voice_are_refused(learnt: VoiceData) -> None:
    from safetensors.numpy import save

    data = storing.to_bytes(learnt, 2, "model")
    others = [b"", b"voice" * 9, data[:40], data[:-1], pickle.dumps({"text": "x"}), save({"codes": np.zeros(3)})]
    for other in others:
        with pytest.raises(ValueError) as failure:
            storing.from_bytes(other, 2, "model")
        assert str(failure.value) == "this is no voice of CosyVoice"


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"speech_tokenizer_v2\.onnx: is missing"):
        VoiceModels(tmp_path, 2, CODES)
    (tmp_path / "speech_tokenizer_v2.onnx").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"campplus\.onnx: is missing"):
        VoiceModels(tmp_path, 2, CODES)


def _constant(path: Path, value: Any, inputs: list[tuple[str, int, list[Any]]]) -> None:
    """A graph that always answers `value`."""
    array = np.asarray(value)
    kind = TensorProto.INT64 if array.dtype == np.int64 else TensorProto.FLOAT
    tensor = helper.make_tensor("value", kind, array.shape, array.ravel().tolist())
    node = helper.make_node("Constant", [], ["answer"], value=tensor)
    told = [helper.make_tensor_value_info(*each) for each in inputs]
    graph = helper.make_graph([node], "g", told, [helper.make_tensor_value_info("answer", kind, array.shape)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def test_models_that_answer_wrongly_are_named(tmp_path: Path) -> None:
    features: list[tuple[str, int, list[Any]]] = [("x", TensorProto.FLOAT, [1, 128, "t"])]
    codec = [*features, ("n", TensorProto.INT32, [1])]
    heard, bank = np.zeros((1, 128, 8), np.float32), np.zeros((9, 80), np.float32)
    _constant(tmp_path / "speech_tokenizer_v2.onnx", np.array([[3, CODES]]), codec)
    _constant(tmp_path / "campplus.onnx", np.zeros((1, 7), np.float32), [("x", TensorProto.FLOAT, [1, "t", 80])])
    models = VoiceModels(tmp_path, 2, CODES)
    with pytest.raises(ModelError, match=r"speech_tokenizer_v2\.onnx: must give codes from 0 to 255"):
        models.codes(heard)
    with pytest.raises(ModelError, match=r"campplus\.onnx: must give 192 numbers"):
        models.embedding(bank)
    _constant(tmp_path / "speech_tokenizer_v2.onnx", np.array([[3, CODES - 1]]), codec)
    assert models.codes(heard) == (3, CODES - 1)
    (tmp_path / "campplus.onnx").write_bytes(b"\x08\x07 and then nothing")
    with pytest.raises(ModelError, match=r"campplus\.onnx: cannot be used: ") as failure:
        models.embedding(bank)
    assert "\n" not in str(failure.value)


def test_another_speech_tokenizer_has_another_fingerprint(folder: Path, version: ModelVersion, tmp_path: Path) -> None:
    name = f"speech_tokenizer_v{version}.onnx"
    data = (folder / name).read_bytes()
    (tmp_path / "campplus.onnx").write_bytes(b"")
    (tmp_path / name).write_bytes(data)
    same = VoiceModels(tmp_path, version, CODES).fingerprint
    assert same == VoiceModels(folder, version, CODES).fingerprint
    (tmp_path / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert VoiceModels(tmp_path, version, CODES).fingerprint != same


def test_the_speakers_of_a_folder(folder: Path, version: ModelVersion, learnt: VoiceData, tmp_path: Path) -> None:
    tokenizer = TextTokenizer(folder / BODY_FOLDER, version)
    found = read_speakers(folder / "spk2info.pt", tokenizer, CODES)
    assert list(found) == [SPEAKER]
    assert (found[SPEAKER].text, found[SPEAKER].codes, found[SPEAKER].mel.shape) == ("", (), (0, 80))
    system = (*tokenizer.encode("You are a helpful assistant."), tokenizer.end_of_prompt) if version == 3 else ()
    kept = {
        "prompt_text": torch.tensor([[*system, *tokenizer.encode(learnt.text)]], dtype=torch.int32),
        "flow_prompt_speech_token": torch.tensor([learnt.codes], dtype=torch.int32),
        "prompt_speech_feat": torch.from_numpy(learnt.mel)[None],
        "flow_embedding": torch.from_numpy(learnt.embedding)[None],
    }
    torch.save({"mine": kept}, tmp_path / "spk2info.pt")
    mine = read_speakers(tmp_path / "spk2info.pt", tokenizer, CODES)["mine"]
    assert (mine.text, mine.codes) == (learnt.text, learnt.codes)
    assert np.array_equal(mine.mel, learnt.mel)
    assert np.array_equal(mine.embedding, learnt.embedding)
    assert read_speakers(tmp_path / "none.pt", tokenizer, CODES) == {}


class _Anything:
    """What a file must not bring along."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": _Anything()}, "cannot be read as speakers: "),
        ([1, 2], "must hold speakers by their names"),
        ({7: {}}, "must hold speakers by their names"),
        ({"a": {"embedding": torch.zeros(1, 7)}}, "'a' is no speaker: "),
        ({"a": {"embedding": torch.full((1, 192), torch.nan)}}, "'a' is no speaker: holds numbers that are none"),
        ({"a": {}}, "'a' is no speaker: "),
        ({"a": None}, "'a' is no speaker: "),
        (
            {"a": {"embedding": torch.zeros(192), "flow_prompt_speech_token": torch.tensor([CODES])}},
            "'a' is no speaker: has codes beyond 0 to 255",
        ),
    ],
)
def test_a_file_of_no_speakers_is_named(folder: Path, tmp_path: Path, content: Any, message: str) -> None:
    file = tmp_path / "spk2info.pt"
    torch.save(content, file)
    tokenizer = TextTokenizer(folder / BODY_FOLDER, 2)
    with pytest.raises(ModelError) as failure:
        read_speakers(file, tokenizer, CODES)
    assert str(failure.value).startswith(f"{file}: {message}")
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("data", [b"", b"no pickle", b"PK\x03\x04 and no more"])
def test_a_broken_file_of_speakers_is_named(folder: Path, tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "spk2info.pt"
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"spk2info\.pt: cannot be read as speakers: "):
        read_speakers(file, TextTokenizer(folder / BODY_FOLDER, 2), CODES)
