"""Tiny models with every file of an official one: what they say is noise, how they say it is real."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.engine import CosyVoiceEngine
from server.engines.cosyvoice.starting import create
from tests.support.cosyvoice import tiny_folder

torch.set_num_threads(1)  # tiny models take several times as long when cores share one of their products


@pytest.fixture(scope="session", params=[2, 3], ids=["cosyvoice2", "cosyvoice3"])
def version(request: pytest.FixtureRequest) -> ModelVersion:
    found: ModelVersion = request.param
    return found


@pytest.fixture(autouse=True)
def may_ask_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite that listens forbids it to the whole process; what these tests ask is a hub of their own."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="session")
def tiny_model(version: ModelVersion, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp(f"cosyvoice{version}"), version)


@pytest.fixture(scope="session")
def engine(tiny_model: Path) -> Iterator[CosyVoiceEngine]:
    """Shared: a test leaves nothing behind in it."""
    made = create({"model": str(tiny_model), "threads": 1, "device": "cpu"})
    made.warm_up()
    yield made
    made.close()
