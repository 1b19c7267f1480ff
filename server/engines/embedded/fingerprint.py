"""What may change the engine's samples: models, library versions, and the CPU's instructions."""

import hashlib
import json
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from server.engines.model_cache import CacheEntry

_PACKAGES = ("cosystream", "onnxruntime", "numpy", "hibari-tts", "pypinyin", "wetext", "kaldifst", "anyascii")
"""Our own code, what runs the models, and what turns text into sounds."""
_RELEVANT_FLAGS = frozenset("avx avx2 fma avx512f avx512bw avx512_vnni avx_vnni amx_int8 asimddp i8mm sve".split())


def cpu_flags(cpu_info: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The instruction sets that matrix code chooses by; empty where the system does not tell."""
    try:
        text = cpu_info.read_text("ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split()) & _RELEVANT_FLAGS
    return frozenset()


def weight_type_for(machine: str, flags: frozenset[str]) -> str:
    """`s8` where products of unsigned and signed bytes are exact, else `u8`.

    On x86 without VNNI, onnxruntime multiplies u8 by s8 with an instruction that adds two products in 16 bits and
    saturates, which changes samples; u8 by u8 is exact there. Measured with VNNI: both give the same samples, and `u8`
    takes 1.5 times as long.
    """
    if machine.lower() in ("x86_64", "amd64", "i686"):
        return "s8" if flags & {"avx512_vnni", "avx_vnni"} else "u8"
    return "s8"


def fingerprint(entries: Iterable[CacheEntry], weight_type: str, flags: frozenset[str]) -> str:
    """A short name for this combination of models, libraries and CPU."""
    facts = {
        "files": [sorted(entry.files.items()) for entry in entries],
        "packages": {name: _version(name) for name in _PACKAGES},
        "weights": weight_type,
        "machine": platform.machine(),
        "flags": sorted(flags),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return f"embedded-{digest[:16]}"


def _version(package: str) -> str:
    """The version installed; "" for a package that is only on the path, as our own may be."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
