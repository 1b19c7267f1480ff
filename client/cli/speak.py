"""`stream` and `say`: text to a server, its audio to files and devices, and an exit code that tells the truth."""

import argparse
import asyncio
import signal
import time
from typing import Final

from client.cli.exit_codes import ExitCode, code_of
from client.cli.plan import Plan
from client.cli.progress import Progress, audio_length
from client.cli.reading import Reading
from client.cli.report import report, write_json
from client.cli.state import state_name
from client.cli.telling import told
from client.errors import ClientError, ServerError, UsageError

OUTAGE_SHOWN_S: Final = 1.0  # so often it is said that a lost connection is still looked for
CANCEL_TIMEOUT_S: Final = 1.0  # how long an interrupted client waits for the server's `cancelled`


class _Interrupted(ClientError):
    """A signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED


class Speaking:
    """One run of `stream` or `say`: signals, what is told, and the end. The work is in `Reading`."""

    def __init__(self, args: argparse.Namespace, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._reading = Reading(args, plan, progress, self._notice)
        self._signal: int | None = None
        self._task: asyncio.Task[object] | None = None
        self._no_answer: asyncio.TimerHandle | None = None  # then the server's `cancelled` is not waited for
        self._is_over = False  # what is left is done here, and soon
        self._outage: asyncio.TimerHandle | None = None  # shows for how long the connection has been lost

    async def run(self) -> ExitCode:
        """Speaks. Every failure is told on stderr, in one line."""
        self._task = asyncio.current_task()
        began = time.monotonic()
        self._catch_signals()
        error: ClientError | None = None
        try:
            await self._reading.run()
            if self._signal is not None:
                raise _Interrupted(self._signal)
        except ClientError as failure:
            error = failure if self._signal is None else _Interrupted(self._signal)
        except asyncio.CancelledError:
            if self._signal is None:
                raise
            error = _Interrupted(self._signal)
        finally:
            self._is_over = True
            for timer in (self._outage, self._no_answer):
                if timer is not None:
                    timer.cancel()
        return await self._conclude(error, time.monotonic() - began)

    def _notice(self, text: str) -> None:
        """Something happened to the connection."""
        self._progress.say(text)
        if self._outage is not None:
            self._outage.cancel()
        self._show_outage()

    def _show_outage(self) -> None:
        """Once a second, as long as the outage lasts."""
        session = self._reading.session
        out_since = session.line.out_since if session is not None and session.failure is None else None
        self._progress.trying(None if out_since is None else time.monotonic() - out_since)
        self._outage = None
        if out_since is not None:
            self._outage = asyncio.get_running_loop().call_later(OUTAGE_SHOWN_S, self._show_outage)

    # ---- signals ----

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)

    def _interrupt(self, number: int) -> None:
        """The first signal cancels on the server and ends in order; a second one, or no answer, does not wait for it.
        Nothing stops the last steps, which leave a file that is whole and a state that fits.
        """
        assert self._task is not None
        if self._is_over:
            return
        first, self._signal = self._signal is None, number
        if not first or not self._reading.cancel():
            self._task.cancel()
            return
        self._no_answer = asyncio.get_running_loop().call_later(CANCEL_TIMEOUT_S, self._task.cancel)

    # ---- the end ----

    async def _conclude(self, error: ClientError | None, wall_s: float) -> ExitCode:
        reading, interrupted = self._reading, isinstance(error, _Interrupted)
        if error is not None and (failure := await reading.end(interrupted=interrupted)) is not None:
            error = failure if interrupted else error
        if isinstance(error, UsageError) or _refuses_manner(error):
            reading.leave_nothing()
        code = ExitCode.OK if error is None else error.code if isinstance(error, _Interrupted) else code_of(error)
        try:
            if self._plan.stats is not None:
                write_json(self._plan.stats, report(reading, wall_s, error))
        except ClientError as failure:
            error, code = (failure, code_of(failure)) if error is None else (error, code)
        if error is None:
            self._tell_success()
        else:
            self._tell_failure(error)
        if reading.degraded.segments:
            self._progress.say(str(reading.degraded))
        self._tell_how_to_go_on(error)
        return code

    def _tell_success(self) -> None:
        reading = self._reading
        if reading.samples == 0:
            self._progress.say(f"{self._destination()}no audio: there is nothing to say in this text")
            return
        ttfa = reading.totals.ttfa_clause_s  # the writer's own slowness is not the server's
        first = f", first sound {ttfa * 1000:.0f} ms after its text" if ttfa is not None else ""
        self._progress.say(f"{self._destination()}{audio_length(reading.audio_s)} of audio{first}")

    def _tell_failure(self, error: ClientError) -> None:
        reading = self._reading
        if isinstance(error, _Interrupted):
            got = (
                f": {self._destination()}the first {audio_length(reading.audio_s)} of audio"
                if reading.is_writing
                else ""
            )
            self._progress.say(f"{error}{got}")
        else:
            file = reading.outputs.file
            partial = f" (what came is in {file.partial})" if file is not None and file.partial.exists() else ""
            self._progress.error(f"error: {told(error)}{partial}")

    def _tell_how_to_go_on(self, error: ClientError | None) -> None:
        reading, output = self._reading, self._plan.output
        if error is None or output is None:
            return
        state = state_name(output)
        if (lost := reading.lost_file) is not None:
            self._progress.say(f"{lost} is gone, and nothing can go on from {state} without it: begin anew")
        elif reading.can_go_on:
            again = "the same text again | " if reading.needs_text_again else ""
            file_again = " -" if reading.needs_text_again else ""
            self._progress.say(f"to go on: {again}python -m client stream{file_again} --resume-from {output}")

    def _destination(self) -> str:
        file = self._reading.outputs.file
        return "" if file is None else f"{file.path}: "


def _refuses_manner(error: ClientError | None) -> bool:
    """Whether the voice cannot speak as it was asked to: another run with the same would end alike."""
    return isinstance(error, ServerError) and (error.field or "").startswith("start.")
