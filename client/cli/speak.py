"""`stream` and `say`: text to a server, its audio to files and devices, and an exit code that tells the truth."""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Final

from client.captions import make_cues, spoken_words, to_srt, to_vtt
from client.cli.exit_codes import ExitCode, code_of
from client.cli.plan import STDOUT, Plan, is_special
from client.cli.progress import Progress
from client.cli.report import report, write_json, write_text
from client.cli.text_source import open_text, paced, read_text
from client.connection import connect
from client.device import DeviceSink, DeviceUnavailable
from client.errors import ClientError, UsageError
from client.items import Audio
from client.shell import Session
from client.sinks import FileSink, PipeSink, Sink, open_special
from client.utterance import Utterance
from protocol.server_messages import Cancelled, SegmentBegin, SegmentEnd, Timing

PLAY_LEAD_MS: Final = 4_000  # how far audio may run ahead of the ear: what a hole in the network may last
OUTAGE_SHOWN_S: Final = 1.0  # so often it is said that a lost connection is still looked for
CANCEL_TIMEOUT_S: Final = 1.0  # how long an interrupted client waits for the server's `cancelled`


class _Interrupted(ClientError):
    """A signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED


class Speaking:
    """One run of `stream` or `say`."""

    def __init__(self, args: argparse.Namespace, plan: Plan, progress: Progress) -> None:
        self._args = args
        self._plan = plan
        self._progress = progress
        self._sinks: list[Sink] = []
        self._device: DeviceSink | None = None
        self._session: Session | None = None
        self._utterance: Utterance | None = None
        self._signal: int | None = None
        self._samples = 0
        self._text: list[str] = []
        self._words: list[tuple[int, int, int, int]] = []
        self._segment: SegmentBegin | None = None  # begun, and none of its words known yet
        self._pump: asyncio.Task[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._outage: asyncio.TimerHandle | None = None  # shows for how long the connection has been lost

    async def run(self) -> ExitCode:
        """Speaks. Every failure is told on stderr, in one line."""
        self._task = asyncio.current_task()
        began = time.monotonic()
        self._catch_signals()
        error: ClientError | None = None
        try:
            await self._speak()
            if self._signal is not None:
                raise _Interrupted(self._signal)
        except ClientError as failure:
            error = failure
        except asyncio.CancelledError:
            if self._signal is None:
                raise
            error = _Interrupted(self._signal)
        finally:
            if self._outage is not None:
                self._outage.cancel()
        return await self._conclude(error, time.monotonic() - began)

    async def _speak(self) -> None:
        plan, args = self._plan, self._args
        descriptor = None if plan.text is not None else open_text(plan.source)
        async with connect(
            args.url,
            voice=args.voice,
            language=args.language,
            speed=args.speed,
            pitch=args.pitch,
            volume=args.volume,
            format=plan.format,
            sample_rate=args.sample_rate,
            bitrate=args.bitrate,
            mode=args.mode,
            max_lead_ms=PLAY_LEAD_MS if plan.play else None,
            api_key=args.api_key,
            decode=plan.container != "ogg",
            busy_wait_s=args.busy_wait,
            resume=not args.no_resume,
            on_notice=self._notice,
        ) as session:
            self._session = session
            utterance = await session.start()
            self._utterance = utterance
            await self._open_sinks(session)
            pieces = _once(plan.text or "") if descriptor is None else read_text(descriptor, plan.source)
            if plan.rate is not None:
                pieces = paced(pieces, plan.rate)
            self._pump = asyncio.create_task(self._write(utterance, pieces), name="cosystream client text")
            try:
                await self._receive(utterance)
                if not isinstance(utterance.result, Cancelled):
                    await self._pump
                    for sink in self._sinks:
                        await sink.finish(utterance.statistics.samples)
            finally:
                self._pump.cancel()
                results = await asyncio.gather(self._pump, return_exceptions=True)
            if isinstance(results[0], ClientError):
                raise results[0]

    def _notice(self, text: str) -> None:
        """Something happened to the connection."""
        self._progress.say(text)
        if self._outage is not None:
            self._outage.cancel()
        self._show_outage()

    def _show_outage(self) -> None:
        """Once a second, as long as the outage lasts."""
        out_since = self._session.line.out_since if self._session is not None else None
        self._progress.trying(None if out_since is None else time.monotonic() - out_since)
        self._outage = None
        if out_since is not None:
            self._outage = asyncio.get_running_loop().call_later(OUTAGE_SHOWN_S, self._show_outage)

    async def _write(self, utterance: Utterance, pieces: AsyncIterator[str]) -> None:
        try:
            async for piece in pieces:
                if self._plan.captions is not None:
                    self._text.append(piece)
                await utterance.write(piece)
            await utterance.end()
        except ClientError:
            await utterance.cancel()  # no more text comes: ends `_receive`
            raise

    async def _receive(self, utterance: Utterance) -> None:
        assert self._session is not None
        rate, pre_skip = self._session.sample_rate, self._session.pre_skip
        async for item in utterance:
            if isinstance(item, Audio):
                for sink in self._sinks:
                    await sink.write(item)
                self._samples = max(0, item.end_sample - (pre_skip if item.packets else 0))
                self._progress.audio(self._samples / rate)
                continue
            if self._device is not None:
                self._device.told(item)
            if self._plan.captions is not None:
                self._take_words(item)

    def _take_words(self, event: object) -> None:
        """What captions are made of: words, or whole segments where the engine knows no word times."""
        match event:
            case SegmentBegin():
                while self._words and self._words[-1][3] > event.first_sample:
                    self._words.pop()  # another session says it again: what was announced of it did not sound
                if event.kind == "speech":
                    self._segment = event
            case Timing(words=words) if words:
                self._words += [(w.start, w.end, w.first_sample, w.end_sample) for w in words]
                self._segment = None
            case SegmentEnd(samples=samples) if samples and self._segment is not None:
                begin = self._segment
                self._words.append((begin.start, begin.end, begin.first_sample, begin.first_sample + samples))
                self._segment = None

    async def _open_sinks(self, session: Session) -> None:
        plan = self._plan
        output = plan.output
        if plan.captions is not None and not is_special(plan.captions):
            plan.captions.unlink(missing_ok=True)  # after a failure an older one would not fit the audio
        if plan.play:
            try:
                self._device = DeviceSink(self._played, PLAY_LEAD_MS // 2)
                await self._device.begin(session.sample_rate, session.pre_skip)
            except DeviceUnavailable as error:
                self._device = None
                output = output or plan.fallback
                self._progress.error(f"{error}; writing {output} instead" if plan.output is None else str(error))
        if output is not None:
            if output == STDOUT:
                sink: Sink = PipeSink(plan.container, sys.stdout.fileno())
            elif is_special(output):
                sink = PipeSink(plan.container, open_special(output), str(output))
            else:
                sink = FileSink(output, plan.container)
            self._sinks.append(sink)
            await sink.begin(session.sample_rate, session.pre_skip)
        if self._device is not None:
            self._played(0, 0, 0)
            self._sinks.append(self._device)  # last: files are complete before the last sound was heard

    def _played(self, sample: int, buffered_ms: int, stalls: int) -> None:
        if self._utterance is not None:
            self._utterance.played(sample, buffered_ms, stalls)

    # ---- signals ----

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)

    def _interrupt(self, number: int) -> None:
        """The first signal cancels on the server and ends in order; a second one, or no answer, ends at once."""
        assert self._task is not None
        if self._signal is not None or self._utterance is None:
            self._signal = number
            self._task.cancel()
            return
        self._signal = number
        played = self._device.played_sample if self._device is not None else self._samples
        complete = self._utterance.result is not None
        if self._device is not None:
            self._device.silence()
        self._utterance.cancel_now(played)
        if complete:
            self._task.cancel()  # everything was here: only the player still played
            return
        if self._pump is not None:
            self._pump.cancel()
        asyncio.get_running_loop().call_later(CANCEL_TIMEOUT_S, self._task.cancel)

    # ---- the end ----

    async def _conclude(self, error: ClientError | None, wall_s: float) -> ExitCode:
        interrupted = isinstance(error, _Interrupted)
        for sink in self._sinks:
            if error is None:
                continue
            try:
                await (sink.interrupt() if interrupted else sink.abandon())
            except ClientError as failure:
                error = failure if interrupted else error
        code = ExitCode.OK if error is None else error.code if isinstance(error, _Interrupted) else code_of(error)
        try:
            self._write_captions(error is None or interrupted)
            if self._plan.stats is not None:
                stalls = self._device.stalls if self._device is not None else None
                write_json(
                    self._plan.stats, report(self._session, self._utterance, self._samples, wall_s, stalls, error)
                )
        except ClientError as failure:
            error, code = (failure, code_of(failure)) if error is None else (error, code)
        if error is None:
            self._tell_success()
        else:
            self._tell_failure(error)
        return code

    def _write_captions(self, worthwhile: bool) -> None:
        if self._plan.captions is None or not worthwhile or self._session is None:
            return
        heard = [word for word in self._words if word[2] < self._samples]
        cues = make_cues(spoken_words("".join(self._text), heard, self._session.sample_rate))
        write_text(self._plan.captions, to_vtt(cues) if self._plan.caption_kind == "vtt" else to_srt(cues))

    def _tell_success(self) -> None:
        assert self._session is not None
        assert self._utterance is not None
        statistics = self._utterance.statistics
        if statistics.samples == 0:
            self._progress.say(f"{self._destination()}no audio: there is nothing to say in this text")
            return
        ttfa = statistics.ttfa_clause_s  # the writer's own slowness is not the server's
        first = f", first sound {ttfa * 1000:.0f} ms after its text" if ttfa is not None else ""
        self._progress.say(
            f"{self._destination()}{statistics.samples / self._session.sample_rate:.1f} s of audio{first}"
        )

    def _tell_failure(self, error: ClientError) -> None:
        if isinstance(error, _Interrupted):
            got = ""
            if self._session is not None and self._sinks:
                got = f": {self._destination()}the first {self._samples / self._session.sample_rate:.1f} s of audio"
            self._progress.say(f"{error}{got}")
            return
        kept = [sink.partial for sink in self._sinks if isinstance(sink, FileSink) and sink.partial.exists()]
        partial = f" (what came is in {kept[0]})" if kept else ""
        self._progress.error(f"error: {error}{partial}")

    def _destination(self) -> str:
        return "".join(f"{sink.path}: " for sink in self._sinks if isinstance(sink, FileSink))


async def _once(text: str) -> AsyncIterator[str]:
    yield text


def check_text(text: str) -> str:
    """The text of `say`. Raises UsageError where the shell gave bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the text is not UTF-8: character {error.start} cannot be read; check the terminal") from None
    return text
