"""`POST /v1/speak`: one text in, its audio as the streamed response.

The same session machine as on the WebSocket does the work; here it collects audio and acks it itself, so a slow reader slows
the engine down and one who leaves stops it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.codec import decode_client, decode_server
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import AudioFrame, FrameFlag, decode_frame, unpack_packets
from protocol.media.ogg import OggOpusWriter
from protocol.media.wav import streaming_header
from server.cluster.base import EnginePool
from server.gateway.auth import Principals
from server.gateway.http import error_response
from server.gateway.rendering import Renderer
from server.session import Policy, Session

log = structlog.get_logger(__name__)

FORMATS: Final = {"wav": "audio/wav", "pcm": "audio/pcm", "opus": "audio/ogg"}
SESSION_FIELDS: Final = ("voice", "language", "speed", "pitch", "volume", "sample_rate", "bitrate")
FRAME_MS_PCM: Final = 100.0  # a piece of the response


class SpeakState(Protocol):
    """What the server offers to this route."""

    @property
    def pool(self) -> EnginePool | None: ...

    @property
    def policy(self) -> Policy | None: ...

    @property
    def principals(self) -> Principals: ...

    def admit(self) -> bool: ...

    def release(self) -> None: ...


class Speech:
    """One text being spoken into a response body."""

    def __init__(self, pool: EnginePool, policy: Policy, open_: c.Open, text: str, container: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._container = container
        self._session = Session(
            policy, pool.capabilities, session_id=secrets.token_urlsafe(12), token="", now=self._loop.time()
        )
        self._renderer = Renderer(self._session, pool, self._changed.set)
        self._ogg: OggOpusWriter | None = None
        self._pre_skip = 0
        messages: list[c.ClientMessage] = [open_, c.Start(1, 1)]
        for at in range(0, len(text), limits.MAX_TEXT_CHARS):
            messages.append(c.Text(len(messages), text[at : at + limits.MAX_TEXT_CHARS]))
        messages.append(c.End(len(messages)))
        for message in messages:
            self._session.receive(message, self._loop.time())
        self.sample_rate = open_.sample_rate

    async def body(self) -> AsyncIterator[bytes]:
        """The response body. Raises ProtocolError where the engine fails."""
        rendering = asyncio.ensure_future(self._renderer.run())
        changed: asyncio.Future[Any] | None = None
        try:
            if self._container == "wav":
                yield streaming_header(self.sample_rate)
            while True:
                data = self._session.next_outgoing(self._loop.time())
                if data is not None:
                    self._renderer.wake()
                    if isinstance(data, str):
                        message = decode_server(data)
                        if isinstance(message, s.Opened):
                            self._pre_skip = message.pre_skip
                        elif isinstance(message, s.Done):
                            for page in self._close_container(message.samples):
                                yield page
                            return
                    elif piece := self._contain(decode_frame(data)):
                        yield piece
                    continue
                self._changed.clear()
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait((rendering, changed), return_when=asyncio.FIRST_COMPLETED)
                if rendering.done():
                    rendering.result()
        finally:
            for task in (rendering, changed):
                if task is not None:
                    task.cancel()
            await asyncio.gather(rendering, return_exceptions=True)

    def _contain(self, frame: AudioFrame) -> bytes:
        self._session.receive(c.Ack(1, frame.utterance, frame.end_sample), self._loop.time())
        if frame.flags & FrameFlag.SILENCE_RUN:
            return bytes(2 * frame.count)
        if self._container != "opus":
            return bytes(frame.payload)
        if self._ogg is None:
            self._ogg = OggOpusWriter(self.sample_rate, self._pre_skip)
        return self._ogg.write(unpack_packets(frame.payload), frame.count)

    def _close_container(self, samples: int) -> list[bytes]:
        if self._container != "opus":
            return []
        if self._ogg is None:
            self._ogg = OggOpusWriter(self.sample_rate, self._pre_skip)
        return [self._ogg.finish(samples)]


def speak_routes(state: SpeakState) -> list[Route]:
    """The route, for `build_app`."""

    async def speak(request: Request) -> Response:
        key = request.headers.get("authorization")
        if state.principals.authenticate(key) is None:
            return error_response(401, ErrorCode.UNAUTHORIZED, "an API key is needed: `Authorization: Bearer KEY`")
        if state.pool is None or state.policy is None:
            return error_response(503, "loading", "the engine is loading", headers={"Retry-After": "1"})
        try:
            body = await request.body()
            open_, text, container = parse(body)
            if not state.admit():
                return error_response(503, "busy", "too many sessions", headers={"Retry-After": "2"})
            released = False
        except ProtocolError as error:
            return error_response(400, error.code, error.message, error.field)
        stream = None
        try:
            stream = Speech(state.pool, state.policy, open_, text, container).body()
            first = await anext(stream, b"")
        except ProtocolError as error:
            state.release()
            status = 500 if error.code is ErrorCode.ENGINE_FAILED else 400
            return error_response(status, error.code, error.message, error.field)
        except BaseException:
            state.release()
            raise
        del released

        async def streamed() -> AsyncIterator[bytes]:
            try:
                yield first
                async for piece in stream:
                    yield piece
            finally:
                await stream.aclose()
                state.release()

        return StreamingResponse(streamed(), media_type=FORMATS[container])

    return [Route("/v1/speak", speak, methods=["POST"])]
