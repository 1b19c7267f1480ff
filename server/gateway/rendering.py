"""Moves work from a session to the engine pool and rendered audio back."""

import asyncio
from collections.abc import Callable
from functools import partial

from server.audio.wire import CodedAudio, WireCoder
from server.cluster.base import EnginePool, PoolUnavailable, SegmentStream, Urgency, WorkerLost
from server.engines.base import EngineError
from server.engines.rendering import RenderedChunk
from server.gateway.prefetch import Prefetched
from server.gateway.turns import Turns
from server.session import Session, SpeakSegment, SpeakSilence, Work
from server.text.pacing import least_duration

SILENCE_PIECE_MS = 1_000  # silence is placed in pieces, so that it waits for room like speech does


class Renderer:
    """Renders one session's text, one segment at a time, for as long as `run` runs.

    `changed` is called whenever there is something new to send; call `wake` whenever the session may have work or room.
    `waited(utterance, seconds)` is told how long each chunk took to come from the engine.
    """

    def __init__(
        self, session: Session, pool: EnginePool, changed: Callable[[], None], waited: Callable[[int, float], None]
    ) -> None:
        self._session = session
        self._pool = pool
        self._changed = changed
        self._waited = waited
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._work: Work | None = None
        self._stream: SegmentStream | None = None
        self._ahead: tuple[SpeakSegment, Prefetched] | None = None
        self._coder: WireCoder | None = None
        self._coded_utterance = 0

    def wake(self) -> None:
        """Look again: text, room or a cancel may have come."""
        self._event.set()
        if self._stream is not None and self._work is not None and not self._session.is_current(self._work):
            self._stream.cancel()
        if self._ahead is not None:
            ahead = self._ahead[0]
            if not (self._session.is_ahead(ahead) or self._session.is_current(ahead)):
                self._leave_ahead()

    async def run(self) -> None:
        """Render until cancelled. Raises ProtocolError (engine_failed) where a segment cannot be rendered."""
        try:
            await self._run()
        finally:
            self._leave_ahead()

    async def _run(self) -> None:
        turns = Turns()
        while True:
            await turns.step()
            work = self._session.next_work(self._loop.time())
            if work is None:
                self._event.clear()
                await self._event.wait()
                continue
            self._changed()  # there is room for more text
            try:
                await self._render(work)
            except (EngineError, WorkerLost, PoolUnavailable) as error:
                if self._session.is_current(work):
                    raise self._session.failed(work, error) from error

    async def _render(self, work: Work) -> None:
        config = self._session.config
        assert config is not None  # there is no work before `open`
        coder = self._coder_of(work)
        if isinstance(work, SpeakSegment):
            await self._speak(work, coder)
            self._complete(work, [])
        elif isinstance(work, SpeakSilence):
            piece = config.open.sample_rate * SILENCE_PIECE_MS // 1000
            for at in range(0, work.samples, piece):
                pcm = bytes(2 * min(piece, work.samples - at))
                count = len(self._session.fresh(work, pcm)) // 2
                coded = await self._code(coder, partial(coder.silence, count))
                await self._place(work, RenderedChunk(pcm), coded)
            self._complete(work, [])
        else:
            self._complete(work, await self._code(coder, coder.finish))

    async def _speak(self, work: SpeakSegment, coder: WireCoder) -> None:
        request = work.request
        stream = self._take_ahead(work) or self._pool.synthesize(request, principal=self._session.principal)
        self._stream, self._work = stream, work
        lasts_s = least_duration(request.cut.text, request.cut.boundary) / request.speed
        self._look_ahead(lasts_s)
        try:
            stream.urgency = self._urgency()
            asked = self._loop.time()
            async for chunk in stream:
                self._waited(work.utterance, self._loop.time() - asked)
                fresh = self._session.fresh(work, chunk.pcm)
                coded = await self._code(coder, partial(coder.push, fresh))
                await self._place(work, chunk, coded)
                if not self._session.is_current(work):
                    return
                lasts_s -= chunk.samples / request.sample_rate
                self._look_ahead(lasts_s)
                stream.urgency = self._urgency()
                asked = self._loop.time()
        finally:
            self._stream = self._work = None
            stream.cancel()

    def _look_ahead(self, rest_s: float) -> None:
        """Begin with the segment behind the one in hand, where the session has one. `rest_s`: what is left of that one
        lasts so long, at the least.
        """
        if self._ahead is None and (ahead := self._session.look_ahead()) is not None:
            stream = self._pool.synthesize(ahead.request, principal=self._session.principal)
            due = self._loop.time() + self._session.slack_s + max(0.0, rest_s)
            self._ahead = ahead, Prefetched(stream, due=due, sample_rate=ahead.request.sample_rate)
            self._changed()  # there is room for more text

    def _take_ahead(self, work: SpeakSegment) -> Prefetched | None:
        """What was begun of `work` before its turn."""
        if self._ahead is None or self._ahead[0] is not work:
            self._leave_ahead()
            return None
        stream, self._ahead = self._ahead[1], None
        return stream

    def _leave_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead[1].cancel()
            self._ahead = None

    def _urgency(self) -> Urgency:
        slack_s = self._session.slack_s
        return Urgency(self._loop.time() + slack_s, first=not slack_s)

    async def _place(self, work: Work, chunk: RenderedChunk, coded: list[CodedAudio]) -> None:
        """Hand audio over, then wait while there is no room for more."""
        self._session.place(work, chunk, coded, self._loop.time())
        self._changed()
        while self._session.is_current(work) and not self._session.wants_audio:
            self._event.clear()
            await self._event.wait()

    def _complete(self, work: Work, coded: list[CodedAudio]) -> None:
        self._session.complete(work, coded, self._loop.time())
        self._changed()

    async def _code(self, coder: WireCoder, code: Callable[[], list[CodedAudio]]) -> list[CodedAudio]:
        """Code as the link asks for: here if that costs nothing, else off the event loop."""
        bitrate, opus = self._session.coder_wish()
        coder.adapt(bitrate, opus=opus)
        return code() if coder.cheap else await asyncio.to_thread(code)

    def _coder_of(self, work: Work) -> WireCoder:
        if self._coder is None or self._coded_utterance != work.utterance:
            self._coder = self._session.coder(work)
            self._coded_utterance = work.utterance
        return self._coder
