"""What `python -m server doctor` finds, of the machine and of an engine that is to run on it."""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;(.*))?")


def how_to_install(extra: str = "") -> str:
    """The command that brings an extra's packages, or the package's own. It is run in a checkout: the package is on no
    index; and its versions are those that the tests ran with.
    """
    what = f"'.[{extra}]'" if extra else "."
    return f"pip install -e {what} -c constraints.txt"


@dataclass(slots=True)
class Examination:
    """Facts are pairs of a word and what it is; problems, one line each, keep the engine from running; advice does
    not. `assumed`: what was not looked at, and must be so for the rest to hold; empty where nothing is.
    """

    facts: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    assumed: str = ""

    def fact(self, what: str, text: str) -> None:
        """Something that is so."""
        self.facts.append((what, text))


def check_packages(found: Examination, extra: str = "", besides: Sequence[str] = ()) -> bool:
    """Whether everything is installed that the package needs, or that one of its extras brings. `besides`: packages
    without the extra that it uses most, to be named with it.
    """
    wanted = list(besides)
    for requirement in metadata.requires("cosystream") or ():
        match = _REQUIREMENT.match(requirement)
        marker = (match[2] or "").replace("'", '"') if match else ""
        of_extra = re.search(r'extra == "([^"]+)"', marker)
        if match and (of_extra[1] if of_extra else "") == extra and "platform" not in marker:
            wanted.append(match[1])
    versions, missing = [], []
    for name in wanted:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if versions and extra:
        found.fact("packages", ", ".join(versions))
    if missing:
        found.problems.append(f"packages: there is no {', '.join(missing)}: {how_to_install(extra)}")
    return not missing


def free_memory() -> int:
    """Bytes of main memory that are left, also by the limit of a container; 0 where nothing tells."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        told = dict(line.split(":", 1) for line in lines)
        free = int(told["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        try:
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            return 0
    try:
        control = Path("/sys/fs/cgroup")
        limit = int((control / "memory.max").read_text("ascii"))
        return min(free, max(0, limit - int((control / "memory.current").read_text("ascii"))))
    except (OSError, ValueError):  # no container, or no limit
        return free


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next((place for place in (folder, *folder.absolute().parents) if place.is_dir()), Path("/"))


def gigabytes(size: float) -> str:
    """For people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def check_disk(found: Examination, needed: int, folder: Path, what: str) -> None:
    """Whether something fits on the disk."""
    place = existing(folder)
    free = shutil.disk_usage(place).free
    found.fact("disk", f"{gigabytes(needed)} needed, {gigabytes(free)} free in {place}")
    if free < needed:
        found.problems.append(f"disk: {what} takes {gigabytes(needed)}, and {gigabytes(free)} are free in {place}")
    if not os.access(place, os.W_OK | os.X_OK):
        found.problems.append(f"disk: {place} cannot be written to")
