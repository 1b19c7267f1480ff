"""`python -m server parity`: the engine computes what the original code did, also on sets of other sizes; a miss fails.

`data/cosyvoice` has the reference vectors; `data/cosyvoice_other` was made with the same code for these tests: other
sizes of everything, a prompt that ends within a block, more heads, another tag, entries that are missing or unknown.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from server.__main__ import main
from server.engines.cosyvoice.parity.driver import chunks_of
from tests.support.cosyvoice import DATA

OTHER = DATA.parent / "cosyvoice_other"
FLOW_AND_MORE = ("flow_mel", "hift_chunk", "hift_source", "hift_wav", "e2e", "llm_bistream")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["parity", *arguments])
    return status, capsys.readouterr().out


def _entries(output: str) -> set[str]:
    return set(re.findall(r"^  (\w+) .* ok$", output, re.MULTILINE))


def test_every_entry_of_the_reference_vectors_is_within_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    status, output = _run(capsys, str(DATA))
    assert status == 0, output
    assert "not compared" not in output
    inputs = {"text", "prompt_text", "prompt_speech", "flow_token", "hift_mel"}
    inputs |= {"flow_prompt_token", "flow_prompt_feat", "flow_embedding"}
    for version in (2, 3):
        with np.load(DATA / f"cosyvoice{version}_golden.npz") as golden:
            assert set(golden.files) - inputs <= _entries(output)
    assert output.count("last chunk") > output.count("before the last chunk") > 0
    assert re.search(r"flow_mel_n78_stream1_final0 +in hops", output)


def test_sets_of_other_sizes_and_another_tag_pass_and_what_is_unknown_is_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, output = _run(capsys, str(OTHER), "--tag", "other/")
    assert status == 0, output
    assert "not compared: made_later (unknown)" in output
    assert "8 heads, rotary base 10000" in output
    assert {"llm_logp", "flow_mel_n20_stream1_final0", "flow_mel_n36_stream1_final1", "e2e_stream"} <= _entries(output)


@pytest.fixture
def tiny_set(tmp_path: Path) -> Callable[..., Path]:
    """A copy of version 3's other set with some entries changed (None: taken away), and without the slow ones."""

    def make(**changed: object) -> Path:
        for file in OTHER.glob("three_*"):
            shutil.copy(file, tmp_path)
        with np.load(OTHER / "three_golden.npz") as found:
            golden = {key: found[key] for key in found.files if not key.startswith(FLOW_AND_MORE)}
        golden.update({key: np.asarray(value) for key, value in changed.items() if value is not None})
        for key in [key for key, value in changed.items() if value is None]:
            golden.pop(key, None)
        np.savez(tmp_path / "three_golden.npz", **golden)
        return tmp_path

    return make


def _golden(name: str) -> np.ndarray:
    with np.load(OTHER / "three_golden.npz") as found:
        return np.array(found[name])


