"""`python -m server parity DIR [--tag T]`."""

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from server.engines.cosyvoice.sections import ModelError

_CONFIG: Final = "config.yaml"


def run(arguments: Sequence[str]) -> int:
    """The process's exit status: 0 where everything that was compared is within its bound, 1 where something is not, 2
    for a wrong call, or a folder that cannot be compared with.
    """
    parser = argparse.ArgumentParser(
        prog="python -m server parity",
        description="Compare the engine cosyvoice with reference vectors: for each set NAME in a folder,"
        " NAME_config.yaml, NAME_manifest.json and NAME_golden.npz. Prints the largest difference of each entry.",
        epilog="Exit status: 0 all within the bounds; 1 a comparison failed; 2 wrongly called, or a folder that cannot"
        " be compared with.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder of the vectors")
    parser.add_argument(
        "--tag", default="", metavar="T", help="what comes before the modules' names in the rule of the weights"
    )
    given = parser.parse_args(arguments)
    try:
        configs = _configs(given.folder)
        # Late: who names the wrong folder need not wait for torch.
        comparing = import_module("server.engines.cosyvoice.parity.comparing")
        sets = import_module("server.engines.cosyvoice.parity.sets")
        passed = [comparing.passes(each, given.tag) for each in [sets.read_set(config) for config in configs]]
        return 0 if all(passed) else 1
    except ModelError as problem:
        print(f"cosystream: {problem}")
        return 2


def _configs(folder: Path) -> list[Path]:
    """Of all sets of a folder, by name. Raises ModelError where there is none."""
    if not folder.is_dir():
        what = f"{folder} is no folder" if folder.exists() else f"there is no folder {folder}"
        raise ModelError(f"{what}; parity wants one with reference vectors (docs/cosyvoice.md, Parity)")
    try:
        names = [file.name for file in folder.iterdir()]
    except OSError as problem:
        raise ModelError(f"{folder}: cannot be read: {problem.strerror}") from None
    configs = sorted(folder / name for name in names if name == _CONFIG or name.endswith(f"_{_CONFIG}"))
    if not configs:
        raise ModelError(f"{folder}: has no NAME_{_CONFIG} with its NAME_manifest.json and NAME_golden.npz")
    return configs
