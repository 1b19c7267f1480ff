"""Where the audio of a run goes: a file, a pipe, a sound device; files can be gone back to, or on from, a sample."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from client.cli.plan import STDOUT, Plan, is_special
from client.cli.state import remove_state, state_name
from client.device import DeviceSink, DeviceUnavailable
from client.errors import ClientError
from client.items import Audio
from client.sinks import Claim, FileSink, PipeSink, Sink, open_special

PLAY_LEAD_MS: Final = 4_000  # how far audio may run ahead of the ear: what a hole in the network may last


class Outputs:
    """`played` is told what a device has played: sample, milliseconds in hand, stalls."""

    def __init__(self, plan: Plan, bitrate: int | None, played: Callable[[int, int, int], None]) -> None:
        self.device: DeviceSink | None = None
        self.file: FileSink | None = None
        self._plan = plan
        self._bitrate = bitrate
        self._played = played
        self._sinks: list[Sink] = []
        self._sound = 0, 0  # sample rate, pre-skip
        self._claim: Claim | None = None

    @property
    def is_open(self) -> bool:
        """Whether audio can be written."""
        return bool(self._sinks)

    def claim(self) -> None:
        """Takes the file of an earlier run, before anything is done that could disturb a run which has it. Raises
        OutputFailed.
        """
        assert self._plan.output is not None
        self._claim = Claim(self._plan.output)

    async def begin(self, sample_rate: int, pre_skip: int, at_sample: int, warn: Callable[[str], None]) -> None:
        """Opens them; a file of an earlier run where it goes on at a sample. Raises OutputFailed."""
        plan = self._plan
        self._sound = sample_rate, pre_skip
        output = plan.output
        if plan.play:
            try:
                self.device = DeviceSink(self._played, PLAY_LEAD_MS // 2)
                await self.device.begin(sample_rate, pre_skip)
            except DeviceUnavailable as error:
                self.device = None
                output = output or plan.fallback
                warn(f"{error}; writing {output} instead" if plan.output is None else str(error))
        if output is not None:
            await self._open(output, at_sample)
        if self.device is not None:
            self._played(0, 0, 0)
            self._sinks.append(self.device)  # last: files are complete before the last sound was heard

    async def reopen(self, at_sample: int, complete: int | None = None) -> None:
        """Other audio follows, which counts from there; what files have beyond is cut. `complete`: what came since the
        last time is, and has so many samples. Raises OutputFailed.
        """
        if self.file is None:
            return
        await (self.file.abandon() if complete is None else self.file.leave(complete))
        self._sinks.remove(self.file)
        self.file = None
        assert self._plan.output is not None
        await self._open(self._plan.output, at_sample)

    async def write(self, audio: Audio) -> None:
        """The next stretch. Raises OutputFailed."""
        for sink in self._sinks:
            await sink.write(audio)

    async def finish(self, samples: int) -> None:
        """All of it is here: so many samples since the file was opened. Raises OutputFailed."""
        for sink in self._sinks:
            await sink.finish(samples)
        self._release()

    async def end(self, *, interrupted: bool) -> ClientError | None:
        """It is not all here: the listener stopped it, or it failed. Gives what went wrong here."""
        failure: ClientError | None = None
        for sink in self._sinks:
            try:
                await (sink.interrupt() if interrupted else sink.abandon())
            except ClientError as error:
                failure = error
        self._release()
        return failure

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release()

    async def _open(self, output: Path, at_sample: int) -> None:
        sink: Sink
        if output == STDOUT:
            sink = PipeSink(self._plan.container, sys.stdout.fileno())
        elif is_special(output):
            sink = PipeSink(self._plan.container, open_special(output), str(output))
        else:
            sink = self.file = FileSink(
                output, self._plan.container, at_sample=at_sample or None, bitrate=self._bitrate, claim=self._claim
            )
        self._sinks.insert(0, sink)
        await sink.begin(*self._sound)
        if sink is self.file and self._plan.state is None and not at_sample:
            remove_state(state_name(output))  # of a file that is overwritten now, and that no other run is writing
