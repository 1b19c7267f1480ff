"""The entry point: what the system says when it has no memory for the libraries becomes one clear line."""

import os
import sys
from importlib.machinery import ModuleSpec

import pytest

from server.engines.base import EngineError
from server.engines.cosyvoice.starting import SPINS, create, share_cores

LOADING = "server.engines.cosyvoice.loading"


class _Failing:
    """Finds the module, and fails to import it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == LOADING:
            raise self._error
        return None


def _import_failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.delitem(sys.modules, LOADING, raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Failing(error), *sys.meta_path])


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        ImportError("libgomp.so.1: cannot create shared object descriptor: Cannot allocate memory"),
        OSError(12, "Cannot allocate memory"),
        MemoryError(),
    ],
)
def test_too_little_memory_for_the_libraries_is_told(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    _import_failing(monkeypatch, error)
    with pytest.raises(EngineError, match=r"^not enough memory to load the libraries [^\n]*$"):
        create({})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": "cuda"}, "engine option device is cuda, but torch finds no CUDA device here"),
        (
            {"device": "cpu", "quantise": "int8", "precision": "fp16"},
            "engine option quantise: int8 needs device cpu and precision fp32, and these are cpu and fp16",
        ),
    ],
)
def test_what_cannot_be_computed_here_is_told_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], told: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    asked: list[object] = []
    monkeypatch.setattr("server.engines.cosyvoice.hub.find_model", asked.append)
    with pytest.raises(EngineError) as caught:
        create(options)
    assert (str(caught.value), asked) == (told, [])


def test_another_failure_to_import_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ImportError("undefined symbol: _ZN3c10")
    _import_failing(monkeypatch, error)
    with pytest.raises(ImportError) as caught:
        create({})
    assert caught.value is error


@pytest.mark.parametrize(
    ("chosen", "spins"), [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_torchs_threads_share_their_cores_unless_a_user_chose(
    chosen: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    share_cores()
    assert os.environ.get("GOMP_SPINCOUNT") == spins