def test_the_wrong_tag_fails(tiny_set: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_set(llm_logp=None)
    assert _run(capsys, str(folder), "--tag", "other/")[0] == 0
    status, output = _run(capsys, str(folder))
    assert status == 1
    assert re.search(r"llm_tokens .* FAILED  \(first at \d+ of 12\)", output)
    assert re.search(r"hift_f0 .* FAILED", output)


@pytest.mark.parametrize(
    ("name", "offset"), [("llm_logp", 2e-4), ("rand_noise_head", 1e-5), ("hift_f0", 2e-3), ("llm_tokens", 1)]
)
def test_one_number_beyond_the_bound_fails(
    tiny_set: Callable[..., Path], capsys: pytest.CaptureFixture[str], name: str, offset: float
) -> None:
    changed = _golden(name)
    changed.reshape(-1)[-1] += np.asarray(offset, dtype=changed.dtype)
    status, output = _run(capsys, str(tiny_set(**{name: changed})), "--tag", "other/")
    assert status == 1
    assert re.search(rf"{name} .* FAILED", output)
    assert output.count(" FAILED") == 2  # the entry, and the sum below
    assert re.search(r"^  \d+ comparisons of \d+ entries: 1 FAILED$", output, re.MULTILINE)


def test_what_is_no_number_and_what_has_another_shape_fails(
    tiny_set: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lost = _golden("hift_f0")
    lost[0, 3] = np.nan
    folder = tiny_set(hift_f0=lost, llm_logp=_golden("llm_logp")[:, :-1])
    status, output = _run(capsys, str(folder), "--tag", "other/")
    assert status == 1
    assert re.search(r"hift_f0 .* nan .* FAILED", output)
    assert re.search(r"llm_logp .* FAILED  \(made \[12, 456\], expected \[12, 455\]\)", output)


def test_an_entry_that_cannot_be_computed_fails_and_the_others_are_compared(
    tiny_set: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, output = _run(capsys, str(tiny_set(text=np.array([-1, 3]))), "--tag", "other/")
    assert status == 1
    assert re.search(r"llm_tokens +not computed .* FAILED  \(text: -1 is not from 0 to", output)
    assert "hift_f0" in _entries(output)


def test_what_an_entry_is_computed_of_may_be_missing(
    tiny_set: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, output = _run(capsys, str(tiny_set(hift_mel=None)), "--tag", "other/")
    assert status == 0
    assert "not compared: hift_f0 (is computed of hift_mel, which is not there)" in output


def test_a_set_with_nothing_to_compare_fails(tiny_set: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    gone = dict.fromkeys(("llm_tokens", "llm_logp", "rand_noise_head", "hift_f0"))
    status, output = _run(capsys, str(tiny_set(**gone, odd=[1.0])))
    assert status == 1
    assert "not compared: odd (unknown)" in output
    assert "there was nothing to compare" in output


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: shutil.rmtree(folder), r"there is no folder \S+; parity wants one with reference vectors"),
        (lambda folder: (folder / "three_config.yaml").unlink(), r"has no NAME_config\.yaml"),
        (lambda folder: (folder / "three_golden.npz").unlink(), r"three_golden\.npz: cannot be read: No such file"),
        (lambda folder: (folder / "three_golden.npz").write_bytes(b"PK"), r"three_golden\.npz: is no archive"),
        (lambda folder: (folder / "three_manifest.json").write_text("{}"), r"three_manifest\.json: must be"),
        (lambda folder: (folder / "three_config.yaml").write_text("llm: !new:a.Other {}"), "Qwen2LM or CosyVoice3LM"),
    ],
)
def test_a_folder_without_whole_sets_is_named_in_one_line(
    tiny_set: Callable[..., Path], capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], object], told: str
) -> None:
    folder = tiny_set()
    spoil(folder)
    status, output = _run(capsys, str(folder))
    assert status == 2
    assert re.fullmatch(rf"cosystream: .*{told}.*\n", output), output


@pytest.mark.parametrize(
    ("total", "prompt", "start", "expected"),
    [
        (90, 25, 1, [25, 50]),
        (131, 31, 1, [44, 50]),
        (27, 0, 1, []),
        (28, 0, 1, [25]),
        (400, 0, 1, [25, 50, 100, 100, 100]),
        (400, 60, 2, [90, 100, 100, 100]),
        (120, 12, 4, []),
        (210, 12, 4, [188]),
    ],
)
def test_chunks_grow_from_the_end_of_the_prompts_block(
    total: int, prompt: int, start: int, expected: list[int]
) -> None:
    assert chunks_of(total, prompt, 25, 3, start) == expected


def test_a_wrong_folder_is_named_before_torch_is_loaded(tmp_path: Path) -> None:
    code = "import sys; from server.__main__ import main; print(main(sys.argv[1:]), {'torch'} & set(sys.modules))"
    (tmp_path / "file").touch()
    for place, told in ((tmp_path, "has no NAME_config.yaml"), (tmp_path / "file", "is no folder")):
        command = [sys.executable, "-c", code, "parity", str(place)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        assert told in output[0]
        assert output[1:] == ["2 set()"]
