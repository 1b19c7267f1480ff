"""The server in virtual time: the real `Session`, a modelled engine, and a shell that gives sessions their connections.

It does what `server.gateway` does: lets clients in, gives a resumed session its new connection and cuts the old one,
renders one segment at a time, and keeps sessions without connection until they expire.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from bench._simulated_clock import Clock
from bench._simulated_speaker import Speaker
from bench._simulated_speech import EngineModel, StandInEncoder
from bench._simulated_tcp import Endpoint
from protocol import client_messages as c
from protocol.codec import decode_client
from server.engines.base import Capabilities
from server.session import Policy, ResumeRefused, Session


class FenceBroken(Exception):
    """The server wrote to a connection that no longer carries the session."""


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
