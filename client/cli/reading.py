"""A text of any length read aloud: by one session or several, in one utterance or several, into one file."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

from client.cli.caption_file import CaptionFile, CaptionMark
from client.cli.feed import Feed
from client.cli.keeper import Keeper, PrefixHash
from client.cli.ledger import START, Degraded, Ledger, Place
from client.cli.opening import check_unchanged, first_state, give_name, lost_file, open_session, usable
from client.cli.outputs import Outputs
from client.cli.plan import Plan
from client.cli.progress import Progress
from client.cli.report import Totals
from client.cli.text_input import TextInput
from client.cli.text_source import paced
from client.continuing import FUTILE_RESTARTS
from client.errors import ClientError, ServerLost, SessionGone, why_gone
from client.items import Audio
from client.saved import Blocks, SavedSession
from client.shell import Session
from client.utterance import Utterance
from protocol import limits
from protocol.server_messages import Cancelled, SegmentEnd

BLOCK_CHARS: Final = 4_096  # of a text that is at hand, in one message


class Reading:
    """`samples`: in the outputs, of the whole text."""

    def __init__(self, args: argparse.Namespace, plan: Plan, progress: Progress, notice: Callable[[str], None]) -> None:
        self.session: Session | None = None
        self.outputs = Outputs(plan, args.bitrate, self._played)
        self.totals = Totals()
        self.begun_at = plan.state.whole if plan.state is not None else START  # by an earlier run
        self.samples = self.begun_at.samples
        self._args = args
        self._plan = plan
        self._progress = progress
        self._notice = notice
        self._ledger = Ledger(self.begun_at)
        self._captions: CaptionFile | None = None
        self._keeper: Keeper | None = None
        self._text = TextInput(args, plan, progress.say)
        self._feed: Feed
        self._utterance: Utterance | None = None
        self._pump: asyncio.Task[None] | None = None
        self._mark: CaptionMark | None = None  # where captions go on
        self._told_new = False  # that a new session goes on
        self._manner: dict[str, Any] = {"instruct": args.instruct, "seed": args.seed}  # of each utterance

    @property
    def audio_s(self) -> float:
        """Seconds of audio in the outputs."""
        return self.samples / (self._args.sample_rate if self.session is None else self.session.sample_rate)

    @property
    def is_writing(self) -> bool:
        """Whether there was an output to write to."""
        return self.session is not None and self.outputs.is_open

    @property
    def can_go_on(self) -> bool:
        """Whether another run can, from the state of this one."""
        return self._keeper is not None and self._keeper.path.exists() and lost_file(self._plan) is None

    @property
    def lost_file(self) -> Path | None:
        """The file without which no other run can."""
        return lost_file(self._plan) if self._keeper is not None and self._keeper.path.exists() else None

    @property
    def degraded(self) -> Degraded:
        """What of it does not sound as it should."""
        return self._ledger.degraded

    @property
    def needs_text_again(self) -> bool:
        """Whether that run must be given the text."""
        return self._text.is_stdin

    async def run(self) -> None:
        """Reads all of it. Raises ClientError."""
        state = self._plan.state
        if state is not None and state.is_complete:
            self.outputs.file, self.samples = await give_name(self._plan, state), state.samples
            return None
        if state is not None:
            self.outputs.claim()
            check_unchanged(self._plan)
        pieces = await self._text.open()
        saved: SavedSession | None = None
        if state is not None:
            self.begun_at, self._mark, saved = await asyncio.to_thread(usable, self._args, self._plan)
            self._ledger.whole = self._ledger.begun = self.begun_at
        futile, before = 0, self._ledger.whole
        while True:
            try:
                return await self._in_a_session(saved, pieces)
            except SessionGone as gone:
                if not self._text.is_at_hand:
                    raise
                if self._keeper is not None:
                    self._ledger.whole, self._mark = self._keeper.state.whole, self._keeper.state.caption_mark
                futile = 0 if self._ledger.whole != before else futile + 1
                before = self._ledger.whole
                self.totals.restarts += 1
                if futile > FUTILE_RESTARTS:
                    text = f"the server failed {futile} times at character {before.text}: see its log"
                    raise ServerLost(text) from None
                self._told_new = True
                at_s = before.samples / self._args.sample_rate
                self._notice(
                    f"{why_gone(gone.reason)}: going on with a new one, at {at_s:.1f} s, from character {before.text}"
                )
            saved, pieces = None, await self._text.open()

    def cancel(self) -> bool:
        """The listener wants no more. False: nobody need be waited for."""
        utterance, device = self._utterance, self.outputs.device
        if utterance is None:
            return False
        played = self.samples - self._ledger.begun.samples
        complete = utterance.result is not None
        if device is not None:
            played = device.played_sample
            device.silence()
        utterance.cancel_now(played)
        if self._pump is not None:
            self._pump.cancel()
        return not complete

    def leave_nothing(self) -> None:
        """Nothing was spoken, and nothing can be, of this text: what `end` left of a new file goes."""
        file = self.outputs.file
        if self._plan.state is not None or self.samples or file is None:
            return
        if self._keeper is not None:
            self._keeper.remove()
        for path in (file.partial, *([self._captions.partial] if self._captions is not None else [])):
            with suppress(OSError):
                path.unlink()

    async def end(self, *, interrupted: bool) -> ClientError | None:
        """It did not come to its end. Leaves what is there as it should be; gives what went wrong with that."""
        failure: ClientError | None = None
        try:
            if self._keeper is not None:
                await self._keeper.leave(cancelled=interrupted)
        except ClientError as error:
            failure = error
        failure = await self.outputs.end(interrupted=interrupted) or failure
        captions = self._captions
        if captions is not None:
            try:
                if interrupted:
                    captions.words(self._ledger.advance(self.samples) + self._ledger.rest(self.samples))
                    captions.finish()
                else:
                    captions.abandon(keep=self.can_go_on)
            except ClientError as error:
                failure = failure or error
        return failure

    # ---- sessions ----

    @asynccontextmanager
    async def _measured(self, session: Session) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.totals.add_line(session.line, monotonic())

    async def _in_a_session(self, saved: SavedSession | None, pieces: AsyncIterator[str]) -> None:
        restart = not (self._plan.keeps_state and self._text.is_at_hand)
        opening = open_session(self._args, self._plan, saved, self._notice, restart=restart)
        async with opening as (session, utterance, sent), self._measured(session):
            self.session = session
            self._feed = Feed(pieces)
            state, whole = self._plan.state, self._ledger.whole
            if saved is not None and state is not None and sent is not None:
                at_sample, text = state.samples, state.begun.text + sent.text_end
                self._ledger.begin(state.begun, saved.segments, saved.event, saved.told)
                self._progress.say(f"going on in the same session, at {at_sample / session.sample_rate:.1f} s")
            else:
                at_sample, text = whole.samples, whole.text
                self._ledger.begin(whole)
                if state is not None and self._keeper is None and not self._told_new:
                    at_s = at_sample / session.sample_rate
                    self._progress.say(f"going on with a new session, at {at_s:.1f} s, from character {text}")
            self.samples = at_sample
            self._progress.begin(self.audio_s, self._ledger.spoken(at_sample), self._text.characters)
            utterance = utterance or await session.start(**self._manner)
            self._utterance = utterance
            await self._begin_outputs(session, at_sample)
            prefix = await self._text.skip(self._feed, text, self._captions)
            if prefix is not None and self._keeper is not None:
                self._keeper.prefix = prefix
            if self._plan.rate is not None:
                self._feed = Feed(paced(self._feed.rest(), self._plan.rate), self._feed.position)
            opened_at, blocks = at_sample, saved.blocks if saved is not None else None
            while True:
                if not await self._read_utterance(session, utterance, blocks):
                    return
                total = self._ledger.begun.samples + utterance.statistics.samples
                self.samples = total
                self._advance(total)
                if await self._feed.is_over():
                    break
                place = Place(self._feed.position, total)
                self._ledger.whole = place
                self._ledger.begin(place, event=self._ledger.event, told=0)
                self._utterance = utterance = await session.start(**self._manner)
                if self._keeper is not None:
                    self._keeper.let_go()
                await self.outputs.reopen(total, total - opened_at)
                opened_at, blocks = total, None
            await self._finish(total - opened_at)

    async def _begin_outputs(self, session: Session, at_sample: int) -> None:
        plan = self._plan
        if self._keeper is not None:
            self._keeper.let_go()
        if self.outputs.is_open:  # an earlier session ended too soon
            await self.outputs.reopen(at_sample)
        else:
            await self.outputs.begin(session.sample_rate, session.pre_skip, at_sample, self._progress.error)
        if self._captions is not None:
            self._captions.abandon(keep=True)
        if plan.captions is not None:
            self._captions = CaptionFile(plan.captions, plan.caption_kind, session.sample_rate, self._mark)
        if plan.keeps_state and self._keeper is None:
            assert plan.output is not None
            state = first_state(self._args, plan, self._text.source, self._text.encoding, session)
            self._keeper = Keeper(plan.output, state, self._ledger, self._advance)
            if self.needs_text_again:
                self._keeper.prefix = PrefixHash()
        if self._keeper is not None:
            self._keeper.captions = self._captions

    # ---- one utterance ----

    async def _read_utterance(self, session: Session, utterance: Utterance, blocks: Blocks | None) -> bool:
        """False: it was cancelled. Raises ClientError."""
        keeper, file = self._keeper, self.outputs.file
        keeping: asyncio.Task[None] | None = None
        size = min(BLOCK_CHARS, session.limits.get("text_chars", limits.MAX_TEXT_CHARS))
        size = min(size, session.limits.get("text_window_chars", size))
        if keeper is not None and file is not None:
            blocks = blocks or Blocks(session.next_seq, size)
            resumable = (
                self._text.is_at_hand and session.config.get("format") == "pcm" and session.limits.get("resume_ttl_ms")
            )
            await keeper.follow(session, utterance, file, blocks if resumable else None)
            keeping = asyncio.create_task(keeper.run(), name="cosystream client state")
        self._pump = asyncio.create_task(self._write(session, utterance, blocks, size), name="cosystream client text")
        tasks = [self._pump, *([keeping] if keeping is not None else [])]
        try:
            await self._receive(session, utterance)
            if isinstance(utterance.result, Cancelled):
                return False
            await self._pump
            if keeper is not None:
                await keeper.checkpoint()
            return True
        finally:
            self.totals.add(utterance.statistics)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    async def _write(self, session: Session, utterance: Utterance, blocks: Blocks | None, size: int) -> None:
        if utterance.is_ended:
            return
        limit = session.limits.get("utterance_chars", limits.MAX_UTTERANCE_CHARS)
        is_last = False
        try:
            while not is_last:
                written = self._feed.position - self._ledger.begun.text
                if self._text.is_at_hand:
                    text, is_last = await self._feed.block(blocks.size if blocks else size, limit - written)
                    if is_last and blocks is not None and self._keeper is not None:
                        last_seq = session.next_seq - (not text)
                        await self._keeper.announce(replace(blocks, last_seq=last_seq, text_end=written + len(text)))
                else:
                    text, is_last = await self._feed.piece(limit - written)
                if self._captions is not None:
                    self._captions.text(text)
                if self._keeper is not None and self._keeper.prefix is not None:
                    self._keeper.prefix.write(text)
                await (utterance.write_whole(text) if self._text.is_at_hand and text else utterance.write(text))
            await utterance.end()
        except Exception:
            await utterance.cancel()  # no more text comes: ends `_receive`
            raise

    async def _receive(self, session: Session, utterance: Utterance) -> None:
        begun, keeper = self._ledger.begun.samples, self._keeper
        async for item in utterance:
            if isinstance(item, Audio):
                await self.outputs.write(item)
                self.samples = begun + max(0, item.end_sample - (session.pre_skip if item.packets else 0))
                if self._progress.is_due:
                    self._progress.text(self._ledger.spoken(self.samples))
                self._progress.audio(self.samples / session.sample_rate)
            else:
                if self.outputs.device is not None:
                    self.outputs.device.told(item)
                self._ledger.take(item)
                if keeper is None and isinstance(item, SegmentEnd):
                    self._advance(self.samples)
            if keeper is not None:
                keeper.took()

    def _advance(self, samples: int) -> None:
        """So many samples are safe."""
        words = self._ledger.advance(samples)
        if self._captions is not None:
            self._captions.words(words)
        self._progress.text(self._ledger.spoken(samples))

    def _played(self, sample: int, buffered_ms: int, stalls: int) -> None:
        if self._utterance is not None:
            self._utterance.played(sample, buffered_ms, stalls)

    # ---- the end ----

    async def _finish(self, samples: int) -> None:
        """All of it was spoken. Raises OutputFailed."""
        if self._captions is not None:
            self._captions.finish()
            self._captions = None
        if self._keeper is not None:
            self._keeper.complete(self.samples)
        await self.outputs.finish(samples)
        if self._keeper is not None:
            self._keeper.remove()
