"""`python -m server doctor` for this engine: what fits, by the sizes of the model and the memory there is."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from server.engines.base import EngineError
from server.engines.cosyvoice import examining, examining_model, loading
from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.fitting import needs_of
from server.engines.cosyvoice.starting import create
from server.engines.cosyvoice.synthetic import full
from server.engines.examining import Examination, gigabytes
from tests.support.model_hub import ModelHub, model_hub


def examined(**options: object) -> Examination:
    found = Examination()
    examining.examine({"device": "cpu", **options}, found)
    return found


def test_a_folder_that_fits(version: ModelVersion, tiny_model: Path) -> None:
    found = examined(model=str(tiny_model))
    facts = dict(found.facts)
    assert not found.problems
    assert facts["model"].startswith(f"CosyVoice {version}, with speakers, ")
    assert facts["device"].startswith("cpu (")
    assert "torch 2." in facts["packages"]


@pytest.mark.parametrize(
    ("gb", "batch", "voice_cache_mb", "problem"),
    [
        (40.0, 4, 1024, ""),
        (8.0, 4, 1024, "segments at once take .* are free: set batch=1, or a smaller history_s"),
        (5.5, 4, 1024, "are free: set batch=1 with a smaller voice_cache_mb, or"),
        (2.0, 4, 1024, "a single segment takes .* and 2.0 GB are free: try quantise=int8 or a smaller history_s"),
        (8.0, 1, 1024, ""),
    ],
)
def test_what_fits_follows_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gb: float, batch: int, voice_cache_mb: int, problem: str
) -> None:
    monkeypatch.setenv("COSYSTREAM_MODEL_DIR", str(tmp_path))
    monkeypatch.setattr(examining, "free_memory", lambda: int(gb * 1e9))
    monkeypatch.setattr(examining_model, "FETCHED_BYTES", {2: 1, 3: 1})
    found = examined(batch=batch, voice_cache_mb=voice_cache_mb)
    needs = needs_of(full(2), device="cpu", precision="fp32", quantise="none", length=2048, history_s=6.0)
    assert f"{needs.fitting(int(gb * 1e9), voice_cache_mb << 20)} segments fit" in dict(found.facts)["sessions"]
    assert gigabytes(needs.weights.all) in dict(found.facts)["weights"]
    if problem:
        (told,) = found.problems
        assert told.startswith("memory: ")
        assert re.search(problem, told)
    else:
        assert not found.problems


def test_a_gpu_s_own_memory_counts(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    class Properties:
        total_memory = 8 * 10**9

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5 * 10**9, 8 * 10**9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    found = examined(model=str(tiny_model), device="cuda")
    facts = dict(found.facts)
    assert facts["device"].startswith("Some GPU, 5.0 GB free of 8.0 GB, torch ")
    assert " in bf16: " in facts["weights"]
    assert facts["voices"].endswith("are kept in 1.0 GB (voice_cache_mb)")
    fits = int(facts["sessions"].split()[0])
    assert not found.problems
    assert found.advice == [f"batch may be up to {min(fits, 256)}"]


def test_a_model_that_is_not_here_yet_is_not_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COSYSTREAM_MODEL_DIR", str(tmp_path))
    monkeypatch.setattr(examining_model, "FETCHED_BYTES", {2: 10**18, 3: 10**18})
    found = examined(model="FunAudioLLM/Fun-CosyVoice3-0.5B-2512", hub="modelscope")
    facts = dict(found.facts)
    assert "is fetched from modelscope at the first start" in facts["model"]
    assert gigabytes(needs_of_three()) in facts["weights"]
    assert facts["disk"].startswith("1000000000.0 GB needed, ")
    assert found.problems[0].startswith(
        "disk: fetching FunAudioLLM/Fun-CosyVoice3-0.5B-2512 takes 1000000000.0 GB, and "
    )
    assert not list(tmp_path.iterdir())


def needs_of_three() -> int:
    needs = needs_of(full(3), device="cpu", precision="fp32", quantise="none", length=2048, history_s=6.0)
    return needs.weights.all


def test_what_is_wrong_is_an_error_of_one_line(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"^\S+: must hold exactly one of cosyvoice2\.yaml"):
        examined(model=str(tmp_path))
    with pytest.raises(ValueError, match=r"^engine option device must be one of"):
        examined(device="gpu")
    assert examined(model=str(tiny_model), quantise="int8", precision="bf16").problems == [
        "engine option quantise: int8 needs device cpu and precision fp32, and these are cpu and bf16"
    ]


def test_offline_a_model_that_is_not_here_has_a_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COSYSTREAM_MODEL_DIR", str(tmp_path))
    for name in ("FunAudioLLM/CosyVoice2-0.5B", "models/mine"):
        found = examined(model=name, offline="yes")
        assert dict(found.facts)["model"] == f"{name} is not here"
        told = "offline is on; give a folder that has the model, or start once without offline"
        assert found.problems[0].endswith(told)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelHub]:
    with model_hub() as served:
        for name, value in served.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield served


def test_a_name_that_is_not_known_is_looked_up_and_its_sizes_are_assumed(
    hub: ModelHub, tiny_model: Path, version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "free_memory", lambda: 10**12)
    hub.put("Some-One/Tiny", tiny_model)
    found = examined(model="Some-One/Tiny")
    assert found.assumed == f"Some-One/Tiny has the sizes of the official CosyVoice {version}"
    assert any(line.startswith("Some-One/Tiny is not known here: ") for line in found.advice)
    assert not found.problems
    assert (hub.asked, list(tmp_path.iterdir())) == ([], [])


def test_what_is_neither_a_folder_nor_on_the_hub_cannot_run(hub: ModelHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"^there is no model models/mine on http\S+, and no folder models/mine here"):
        examined(model="models/mine")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EngineError, match=r"^http\S+ cannot be reached .*, and there is no folder models/mine here"):
        examined(model="models/mine")


@pytest.mark.parametrize("part", ["llm", "flow", "hift"])
def test_a_checkpoint_that_is_cut_or_another_one_s_is_found(tiny_model: Path, tmp_path: Path, part: str) -> None:
    place = shutil.copytree(tiny_model, tmp_path / "model")
    whole = (place / f"{part}.pt").read_bytes()
    (place / f"{part}.pt").write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(EngineError, match=rf"{part}\.pt: is no checkpoint of torch, or truncated"):
        examined(model=str(place))
    state = torch.load(tiny_model / f"{part}.pt", weights_only=True)
    state.pop(next(key for key in state if key.endswith("bias")))
    torch.save(state, place / f"{part}.pt")
    with pytest.raises(EngineError, match=rf"{part}\.pt: does not fit the model of \d+ tensors: 1 missing"):
        examined(model=str(place))


def test_only_a_large_model_is_called_too_slow(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "free_memory", lambda: 40 * 10**9)
    assert not any("too slow" in line for line in examined(model=str(tiny_model)).advice)
    assert any("too slow" in line for line in examined().advice)


def test_a_cache_without_room_for_a_voice_is_told(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "free_memory", lambda: 40 * 10**9)
    assert dict(examined(voice_cache_mb=1).facts)["voices"].startswith("none (one takes 2.3 GB) of 10 s are kept")
    assert "onnxruntime " in dict(examined(model=str(tiny_model)).facts)["packages"]


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate 20.00 MiB"),
     RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")],
)  # fmt: skip
def test_a_start_with_too_little_memory_is_one_error(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, error: Exception
) -> None:
    def no_slots(*_: object) -> None:
        raise error

    monkeypatch.setattr(loading, "SlotCache", no_slots)
    with pytest.raises(EngineError, match=r"^not enough memory .*python -m server doctor") as caught:
        create({"model": str(tiny_model), "device": "cpu", "threads": 1})
    assert "\n" not in str(caught.value)
