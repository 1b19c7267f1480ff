"""`python -m server doctor`: whether an engine can run here, with these settings, and how much of it."""

import argparse
import importlib
import platform
import sys
from typing import Final

from server.engines import registry
from server.engines.base import EngineError
from server.engines.examining import Examination, check_packages, free_memory, gigabytes
from server.settings import Settings, cpu_count

LEAST_PYTHON: Final = (3, 11)
_EXAMINERS: Final = {
    "cosyvoice": "server.engines.cosyvoice.examining",
    "embedded": "server.engines.embedded.examining",
}


_OF_SIZE: Final = ("memory: ", "disk: ")  # how problems begin where the machine is too small


def help_text() -> str:
    """What the command does."""
    parser = argparse.ArgumentParser(
        prog="python -m server doctor",
        usage="%(prog)s [--config FILE] [OPTION VALUE ...]",
        description="Look whether the engine can run on this machine with these settings: packages, device, model,"
        " disk and memory, and how many sessions fit beside each other. Nothing is loaded or fetched. Takes the"
        " settings of the server (`python -m server --help`), for example: --engine cosyvoice --model DIR"
        " --engine-option batch=8.",
        epilog="Exit status: 0 it fits; 1 it does not fit or cannot run here, each reason is a line PROBLEM; 2 the"
        " settings are wrong.",
    )
    return parser.format_help()


def run(settings: Settings) -> int:
    """Print what there is and what is wrong; the exit status: 0 it fits, 1 it does not, or cannot run."""
    found = examine(settings)
    width = max(len(what) for what, _ in found.facts)
    for what, text in found.facts:
        print(f"{what:{width}}  {text}")
    for line in found.advice:
        print(f"advice: {line}")
    for line in found.problems:
        print(f"PROBLEM: {line}")
    print(_verdict(found))
    return 1 if found.problems else 0


def _verdict(found: Examination) -> str:
    if not found.problems:
        return f"it fits, if {found.assumed}" if found.assumed else "it fits"
    return "it does not fit" if all(each.startswith(_OF_SIZE) for each in found.problems) else "it cannot run here"


def examine(settings: Settings) -> Examination:
    """Look at the machine, and at the engine. Loads no model and fetches nothing."""
    found = Examination()
    found.fact("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    if sys.version_info < LEAST_PYTHON:
        found.problems.append(f"python: at least {'.'.join(map(str, LEAST_PYTHON))} is needed")
    found.fact("processor", f"{cpu_count()} cores, {gigabytes(free_memory())} of memory free")
    check_packages(found)
    engine = settings.engine
    found.fact("engine", engine)
    if engine not in registry.names():
        found.problems.append(f"engine: {engine} is not one of {', '.join(registry.names())}")
    elif engine in _EXAMINERS:
        try:
            importlib.import_module(_EXAMINERS[engine]).examine(settings.engine_options, found)
        except (EngineError, ValueError, OSError) as error:
            found.problems.append(f"{engine}: {error}")
    if settings.workers > 1:
        found.advice.append(f"each of the {settings.workers} workers takes as much, on the device that it is given")
    return found
