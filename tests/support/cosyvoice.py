"""A tiny CosyVoice model folder: every file that an official one has, of the same kinds, with weights by the rule.

Its voice is noise, but everything on the way to it is real: the checkpoints load strictly, the tokenizer splits and
merges, the graphs take what the official ones take and answer in the same shapes.
"""

import json
import shutil
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.reading import BODY_FOLDER
from server.engines.cosyvoice.synthetic import PARTS, body_sizes, read_manifest, state_by_rule

DATA: Final = Path(__file__).parents[1] / "data" / "cosyvoice"
SPEAKER: Final = "中文女"
CODES: Final = 256

_MERGES: Final = (
    "h e|t h|i n|e r|a n|o n|Ġ a|Ġ th|Ġth e|l l|o r|r e|Ġ h|Ġ w|Ġ s|ä ½|ä½ ł|å ¥|å¥ ½|ä ¸|ï ¼|ï¼ Į|ã Ģ|ãĢ Ĥ"
).split("|")
_QWEN_MARKS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_FIRST_MARK: Final = 151_643  # in the official vocabulary; version 3 knows <|endofprompt|> by its number, 151646


def tiny_folder(folder: Path, version: ModelVersion = 2, tag: str = "") -> Path:
    """Write the model into `folder` (made where it is missing) and return it; takes under a second."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = read_manifest(DATA / f"cosyvoice{version}_manifest.json")
    for part in PARTS:
        torch.save(state_by_rule(part, manifest[part], tag), folder / f"{part}.pt")
    shutil.copy(DATA / f"cosyvoice{version}_config.yaml", folder / f"cosyvoice{version}.yaml")
    _write_body(folder / BODY_FOLDER, version)
    onnx.save(_speaker_graph(), str(folder / "campplus.onnx"))
    onnx.save(_codes_graph(), str(folder / f"speech_tokenizer_v{version}.onnx"))
    embedding = np.random.default_rng(5).standard_normal((1, 192), dtype=np.float32)
    torch.save({SPEAKER: {"embedding": torch.from_numpy(embedding)}}, folder / "spk2info.pt")
    return folder


def _write_body(folder: Path, version: ModelVersion) -> None:
    """Sizes and tokenizer of the language model."""
    folder.mkdir(exist_ok=True)
    sizes = body_sizes(read_manifest(DATA / f"cosyvoice{version}_manifest.json"))
    config = {
        "model_type": "qwen2",
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "intermediate_size": sizes.ffn,
        "vocab_size": sizes.vocab,
        "rope_theta": sizes.rope_theta,
        "rms_norm_eps": sizes.norm_eps,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    symbols = [*_byte_symbols(), *("".join(merge.split(" ")) for merge in _MERGES)]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    first = _FIRST_MARK if version == 3 else len(vocabulary)
    marks = {mark: first + number for number, mark in enumerate(_QWEN_MARKS)}
    # In version 3 the words are few but the marks have their official numbers: the vocabulary has a hole.
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, **marks}, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(_MERGES) + "\n", encoding="utf-8")
    shared = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokenizer = {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(number): {"content": mark, **shared} for mark, number in marks.items()},
        "additional_special_tokens": list(_QWEN_MARKS[1:]),
        "eos_token": _QWEN_MARKS[0],
        "pad_token": _QWEN_MARKS[0],
        "tokenizer_class": "Qwen2Tokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2), encoding="utf-8")


def _byte_symbols() -> list[str]:
    """The 256 characters that stand for bytes in a byte-level vocabulary, in the order of its numbers."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + number) for number in range(len(others))]


def _speaker_graph() -> onnx.ModelProto:
    """`[1, frames, 80]` filter banks to a `[1, 192]` embedding."""
    weight = np.random.default_rng(3).standard_normal((80, 192)).astype(np.float32) / 9
    return _model(
        [
            helper.make_node("ReduceMean", ["input"], ["mean"], axes=[1], keepdims=0),
            helper.make_node("MatMul", ["mean", "weight"], ["output"]),
        ],
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", "frames", 80])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 192])],
        {"weight": weight},
    )


def _codes_graph() -> onnx.ModelProto:
    """`[1, 128, frames]` log-mel (100 frames a second) and its length to `[1, frames / 4]` codes, rounded up."""
    weight = np.random.default_rng(4).standard_normal((1, 128, 4)).astype(np.float32)
    return _model(
        [
            # Frames beyond the length count as silence, as they do in the official graph.
            helper.make_node("Shape", ["feats"], ["shape"]),
            helper.make_node("Gather", ["shape", "two"], ["frames"]),
            helper.make_node("Range", ["zero", "frames", "one"], ["at"]),
            helper.make_node("Cast", ["feats_length"], ["length"], to=TensorProto.INT64),
            helper.make_node("Less", ["at", "length"], ["inside"]),
            helper.make_node("Cast", ["inside"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["feats", "mask"], ["heard"]),
            helper.make_node("Conv", ["heard", "weight"], ["folded"], strides=[4], auto_pad="SAME_UPPER"),
            helper.make_node("Abs", ["folded"], ["size"]),
            helper.make_node("Mul", ["size", "scale"], ["scaled"]),
            helper.make_node("Cast", ["scaled"], ["whole"], to=TensorProto.INT64),
            helper.make_node("Mod", ["whole", "codes"], ["bounded"]),
            helper.make_node("Squeeze", ["bounded", "axis"], ["indices"]),
        ],
        [
            helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, 128, "frames"]),
            helper.make_tensor_value_info("feats_length", TensorProto.INT32, [1]),
        ],
        [helper.make_tensor_value_info("indices", TensorProto.INT64, [1, "codes"])],
        {
            "weight": weight,
            "two": np.array(2, dtype=np.int64),
            "zero": np.array(0, dtype=np.int64),
            "one": np.array(1, dtype=np.int64),
            "scale": np.array(10, dtype=np.float32),
            "codes": np.array(CODES, dtype=np.int64),
            "axis": np.array([1], dtype=np.int64),
        },
    )


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray],
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return model
