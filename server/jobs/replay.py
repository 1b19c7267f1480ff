"""Dead letters tried again: the same text with the same parameters, by the same engine, in this process."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protocol.media.wav import wav_header
from server.background import end_process, in_daemon_thread
from server.cluster import EnginePool, InProcessPool, PoolUnavailable, WorkerLost
from server.engines import registry
from server.engines.base import EngineError
from server.engines.loading import START_ERRORS, start_engine
from server.engines.rendering import SegmentRequest
from server.jobs.folder import LetterFolder
from server.jobs.letters import Letter, Resolved, encode
from server.jobs.listing import printable
from server.jobs.queue import timestamp
from server.observe.logs import configure_logs
from server.settings import Settings
from server.voices import VoicesFailed, VoiceStore
from server.voices.place import open_voices

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

Say = Callable[[str], None]
"""Shows a person one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where audio goes: nowhere, into a directory with a file for each letter, or into one file."""

    path: Path | None
    is_file: bool = False

    @classmethod
    def of(cls, given: Path | None) -> "Target":
        """What a user means: NAME.wav is a file, unless it is a directory; so are devices and pipes. Raises ValueError
        for another file, which is none to write audio to.
        """
        if given is None:
            return cls(None)
        path = given.expanduser()
        if path.is_dir():
            return cls(path)
        if path.is_file() and path.suffix.lower() != ".wav":
            raise ValueError(f"{path} is neither a directory nor a .wav file")
        return cls(path, is_file=path.suffix.lower() == ".wav" or path.exists())

    def file_for(self, letter: Letter) -> Path | None:
        """Where its audio goes. That its id is no path is a letter's own promise."""
        if self.path is None or self.is_file:
            return self.path
        return self.path / f"{letter.id}.wav"


class _Failed(Exception):
    """A letter does not succeed; why, in a line."""


def replay(letters: Sequence[Letter], folder: LetterFolder, settings: Settings, target: Target, say: Say) -> int:
    """Render each letter again, say how it went, and mark those that succeed. The exit status: 0 where all do."""
    configure_logs(settings.log_format, settings.log_level)
    engines = _Engines(settings)
    failed = asyncio.run(_replay(letters, folder, engines, target, say))
    if len(letters) > 1:
        say(f"{len(letters) - failed} of {len(letters)} succeed")
    status = EXIT_FAILED if failed else EXIT_OK
    return end_process(status) if engines.hang else status


async def _replay(
    letters: Sequence[Letter], folder: LetterFolder, engines: "_Engines", target: Target, say: Say
) -> int:
    """How many fail."""
    failed = 0
    try:
        for letter in letters:
            try:
                say(f"{letter.id}  {await _try(letter, folder, engines, target)}")
            except _Failed as problem:
                failed += 1
                say(f"{letter.id}  fails: {printable(str(problem))}")
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one letter, the others are tried
                failed += 1
                say(f"{letter.id}  fails: {type(error).__name__}: {printable(str(error))}")
    finally:
        await engines.close()
    return failed


async def _try(letter: Letter, folder: LetterFolder, engines: "_Engines", target: Target) -> str:
    """How it succeeded. Raises _Failed."""
    request = letter.failed.request
    pool = await engines.pool(letter.failed.engine)
    capabilities = pool.capabilities
    if capabilities.voice(request.voice) is None and not engines.voices.may_use(letter.failed.principal, request.voice):
        raise _Failed(f"{capabilities.name} has no voice {request.voice} here")
    try:
        pcm = await engines.render(pool, replace(request, parts=()))
    except _Failed as problem:
        if capabilities.fingerprint != letter.failed.fingerprint:
            raise _Failed(f"{problem} (the engine is another version than then)") from problem
        raise
    audio = f"{len(pcm) / 2 / request.sample_rate:.2f} s of audio"
    if file := target.file_for(letter):
        try:
            if not target.is_file:
                file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(wav_header(request.sample_rate, len(pcm) // 2) + pcm)
        except OSError as error:
            raise _Failed(f"{audio} cannot be written: {_reason(error, file)}") from error
        audio += f" in {printable(str(file))}"
    try:
        folder.mark(encode(Resolved(letter.id, timestamp()), folder.max_line_bytes))
    except OSError as error:
        raise _Failed(f"{audio}, but it cannot be marked as resolved: {_reason(error, folder.path)}") from error
    return f"succeeds, {audio}"


def _reason(error: OSError, place: Path) -> str:
    """Why, and at which file; the system names none where it could open it. `place`: what it was about then."""
    return f"{error.strerror or type(error).__name__} ({error.filename or place})"


def _voices(settings: Settings) -> VoiceStore:
    """Those that users had learnt; none where the folder of the settings is no good."""
    try:
        return open_voices(settings)
    except VoicesFailed:
        return VoiceStore(None)


class _Engines:
    """The engines that letters ask for, each started once."""

    def __init__(self, settings: Settings) -> None:
        self.hang = False  # a step of one of them does not return
        self.voices = _voices(settings)
        self._settings = settings
        self._pools: dict[str, InProcessPool] = {}
        self._problems: dict[str, str] = {}

    async def pool(self, engine: str) -> InProcessPool:
        """The one of that name, with the options of the settings where these are about it. Raises _Failed."""
        if engine not in self._pools and engine not in self._problems:
            await self._start(engine)
        if engine in self._problems:
            raise _Failed(self._problems[engine])
        return self._pools[engine]

    async def _start(self, engine: str) -> None:
        settings = self._settings
        # An engine may call itself otherwise than it is installed: then it can only be the one of the settings.
        name = engine if engine in registry.names() else settings.engine
        options = settings.engine_options if name == settings.engine else {}
        try:
            started = await in_daemon_thread(lambda: start_engine(name, options, voices=self.voices))
        except START_ERRORS as error:
            self._problems[engine] = f"the engine {name} cannot start: {' '.join(str(error).split())}"
            return
        pool = InProcessPool(started, threads=1, step_timeout_s=settings.step_timeout_s)
        self._pools[engine] = pool
        if name != engine and pool.capabilities.name != engine:
            self._problems[engine] = f"no engine {engine} is installed here"

    async def render(self, pool: EnginePool, request: SegmentRequest) -> bytes:
        """All samples. Raises _Failed."""
        stream = pool.synthesize(request)
        try:
            return b"".join([chunk.pcm async for chunk in stream])
        except EngineError as error:
            raise _Failed(f"{error.kind}: {error}") from error
        except WorkerLost as error:
            self.hang = True
            raise _Failed(f"{error.kind}: {error}") from error
        except PoolUnavailable as error:
            raise _Failed(f"worker_lost: {error}") from error
        finally:
            stream.cancel()

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
