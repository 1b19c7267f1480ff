"""The engine costs little to load, besides torch."""

import subprocess
import sys

LIMIT_S = 3.0
MEASURE = """
import sys, time
import torch
before = time.process_time()
import server.engines.cosyvoice.starting
import server.engines.cosyvoice.engine, server.engines.cosyvoice.loading, server.engines.cosyvoice.hub
print(time.process_time() - before)
"""
LIGHT = """
import sys
import server.engines.cosyvoice.starting, server.engines.cosyvoice.options
print(*({"torch", "onnxruntime", "tokenizers", "huggingface_hub", "safetensors", "yaml"} & set(sys.modules)))
"""
HEAVY = """
import sys
import server.engines.cosyvoice.engine, server.engines.cosyvoice.loading, server.engines.cosyvoice.hub
print(*({"transformers", "torchaudio", "librosa", "scipy", "modelscope", "huggingface_hub"} & set(sys.modules)))
"""


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_importing_costs_little_beyond_torch_s_own_import() -> None:
    """In processor time, the least of some tries: a busy machine stretches even that."""
    least = float("inf")
    for _ in range(4):
        least = min(least, float(run(MEASURE)))
        if least <= LIMIT_S / 2:
            break
    assert least <= LIMIT_S


def test_the_entry_point_loads_nothing_heavy() -> None:
    assert run(LIGHT) == ""


def test_the_engine_loads_none_of_what_it_does_without() -> None:
    assert run(HEAVY) == ""
