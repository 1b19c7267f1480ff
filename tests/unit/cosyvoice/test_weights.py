"""Checkpoints: nothing in them is executed, weight norms are folded, every key counts."""

import json
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from server.engines.cosyvoice import synthetic
from server.engines.cosyvoice.sections import ModelError
from server.engines.cosyvoice.weights import fold_weight_norm, load_checked, load_state, uninitialised
from tests.support.cosyvoice import DATA


def _two() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harm"),))


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    state = {"a": torch.randn(3), "b.c": torch.randn(2, 2)}
    torch.save({**state, "epoch": 3, "step": 1000}, tmp_path / "llm.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("llm.pt", "old.pt"):
        found = load_state(tmp_path / name)
        assert {key: value.tolist() for key, value in found.items()} == {k: v.tolist() for k, v in state.items()}


def test_objects_in_a_checkpoint_are_refused_and_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.zeros(1), "b": _Harmful()}, "llm.pt")
    Path("flow.pt").write_bytes(pickle.dumps({"b": _Harmful()}))
    for name in ("llm.pt", "flow.pt"):
        with pytest.raises(ModelError, match=rf"^{name}: [^\n]*$"):
            load_state(Path(name))
    assert not Path("harm").exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_in_one_line(tmp_path: Path, share: float, zipped: bool) -> None:
    file = tmp_path / "flow.pt"
    torch.save({f"w{i}": torch.randn(64, 8) for i in range(9)}, file, _use_new_zipfile_serialization=zipped)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"^[^\n]*flow\.pt: is no checkpoint of torch[^\n]*$"):
        load_state(file)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x80\x04N.", "is no checkpoint|must be a dictionary"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "is no checkpoint"),
        (b"<!DOCTYPE html><html>404</html>", "is no checkpoint"),
        (b"PK\x03\x04 no archive", "is no checkpoint"),
        (bytes(range(256)), "is no checkpoint"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "hift.pt").write_bytes(content)
    with pytest.raises(ModelError, match=told):
        load_state(tmp_path / "hift.pt")


def _state() -> dict[str, Tensor]:
    return {f"w{number}": torch.full((64,), float(number + 1)) for number in range(3)}


def test_one_changed_bit_is_noticed_and_its_record_named(tmp_path: Path) -> None:
    file = tmp_path / "llm.pt"
    torch.save(_state(), file)
    whole = file.read_bytes()
    for number, value in enumerate(_state().values()):
        at = whole.index(value.numpy().tobytes()) + 101
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(ModelError, match=rf"^\S*llm\.pt: is damaged: its record data/{number} is [^\n]*$"):
            load_state(file)


def test_a_checkpoint_that_was_saved_without_sums_loads(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(_state(), tmp_path / "llm.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    with zipfile.ZipFile(tmp_path / "llm.pt") as archive:
        assert not any(each.CRC for each in archive.infolist())
    assert load_state(tmp_path / "llm.pt")["w2"].tolist() == [3.0] * 64


def test_a_checkpoint_that_was_compressed_again_is_refused(tmp_path: Path) -> None:
    torch.save(_state(), tmp_path / "was.pt")
    with (
        zipfile.ZipFile(tmp_path / "was.pt") as old,
        zipfile.ZipFile(tmp_path / "llm.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ModelError, match=r"^\S*llm\.pt: [^\n]*$"):
        load_state(tmp_path / "llm.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.eye(4).to_sparse_csr(), "sparse"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantised"),
        (lambda: torch.zeros(3, device="meta"), "on meta"),
    ],
)
def test_a_tensor_that_is_not_plain_is_named(tmp_path: Path, make: Callable[[], Tensor], told: str) -> None:
    torch.save({"a": torch.zeros(1), "b.weight": make()}, tmp_path / "flow.pt")
    with pytest.raises(ModelError, match=rf"^\S*flow\.pt: b\.weight: must be a plain tensor, is {told}[^\n]*$"):
        load_state(tmp_path / "flow.pt")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([torch.zeros(1)], "is a list"),
        ({}, "an empty one"),
        ({"model": {"a": torch.zeros(1)}}, "has 'model'"),
        ({3: torch.zeros(1)}, "must be a dictionary of tensors by name"),
        (torch.zeros(3), "is a Tensor"),
    ],
)
def test_another_structure_is_named(tmp_path: Path, found: object, told: str) -> None:
    torch.save(found, tmp_path / "llm.pt")
    with pytest.raises(ModelError, match=told):
        load_state(tmp_path / "llm.pt")


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"llm\.pt: is missing"):
        load_state(tmp_path / "llm.pt")
    with pytest.raises(ModelError, match="cannot be read"):
        load_state(tmp_path)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_folded_weights_compute_what_the_normed_ones_do(kind: type[nn.Conv1d]) -> None:
    torch.manual_seed(1)
    newer = torch.nn.utils.parametrizations.weight_norm(kind(4, 6, 3))
    with torch.no_grad():
        for parameter in newer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    state = newer.state_dict()
    older = {
        "bias": state["bias"],
        "weight_g": state["parametrizations.weight.original0"],
        "weight_v": state["parametrizations.weight.original1"],
    }
    x = torch.randn(1, 4, 9)
    for each in (state, older):
        plain = kind(4, 6, 3)
        folded = fold_weight_norm({f"c.{key}": value for key, value in each.items()})
        load_checked(nn.ModuleDict({"c": plain}), folded, "hift.pt")
        torch.testing.assert_close(plain(x), newer(x), atol=1e-6, rtol=0)


