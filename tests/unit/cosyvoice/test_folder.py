"""Model folders: what is missing or mixed up is said in one line; what is whole loads, full-size ones by their keys."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from server.engines.cosyvoice import synthetic
from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.folder import (
    ModelFolder,
    canonical,
    load_model,
    modules_of,
    needed_files,
    not_needed,
)
from server.engines.cosyvoice.reading import BODY_FOLDER, BodySizes, parse_config, read_body, read_config
from server.engines.cosyvoice.sections import ModelError
from server.engines.cosyvoice.weights import check_shapes
from tests.support.cosyvoice import DATA, tiny_folder

VERSIONS: tuple[ModelVersion, ...] = (2, 3)
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
"""A few lines that would be 9^29 words when written out."""
REFERENCES = "".join(f"r{n}: !ref {' * '.join([f'<r{n + 1}>'] * 4)}\n" for n in range(12)) + "r12: 2\n"
SIZES = BodySizes(hidden=64, layers=2, heads=4, kv_heads=2, ffn=128, vocab=512, rope_theta=10_000.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[ModelVersion, Path]:
    """One whole model of each version; tests copy what they spoil."""
    return {version: tiny_folder(tmp_path_factory.mktemp(f"v{version}"), version) for version in VERSIONS}


@pytest.fixture
def spoilt(folders: dict[ModelVersion, Path], tmp_path: Path) -> Callable[[ModelVersion], Path]:
    """A copy to change."""

    def copy(version: ModelVersion) -> Path:
        shutil.copytree(folders[version], tmp_path / "model", copy_function=shutil.copy)
        return tmp_path / "model"

    return copy


@pytest.mark.parametrize("version", VERSIONS)
def test_a_whole_folder_loads_and_has_the_sizes_its_files_tell(
    folders: dict[ModelVersion, Path], version: ModelVersion
) -> None:
    folder = ModelFolder.open(folders[version])
    assert folder.config == synthetic.tiny(version)
    assert folder.speakers == folders[version] / "spk2info.pt"
    model = load_model(folder)
    state = synthetic.state_by_rule("llm", synthetic.read_manifest(DATA / f"cosyvoice{version}_manifest.json")["llm"])
    for key, value in model.lm.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert model.vocoder.network.causal == (version == 3)


@pytest.mark.parametrize("version", VERSIONS)
def test_half_precision_is_for_the_language_model_and_the_flow(
    folders: dict[ModelVersion, Path], version: ModelVersion
) -> None:
    model = load_model(ModelFolder.open(folders[version]), dtype=torch.bfloat16)
    kinds = [{p.dtype for p in each.parameters()} for each in (model.lm, model.flow, model.vocoder.network)]
    assert kinds == [{torch.bfloat16}, {torch.bfloat16}, {torch.float32}]


@pytest.mark.parametrize("version", VERSIONS)
def test_full_size_checkpoints_fit_key_by_key(version: ModelVersion) -> None:
    manifest = synthetic.read_manifest(DATA / f"cosyvoice{version}_full_manifest.json")
    with torch.device("meta"):
        modules = dict(zip(synthetic.PARTS, modules_of(synthetic.full(version)), strict=True))
        for part, module in modules.items():
            state = {key: torch.empty(entry.shape) for key, entry in manifest[part].items()}
            named = canonical(part, state, f"{part}.pt")
            shapes = {key: value.shape for key, value in named.items()}
            check_shapes(module, shapes, f"{part}.pt", not_needed)
            with pytest.raises(ModelError, match="1 missing"):
                check_shapes(module, dict(list(shapes.items())[1:]), part, not_needed)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_file_is_named(spoilt: Callable[[ModelVersion], Path], version: ModelVersion) -> None:
    path = spoilt(version)
    for name in needed_files(version)[1:]:
        (path / name).rename(path / "away")
        with pytest.raises(ModelError, match=rf"^[^\n]*: lacks {name}[^\n]*version {version} needs$"):
            ModelFolder.open(path)
        (path / "away").rename(path / name)
    (path / "flow.pt").unlink()
    (path / "hift.pt").unlink()
    with pytest.raises(ModelError, match=r"lacks flow\.pt, hift\.pt,"):
        ModelFolder.open(path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("spoil", ["empty", "half", "less a byte", "and a byte", "zeros within", "html", "no graph"])
def test_an_onnx_file_that_is_not_whole_is_named_at_once(
    spoilt: Callable[[ModelVersion], Path], version: ModelVersion, spoil: str
) -> None:
    path = spoilt(version)
    for name in ("campplus.onnx", f"speech_tokenizer_v{version}.onnx"):
        whole = (path / name).read_bytes()
        zeroed = whole[:20] + bytes(len(whole) // 2) + whole[20 + len(whole) // 2 :]
        content = {
            "empty": b"",
            "half": whole[: len(whole) // 2],
            "less a byte": whole[:-1],
            "and a byte": whole + b"\0",
            "zeros within": zeroed,
            "html": b"<!DOCTYPE html><html>404</html>",
            "no graph": b"\x08\x08",
        }[spoil]
        (path / name).write_bytes(content)
        with pytest.raises(ModelError, match=rf"^\S*/{name}: is no ONNX model, or truncated; [^\n]*$"):
            ModelFolder.open(path)
        (path / name).write_bytes(whole)
    ModelFolder.open(path)


def test_one_tokenizer_file_replaces_the_two(spoilt: Callable[[ModelVersion], Path]) -> None:
    path = spoilt(2)
    for name in ("vocab.json", "merges.txt"):
        (path / BODY_FOLDER / name).unlink()
    (path / BODY_FOLDER / "tokenizer.json").write_text("{}")
    assert ModelFolder.open(path).version == 2


def test_what_is_no_model_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is missing; a model folder is wanted"):
        ModelFolder.open(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="is no folder"):
        ModelFolder.open(tmp_path / "file")
    with pytest.raises(ModelError, match=r"exactly one of cosyvoice2\.yaml and cosyvoice3\.yaml, has neither"):
        ModelFolder.open(tmp_path)
    (tmp_path / "cosyvoice.yaml").touch()
    with pytest.raises(ModelError, match="a model of version 1"):
        ModelFolder.open(tmp_path)
    (tmp_path / "cosyvoice2.yaml").touch()
    (tmp_path / "cosyvoice3.yaml").touch()
    with pytest.raises(ModelError, match="has both"):
        ModelFolder.open(tmp_path)


def test_files_of_two_versions_are_told_apart(
    spoilt: Callable[[ModelVersion], Path], folders: dict[ModelVersion, Path]
) -> None:
    path = spoilt(2)
    for part in synthetic.PARTS:
        whole = (path / f"{part}.pt").read_bytes()
        shutil.copy(folders[3] / f"{part}.pt", path / f"{part}.pt")
        with pytest.raises(ModelError, match=rf"{part}\.pt: holds weights of CosyVoice 3, but cosyvoice2\.yaml"):
            load_model(ModelFolder.open(path))
        (path / f"{part}.pt").write_bytes(whole)
    (path / "speech_tokenizer_v2.onnx").rename(path / "speech_tokenizer_v3.onnx")
    with pytest.raises(ModelError, match=r"lacks speech_tokenizer_v2\.onnx \(has speech_tokenizer_v3\.onnx"):
        ModelFolder.open(path)


def test_a_checkpoint_of_other_sizes_is_refused(spoilt: Callable[[ModelVersion], Path]) -> None:
    path = spoilt(2)
    state = torch.load(path / "flow.pt", weights_only=True)
    state["encoder_proj.bias"] = torch.zeros(81)
    del state["encoder_proj.weight"]
    torch.save(state, path / "flow.pt")
    with pytest.raises(
        ModelError, match=r"flow\.pt: does not fit [^\n]*1 missing \(encoder_proj\.weight\); 1 of another"
    ):
        load_model(ModelFolder.open(path))


def test_a_vocoder_kept_with_its_discriminator_loads(spoilt: Callable[[ModelVersion], Path]) -> None:
    path = spoilt(3)
    state = torch.load(path / "hift.pt", weights_only=True)
    torch.save({f"generator.{key}": value for key, value in state.items()}, path / "hift.pt")
    load_model(ModelFolder.open(path))


def _read(text: str, version: ModelVersion = 2) -> None:
    parse_config(text, "x.yaml", version, SIZES)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("num_blocks: 2", "num_blocks: two", r"flow\.encoder\.num_blocks: must be a whole number .* is 'two'"),
        ("num_blocks: 2", "num_blocks: 0", r"flow\.encoder\.num_blocks: must be a whole number from 1"),
        ("            num_heads: 2\n", "", r"flow\.decoder\.estimator\.num_heads: is missing"),
        ("channels: [32]", "channels: 32", r"estimator\.channels: must be a list of whole numbers, is 32"),
        ("upsample_kernel_sizes: [16, 11, 7]", "upsample_kernel_sizes: [16]", "must be a list of 3 whole numbers"),
        ("upsample_rates: [8, 5, 3]", "upsample_rates: [8, 5]", r"hift\.upsample_rates: .* must be 480 samples"),
        ("vocab_size: 256", "vocab_size: 99", r"speech_token_size 256 and flow\.vocab_size 99 must be equal"),
        ("solver: 'euler'", "solver: 'heun'", r"content\.solver: must be 'euler', is 'heun'"),
        ("llm_input_size: 64", "llm_input_size: 65", "must be the body's hidden size, 64, is 65"),
        ("lrelu_slope: 0.1", "lrelu_slope: .nan", r"hift\.lrelu_slope: must be a number"),
        ("llm.Qwen2LM", "llm.CosyVoice3LM", r"llm: must be !new:\.\.\.Qwen2LM, is '!new:cosyvoice\.llm\.llm\.Cosy"),
        ("flow: !new", "flow: [1]\nother: !new", r"flow: must be a section, is \[1\]"),
        ("mix_ratio: [5, 15]", "mix_ratio: [5]", r"llm\.mix_ratio: must be a list of 2 whole numbers"),
        ("vocab_size: 256", "vocab_size: !ref <nothing>", "refers to '<nothing>', which is nothing in this file"),
        ("sample_rate: 24000", "sample_rate: !ref <sample_rate>", "sample_rate: refers to itself"),
        ("sample_rate: 24000", "sample_rate: !ref <hift> * 2", "no product of whole numbers"),
        ("sample_rate: 24000", "sample_rate: [", "x.yaml: is not YAML"),
        ("static_chunk_size: 50", "static_chunk_size: 51", "must be a multiple of 2, is 51"),
        ("sample_rate: 24000", "sample_rate: !!python/object/apply:os.system ['x']", r"sample_rate: .* is \['x'\]"),
        ("sample_rate: 24000", f"{LAUGHS}sample_rate: *a29", r"sample_rate: must be a whole number .* is \[\[\["),
        ("channels: [32]", f"channels: {'9' * 4_000}", "estimator.channels: must be a list .* than 60 digits"),
        ("channels: [32]", f"channels: [{'1, ' * 40}1]", "a list of at most 32 numbers, has 41"),
        ("num_blocks: 2", "num_blocks: 1000000", r"flow\.encoder\.num_blocks: must be a whole number from 1 to 1,000,"),
        ("lrelu_slope: 0.1", f"lrelu_slope: {'9' * 4_000}", r"hift\.lrelu_slope: must be a number of at least 0"),
        ("sample_rate: 24000", "sample_rate: -24000", "sample_rate: must be a whole number from 1"),
        ("sample_rate: 24000", f"sample_rate: !ref {'9' * 5_000}", "refers to '999"),
        ("sample_rate: 24000", "sample_rate: !ref --5", "refers to '--5', which is nothing"),
        ("sample_rate: 24000", f"{REFERENCES}sample_rate: !ref <r0>", "over more than 5 others"),
        ("sample_rate: 24000", f"a: 2\nsample_rate: !ref <a>{' * <a>' * 40}", "has more than 4 factors"),
        ("sample_rate: 24000", f"{LAUGHS}? *a29\n: 3\nsample_rate: 24000", "x.yaml: is not YAML: a name must be"),
        ("sample_rate: 24000", f"{LAUGHS}'!': *a29\nsample_rate: 24000", "x.yaml: is not YAML: a name must be"),
        ("sample_rate: 24000", f"a: {'[' * 999}{']' * 999}", "x.yaml: is not YAML: maximum recursion"),
        ("sample_rate: 24000", f"a: [{'1,' * 60_000}1]", "x.yaml: has more than 100,000 characters"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(old: str, new: str, told: str) -> None:
    text = (DATA / "cosyvoice2_config.yaml").read_text()
    assert old in text
    with pytest.raises(ModelError, match=rf"^x\.yaml: [^\n]*{told.removeprefix('x.yaml: ')}[^\n]*$"):
        _read(text.replace(old, new, 1))


@pytest.mark.parametrize("text", ["", "[1, 2]", "\x00", "a: &x [*x]", "&a {b: *a}"])
def test_yaml_that_is_no_model_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match=r"^x\.yaml: "):
        _read(text)


def test_references_and_products_are_followed_and_nothing_is_executed(tmp_path: Path) -> None:
    text = (DATA / "cosyvoice2_config.yaml").read_text()
    text = text.replace("static_chunk_size: 50", "static_chunk_size: !ref <chunk> * <ratio>")
    text = text.replace("token_mel_ratio: 2", "token_mel_ratio: !ref <ratio>")
    harm = "chunk: 25\nratio: 2\nmore: !!python/object/apply:os.getcwd []\n"
    harm += f"harm: !apply:os.mkdir ['{tmp_path / 'harm'}']\n"
    assert parse_config(harm + text, "x.yaml", 2, SIZES) == synthetic.tiny(2)
    assert not (tmp_path / "harm").exists()


def test_sampling_is_read_where_it_is_told() -> None:
    text = (DATA / "cosyvoice2_config.yaml").read_text()
    told = (
        "sampling: !name:x.ras_sampling\n        top_p: 0.7\n        top_k: 20\n        win_size: 8\n        tau_r: 0.2"
    )
    config = parse_config(text.replace("sampling: !name:greedy", told), "x.yaml", 2, SIZES)
    assert (config.sampling.top_p, config.sampling.top_k) == (0.7, 20)
    assert (config.sampling.window, config.sampling.repeat_share) == (8, 0.2)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": None}, "hidden_size: is missing"),
        ({"num_attention_heads": 5}, "do not fit together"),
        ({"num_key_value_heads": 3}, "do not fit together"),
        ({"model_type": "llama"}, "model_type: must be qwen2, is 'llama'"),
        ({"rope_theta": "x"}, "rope_theta: must be a number"),
    ],
)
def test_a_wrong_body_is_named(folders: dict[ModelVersion, Path], tmp_path: Path, change: object, told: str) -> None:
    body = json.loads((folders[2] / BODY_FOLDER / "config.json").read_text())
    assert isinstance(change, dict)
    (tmp_path / "config.json").write_text(json.dumps({**body, **change}))
    with pytest.raises(ModelError, match=told):
        read_body(tmp_path / "config.json")


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"[" * 600, b" " * 1_000_001])
def test_a_body_that_is_no_json_object_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"^[^\n]*config\.json: [^\n]*$"):
        read_body(tmp_path / "config.json")
    (tmp_path / "cosyvoice2.yaml").write_bytes(content)
    with pytest.raises(ModelError, match=r"^[^\n]*cosyvoice2\.yaml: [^\n]*$"):
        read_config(tmp_path, SIZES)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hidden_size": -64}, r"hidden_size: must be a whole number from 1 to 1,000,000, is -64"),
        ({"hidden_size": None}, "hidden_size: is missing"),
        ({"hidden_size": "64"}, "hidden_size: must be a whole number"),
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers: must be a whole number from 1 to 1,000, is 1000000"),
        ({"vocab_size": [512]}, r"vocab_size: must be a whole number .* is \[512\]"),
        ({"rope_theta": 10**400}, "rope_theta: must be a number of at least 0, is a number of more than 60 digits"),
        ({"rope_theta": float("nan")}, "rope_theta: must be a number of at least 0, is nan"),
        ({"rms_norm_eps": {}}, r"rms_norm_eps: must be a number of at least 0, is \{\}"),
        ('{"hidden_size": ' + "9" * 5_000 + "}", "is not JSON"),
        ("[" * 50_000, "is not JSON"),
        ("", "is not JSON"),
        ("[]", "must be a JSON object"),
        (" " * 1_000_001, "has more than 1,000,000 bytes"),
    ],
)
def test_sizes_in_json_that_are_wrong_are_named(
    folders: dict[ModelVersion, Path], tmp_path: Path, changed: dict[str, object] | str, told: str
) -> None:
    good = json.loads((folders[2] / BODY_FOLDER / "config.json").read_text())
    file = tmp_path / "config.json"
    file.write_text(changed if isinstance(changed, str) else json.dumps({**good, **changed}))
    with pytest.raises(ModelError, match=rf"^\S*config\.json: {told}[^\n]*$"):
        read_body(file)


def test_sizes_that_no_memory_can_hold_are_refused_before_a_checkpoint_is_read(
    spoilt: Callable[[ModelVersion], Path],
) -> None:
    path = spoilt(3)
    file = path / BODY_FOLDER / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "intermediate_size": 1_000_000, "vocab_size": 10**6}))
    text = (path / "cosyvoice3.yaml").read_text()
    large = text.replace("dim: 64", "dim: 1000000").replace("ff_mult: 1", "ff_mult: 1000000")
    assert large != text
    (path / "cosyvoice3.yaml").write_text(large)
    with pytest.raises(ModelError, match=r"^\S*cosyvoice3\.yaml: no model of such sizes can be made here: [^\n]*$"):
        load_model(ModelFolder.open(path))
