"""One session of the modelled server: the real `Session`, its engine's work, and the connection that carries it."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from bench._simulated_clock import Alarm, Clock
from bench._simulated_speech import EngineModel
from bench._simulated_tcp import Endpoint
from protocol import client_messages as c
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import Codec, unpack_packets
from server.audio.wire import CodedAudio, WireCoder
from server.engines.rendering import RenderedChunk
from server.session import Session, SpeakSegment, SpeakSilence, Work
from server.session.states import State

SILENCE_PIECE_MS: Final = 1_000  # as the server's renderer places silence
TICKS_AT_ONCE: Final = 1_000  # a session that asks for so many at one moment would spin


class Owner(Protocol):
    """The server that a session belongs to."""

    clock: Clock
    engine: EngineModel

    def write(self, speaker: "Speaker", end: Endpoint, data: str | bytes) -> None:
        """Send something of a session."""

    def observe(self, speaker: "Speaker") -> None:
        """Something happened."""

    def forget(self, speaker: "Speaker") -> None:
        """A session without connection has expired."""


@dataclass(slots=True)
class Made:
    """One utterance's timeline as the server made it."""

    pcm: bytearray = field(default_factory=bytearray)
    packets: dict[int, bytes] = field(default_factory=dict)
    opus_from: int | None = None  # format auto: the timeline sample where PCM ended
    plans: list[str] = field(default_factory=list)  # of each segment
    cuts: list[tuple[int, int]] = field(default_factory=list)


class Speaker:
    """A session, its engine's work, and the connection that carries it now."""

    def __init__(self, server: Owner, session: Session) -> None:
        self.session = session
        self.made: dict[int, Made] = {}
        self.end: Endpoint | None = None
        self.peak_ring_bytes = 0
        self.is_gone = False
        self._server = server
        self._clock = server.clock
        self._alarm = Alarm(server.clock, self._tick)
        self._ticks = 0
        self._ticked_at = -1.0
        self._work: Work | None = None
        self._pieces: deque[tuple[float, RenderedChunk]] = deque()
        self._computing = False
        self._placed = False  # something of the work in hand
        self._coder: WireCoder | None = None
        self._coded_utterance = 0

    # ---- connections ----

    def receive(self, message: c.ClientMessage) -> None:
        """A message of the connection that carries the session."""
        self.session.receive(message, self._clock.now)
        self.pump()

    def attach(self, end: Endpoint) -> None:
        """From now on this connection carries the session; the one before is cut."""
        before, self.end = self.end, end
        if before is not None:
            before.abort()
        self.pump()

    def lost(self, end: Endpoint) -> None:
        """A connection is gone."""
        if self.end is not end:
            return
        self.end = None
        if self.session.state is State.AWAITING_OPEN:
            self.is_gone = True  # nothing was said, nothing is kept
        else:
            self.session.detach(self._clock.now)
            self.pump()

    def pump(self) -> None:
        """Render, send, and set the timer."""
        if self.is_gone:
            return
        session, now = self.session, self._clock.now
        while True:
            self._render()
            if self.end is None or not self.end.is_writable:
                break
            data = session.next_outgoing(now)
            if data is None:
                break
            self._server.write(self, self.end, data)
        ring = session.delivery.ring
        if ring.bytes > self.peak_ring_bytes:
            self.peak_ring_bytes = ring.bytes
        self._server.observe(self)
        self._alarm.set(session.deadline())

    def _tick(self) -> None:
        session, now = self.session, self._clock.now
        if self.is_gone:
            return
        self._ticks = self._ticks + 1 if now == self._ticked_at else 0
        self._ticked_at = now
        if self._ticks > TICKS_AT_ONCE:
            raise RuntimeError(f"at {now:.3f} s the session asks again and again for a time that has passed")
        if not session.attached and now >= session.expires_at:
            self._server.forget(self)
            return
        try:
            session.on_time(now)
        except ProtocolError as error:
            if error.code is not ErrorCode.OPEN_TIMEOUT:
                raise
            self._cut()
            return
        if session.dead:
            self._cut()
        self.pump()

    def _cut(self) -> None:
        if self.end is not None:
            end = self.end
            end.abort()
            self.lost(end)

    # ---- rendering ----

    def _render(self) -> None:
        """Begin what there is to do, as far as nothing is in hand."""
        while not self._computing:
            session = self.session
            if self._work is not None and not session.is_current(self._work):
                self._work = None
                self._pieces.clear()
            work = self._work
            if work is None:
                self._work = work = session.next_work(self._clock.now)
                if work is None:
                    return
                self._pieces = deque(self._pieces_of(work))
                self._placed = False
                self._note(work)
            if not self._pieces:
                self._complete(work)
            elif session.wants_audio or not self._placed:  # it was asked for because there is room
                self._computing = True
                self._clock.after(self._pieces[0][0], self._computed)
                return
            else:
                return

    def _computed(self) -> None:
        self._computing = False
        work = self._work
        if work is not None and self.session.is_current(work):
            _, chunk = self._pieces.popleft()
            coder = self._coder_of(work)
            fresh = self.session.fresh(work, chunk.pcm)
            coded = coder.silence(len(fresh) // 2) if isinstance(work, SpeakSilence) else coder.push(fresh)
            self._made(work, chunk.pcm, coded)
            self.session.place(work, chunk, coded, self._clock.now)
            self._placed = True
        self.pump()

    def _complete(self, work: Work) -> None:
        self._work = None
        is_part = isinstance(work, SpeakSegment | SpeakSilence)
        coded = [] if is_part else self._coder_of(work).finish()
        self._made(work, b"", coded)
        self.session.complete(work, coded, self._clock.now)

    def _pieces_of(self, work: Work) -> Iterator[tuple[float, RenderedChunk]]:
        if isinstance(work, SpeakSegment):
            yield from self._server.engine.pieces(work.request)
        elif isinstance(work, SpeakSilence):
            assert self.session.config is not None
            piece = self.session.config.open.sample_rate * SILENCE_PIECE_MS // 1000
            for at in range(0, work.samples, piece):
                yield 0.0, RenderedChunk(bytes(2 * min(piece, work.samples - at)))

    def _coder_of(self, work: Work) -> WireCoder:
        if self._coder is None or self._coded_utterance != work.utterance:
            self._coder = self.session.coder(work)
            self._coded_utterance = work.utterance
        bitrate, opus = self.session.coder_wish()
        self._coder.adapt(bitrate, opus=opus)
        return self._coder

    # ---- what was made, to compare with ----

    def _note(self, work: Work) -> None:
        made = self.made.setdefault(work.utterance, Made())
        if isinstance(work, SpeakSegment):
            made.plans.append(work.request.plan.mode)
            made.cuts.append((work.request.cut.start, work.request.cut.end))

    def _made(self, work: Work, pcm: bytes, coded: list[CodedAudio]) -> None:
        made = self.made[work.utterance]
        at = len(made.pcm) // 2
        made.pcm += pcm
        for audio in coded:
            if audio.codec is Codec.OPUS:
                if made.opus_from is None:
                    made.opus_from = at
                packets = unpack_packets(audio.payload)
                for packet in packets:
                    made.packets[int.from_bytes(packet[:4], "big")] = packet
