"""Read a Dockerfile and carry out what it says without Docker: its own text, in a folder instead of an image.

Absolute paths under `/opt` and `/usr/share/doc` in RUN, COPY and ENV become paths in that folder. All stages share it,
so `COPY --from` may only keep a path. What needs root (apt-get) is left out, and listed. This is no whole tool: an
instruction or a flag that it does not know is an error, so that a test cannot pass by overlooking one.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MOVED = re.compile(r"(?<![\w.}])/(opt|usr/share/doc)(?=/)")
KNOWN = frozenset("ARG COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK RUN STOPSIGNAL USER WORKDIR".split())


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `text` is what follows the keyword, continuation lines joined."""

    keyword: str
    text: str
    line: int


@dataclass(slots=True)
class Stage:
    """A stage: what it builds on and its instructions."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)


def parse(text: str) -> Iterator[Instruction]:
    """The instructions in order. Raises ValueError at one that this module does not know."""
    pending, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not (line.strip() or pending):
            continue
        start = start if pending else number
        pending += line.strip().removesuffix("\\")
        if line.rstrip().endswith("\\"):
            continue
        keyword, _, rest = pending.partition(" ")
        if keyword not in KNOWN:
            raise ValueError(f"line {start}: {keyword} is not known here")
        yield Instruction(keyword, rest.strip(), start)
        pending = ""


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}`. Raises KeyError for a name without a value."""
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda match: values[match[1] or match[2]], text)


class Build:
    """A Dockerfile and the folder it is carried out in.

    `python` is the interpreter that stands for the base image's `python`. A stage that ran is not run again.
    """

    def __init__(self, dockerfile: Path, root: Path, python: Path) -> None:
        self.context = dockerfile.parent
        self.root = root
        self.left_out: list[str] = []
        self.environment: dict[str, str] = {}
        self._copied: list[Path] = []
        self._done: dict[str, dict[str, str]] = {}
        self._arguments: dict[str, str] = {}
        self._stages: dict[str, Stage] = {}
        self._read(dockerfile.read_text(encoding="utf-8"))
        self.final = self._stages[list(self._stages)[-1]]
        tools = root / "tools"
        tools.mkdir(parents=True)
        (tools / "python").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n', encoding="utf-8")
        (tools / "python").chmod(0o755)
        self._base_environment = {"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "HOME": str(root / "home")}

    def _read(self, text: str) -> None:
        stage: Stage | None = None
        for instruction in parse(text):
            if instruction.keyword == "FROM":
                base, _, name = instruction.text.partition(" AS ")
                stage = Stage(name or "final", base)
                self._stages[stage.name] = stage
            elif stage is not None:
                stage.instructions.append(instruction)
            elif instruction.keyword == "ARG":
                name, _, value = instruction.text.partition("=")
                self._arguments[name] = value
            else:
                raise ValueError(f"line {instruction.line}: {instruction.keyword} before the first FROM")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, in order."""
        return tuple(self._stages.values())

    def run(self, name: str = "final", **arguments: str) -> None:
        """Carry out a stage after the stages that it needs. Raises CalledProcessError when a RUN step fails.

        `arguments` are the build arguments, of which only those before the first FROM exist here.
        """
        if name in self._done:
            self.environment = dict(self._done[name])
            return
        stage = self._stages[name]
        for needed in dict.fromkeys(re.findall(r"--from=(\S+)", " ".join(item.text for item in stage.instructions))):
            self.run(needed, **arguments)
        base = substitute(stage.base, {**self._arguments, **arguments})
        if base in self._stages:
            self.run(base, **arguments)
        else:
            self.environment = dict(self._base_environment)
        self._copied.clear()
        place = self.root
        for instruction in stage.instructions:
            if instruction.keyword == "WORKDIR":
                place = Path(self.moved(instruction.text))
                place.mkdir(parents=True, exist_ok=True)
            elif instruction.keyword == "ENV":
                for key, value in re.findall(r"(\w+)=(\S+)", instruction.text):
                    self.environment[key] = self.moved(substitute(value, self.environment))
            elif instruction.keyword == "COPY":
                self._copy(instruction, place)
            elif instruction.keyword == "RUN":
                self._run(instruction, place)
        self._done[name] = dict(self.environment)

    def command(self, keyword: str) -> list[str]:
        """The words of the final stage's ENTRYPOINT or HEALTHCHECK command (in its JSON form)."""
        text = next(item.text for item in self.final.instructions if item.keyword == keyword)
        words: list[str] = json.loads(text[text.index("[") :])
        return words

    def size_mb(self) -> float:
        """What the final stage adds to its base image by COPY, in megabytes of disk."""
        files = {path for place in self._copied for path in place.rglob("*") if not path.is_symlink()}
        return sum(path.stat().st_blocks * 512 for path in files) / 1e6

    def moved(self, text: str) -> str:
        """`text` with the image's paths turned into paths in this build's folder."""
        return MOVED.sub(lambda match: f"{self.root}/{match[1]}", text)

    def _run(self, instruction: Instruction, place: Path) -> None:
        if "apt-get" in instruction.text:
            self.left_out.append(instruction.text)
            return
        environment = {**_network_settings(), **self.environment}
        subprocess.run(["/bin/sh", "-c", self.moved(instruction.text)], cwd=place, env=environment, check=True)

    def _copy(self, instruction: Instruction, place: Path) -> None:
        flags = [word for word in instruction.text.split() if word.startswith("--")]
        *sources, target = [word for word in instruction.text.split() if not word.startswith("--")]
        destination = Path(self.moved(target)) if target.startswith("/") else place / target
        if flags:
            if len(flags) > 1 or not flags[0].startswith("--from=") or sources != [target]:
                raise ValueError(f"line {instruction.line}: COPY with {flags} of {sources} to {target}")
            self._copied.append(destination)
            return
        for source in sources:
            origin = self.context / source
            if origin.is_dir():
                shutil.copytree(origin, destination, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            else:
                into_folder = len(sources) > 1 or target.endswith("/")
                destination.parent.mkdir(parents=True, exist_ok=True)
                if into_folder:
                    destination.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, destination / origin.name if into_folder else destination)


def _network_settings() -> dict[str, str]:
    """What a build would be told about the network: proxies, certificates, pip's index."""
    wanted = re.compile(r"(?i)(https?|no)_proxy$|SSL_CERT|REQUESTS_CA|PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|TRUSTED)")
    return {key: value for key, value in os.environ.items() if wanted.match(key)}