def test_half_of_a_weight_norm_is_refused() -> None:
    with pytest.raises(ModelError, match=r"hift\.pt: has a\.weight_g without a\.weight_v"):
        fold_weight_norm({"a.weight_g": torch.ones(2, 1, 1)}, "hift.pt")
    with pytest.raises(ModelError, match=r"does not fit \[3, 2, 5\]"):
        fold_weight_norm({"a.weight_g": torch.ones(2, 1, 1), "a.weight_v": torch.ones(3, 2, 5)}, "hift.pt")


def test_loaded_weights_are_copies_of_the_wanted_type() -> None:
    state = _two().state_dict()
    with uninitialised():
        module = _two()
    load_checked(module, state, "llm.pt", dtype=torch.bfloat16)
    loaded = module.state_dict()
    assert all(torch.equal(value.to(torch.bfloat16), loaded[key]) for key, value in state.items())
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert not module.training
    same = _two()
    load_checked(same, state, "llm.pt")
    state["0.weight"].zero_()
    assert same.state_dict()["0.weight"].abs().sum() > 0


def test_missing_unknown_and_misshapen_keys_are_counted_and_the_first_named() -> None:
    state: dict[str, Tensor] = {
        "0.weight": torch.zeros(9, 9),
        "1.bias": torch.zeros(1),
        "1.weight": torch.zeros(1, 2),
        **{f"extra{number}": torch.zeros(1) for number in range(5)},
    }
    with pytest.raises(ModelError) as told:
        load_checked(_two(), state, "llm.pt")
    assert str(told.value) == (
        "llm.pt: does not fit the model of 4 tensors: 1 missing (0.bias); 5 unknown (extra0, extra1, extra2, ...);"
        " 1 of another shape (0.weight [9, 9] for [2, 3])"
    )


def test_what_may_be_ignored_is_no_unknown_key() -> None:
    state = {**_two().state_dict(), "head": torch.zeros(1)}
    load_checked(_two(), state, "llm.pt", lambda key: key == "head")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    state = _two().state_dict()
    state["1.weight"][0, 1] = value
    with pytest.raises(ModelError, match=r"llm\.pt: 1\.weight: holds numbers that are not finite"):
        load_checked(_two(), state, "llm.pt")


def test_the_rule_makes_every_kind_of_weight_of_its_name() -> None:
    def normal(name: str, *shape: int) -> np.ndarray:
        generator = np.random.default_rng(zlib.crc32(name.encode()))
        return generator.standard_normal(shape, dtype=np.float32)

    expected = {
        "x.original0": 1 + 0.1 * np.abs(normal("T/flow.x.original0", 4, 1)),
        "a.pos_bias_u": 0.05 * normal("T/flow.a.pos_bias_u", 2, 3),
        "embed.weight": 0.5 * normal("T/flow.embed.weight", 100, 2),
        "less.embed.weight": normal("T/flow.less.embed.weight", 99, 2) / np.sqrt(2),
        "conv.weight": normal("T/flow.conv.weight", 5, 3, 7) / np.sqrt(21),
        "bias": 0.05 * normal("T/flow.bias", 3),
        "norm.weight": 1 + 0.1 * normal("T/flow.norm.weight", 3),
        "r.inv_freq": 1 / 10_000 ** (np.arange(4) / 4),
        "scale": 0.1 * normal("T/flow.scale", 3),
    }
    entries = {key: synthetic.Entry(value.shape) for key, value in expected.items()}
    made = synthetic.state_by_rule("flow", entries, "T/")
    for key, value in expected.items():
        np.testing.assert_allclose(made[key].numpy(), value, rtol=1e-6)


@pytest.mark.parametrize("version", [2, 3])
def test_the_text_head_is_the_text_embedding(version: int) -> None:
    manifest = synthetic.read_manifest(DATA / f"cosyvoice{version}_manifest.json")
    state = synthetic.state_by_rule("llm", manifest["llm"])
    assert state["llm.model.lm_head.weight"] is state["llm.model.model.embed_tokens.weight"]
    assert set(state) == set(manifest["llm"])


@pytest.mark.parametrize("content", ["", "[]", '{"llm": {}}', '{"llm": {"a": 3}, "flow": {}, "hift": {}}'])
def test_a_manifest_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x_manifest.json"
    file.write_text(content)
    with pytest.raises(ModelError, match=r"x_manifest\.json: must be"):
        synthetic.read_manifest(file)


@pytest.mark.parametrize("heads", [(64, 32, 4, 2), (64, 64, 4, 4), (64, 16, 4, 1), (56, 8, 14, 2)])
def test_heads_follow_from_how_many_queries_share_a_key(heads: tuple[int, int, int, int]) -> None:
    queries, keys, expected, expected_kv = heads
    entries = {
        "llm.model.model.embed_tokens.weight": synthetic.Entry((512, queries)),
        "llm.model.model.layers.0.self_attn.q_proj.weight": synthetic.Entry((queries, queries)),
        "llm.model.model.layers.0.self_attn.k_proj.weight": synthetic.Entry((keys, queries)),
        "llm.model.model.layers.0.mlp.gate_proj.weight": synthetic.Entry((3, queries)),
    }
    sizes = synthetic.body_sizes({"llm": entries})
    assert (sizes.heads, sizes.kv_heads, sizes.layers, sizes.ffn) == (expected, expected_kv, 1, 3)


def test_a_manifest_without_a_body_is_named() -> None:
    with pytest.raises(ModelError, match="no Qwen2 body"):
        synthetic.body_sizes({"llm": {}})


def test_manifests_in_the_tests_are_json_of_shapes() -> None:
    for file in DATA.glob("*_manifest.json"):
        raw = json.loads(file.read_text())
        read = synthetic.read_manifest(file)
        assert {part: len(raw[part]) for part in raw} == {part: len(read[part]) for part in read}
