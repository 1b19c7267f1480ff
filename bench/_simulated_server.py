"""The server in virtual time: the real `Session`, a modelled engine, and a shell that gives sessions their connections.

It does what `server.gateway` does: lets clients in, gives a resumed session its new connection and cuts the old one,
renders one segment at a time, and keeps sessions without connection until they expire.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest import mock

from bench._simulated_clock import Alarm, Clock
from bench._simulated_speech import EngineModel, StandInEncoder
from bench._simulated_tcp import Endpoint
from protocol import client_messages as c
from protocol.codec import decode_client
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import Codec, unpack_packets
from server.audio.wire import CodedAudio, WireCoder
from server.engines.base import Capabilities
from server.engines.rendering import RenderedChunk
from server.session import Policy, ResumeRefused, Session, SpeakSegment, SpeakSilence, Work
from server.session.states import State

SILENCE_PIECE_MS: Final = 1_000  # as the server's renderer places silence
TICKS_AT_ONCE: Final = 1_000  # a session that asks for so many at one moment would spin


class FenceBroken(Exception):
    """The server wrote to a connection that no longer carries the session."""


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

    def __init__(self, server: "Server", session: Session) -> None:
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


class Connection:
    """One connection's shell."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._speaker: Speaker | None = None

    def opened(self, end: Endpoint) -> None:
        """See Handler. A new connection has a session of its own until it asks for another."""
        self._speaker = self._server.new_speaker()
        self._speaker.attach(end)

    def received(self, end: Endpoint, message: str | bytes) -> None:
        """See Handler."""
        speaker = self._speaker
        if speaker is None or speaker.end is not end:
            return  # cut, and what was in flight came all the same
        decoded = decode_client(message)
        if isinstance(decoded, c.Open):
            self._server.speakers[speaker.session.id] = speaker
        if isinstance(decoded, c.Resume):
            self._resume(end, speaker, decoded)
        else:
            speaker.receive(decoded)

    def writable(self, end: Endpoint) -> None:
        """See Handler."""
        if self._speaker is not None and self._speaker.end is end:
            self._speaker.pump()

    def closed(self, end: Endpoint, code: int | None, reason: str) -> None:
        """See Handler."""
        if self._speaker is not None:
            self._speaker.lost(end)

    def _resume(self, end: Endpoint, fresh: Speaker, message: c.Resume) -> None:
        server = self._server
        speaker = server.speakers.get(message.session)
        try:
            if speaker is None:
                raise ResumeRefused("unknown")
            if not speaker.session.accepts(message.token):
                raise ResumeRefused("auth")
            speaker.session.resume(message, server.new_token(), server.clock.now)
        except ResumeRefused as refusal:
            fresh.session.refuse(refusal)
            server.refusals.append((refusal.reason, message.token))
            fresh.pump()
            return
        fresh.end, fresh.is_gone = None, True
        self._speaker = speaker
        speaker.attach(end)


class Server:
    """Accepts connections. `observed` is called after everything a session did."""

    def __init__(
        self,
        clock: Clock,
        policy: Policy,
        capabilities: Capabilities,
        engine: EngineModel | None = None,
        observed: Callable[[Speaker], None] | None = None,
    ) -> None:
        self.clock = clock
        self.engine = engine or EngineModel()
        self.speakers: dict[str, Speaker] = {}  # those that were opened, by session
        self.refusals: list[tuple[str, str]] = []  # (reason, token)
        self.expired = 0
        self.audio_bytes = 0  # frames handed to connections
        self.tapped: Callable[[Speaker, str | bytes], None] | None = None
        self._policy = policy
        self._capabilities = capabilities
        self._observed = observed
        self._numbers = 0

    def accept(self) -> Connection:
        """For a new connection."""
        return Connection(self)

    def new_token(self) -> str:
        """As unique as it must be here."""
        self._numbers += 1
        return f"token {self._numbers}"

    def new_speaker(self) -> Speaker:
        """A session that nothing was said to."""
        self._numbers += 1
        name = f"session {self._numbers}"
        session = Session(self._policy, self._capabilities, session_id=name, token=self.new_token(), now=self.clock.now)
        return Speaker(self, session)

    def write(self, speaker: Speaker, end: Endpoint, data: str | bytes) -> None:
        """Send something of a session."""
        if speaker.end is not end or not speaker.session.attached:
            raise FenceBroken(f"{speaker.session.id} wrote to a connection that it lost")
        if isinstance(data, bytes):
            self.audio_bytes += len(data)
        if self.tapped is not None:
            self.tapped(speaker, data)
        end.write(data)

    def observe(self, speaker: Speaker) -> None:
        """Something happened."""
        if self._observed is not None:
            self._observed(speaker)

    def forget(self, speaker: Speaker) -> None:
        """A session without connection has expired."""
        speaker.is_gone = True
        self.speakers.pop(speaker.session.id, None)
        self.expired += 1


@contextmanager
def stand_in_opus() -> Iterator[None]:
    """Meanwhile the server's coders make stand-in packets: places and checksums instead of sound."""
    with mock.patch("server.audio.wire.OpusCoder", StandInEncoder):
        yield
