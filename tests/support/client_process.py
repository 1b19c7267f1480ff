"""`python -m client` as a process of its own."""

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How it ended, and what it said."""

    code: int
    out: bytes
    err: str
    took_s: float


class Command:
    """A running `python -m client`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._began = time.monotonic()

    @classmethod
    async def start(cls, folder: Path, *arguments: str, url: str = "", **environment: str) -> "Command":
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "client", *arguments,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "COSYSTREAM_URL": url, **environment},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process)

    async def end(self, stdin: bytes = b"", patience_s: float = 15) -> Ended:
        async with asyncio.timeout(patience_s):
            out, err = await self.process.communicate(stdin)
        assert self.process.returncode is not None
        return Ended(self.process.returncode, out, err.decode(), time.monotonic() - self._began)


async def run(
    folder: Path, *arguments: str, url: str = "", stdin: bytes = b"", patience_s: float = 15, **environment: str
) -> Ended:
    command = await Command.start(folder, *arguments, url=url, **environment)
    return await command.end(stdin, patience_s)
