"""`POST /v1/speak`: one text in, its audio as the streamed response.

The same session machine as on the WebSocket does the work; here it collects audio and acks it itself, so a slow
reader slows the engine down and one who leaves stops it.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from typing import Any, Final, Protocol

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.codec import decode_client, decode_server
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import decode_frame
from server.cluster.base import EnginePool
from server.gateway.bodies import BODIES, Body
from server.gateway.doorkeeper import Refused, Tally
from server.gateway.http import ApiError, HttpState, require_principal, require_ready
from server.gateway.rendering import Renderer
from server.gateway.sessions import Sessions
from server.gateway.summary import Summary, internal_error
from server.observe.metrics import Metrics
from server.observe.watch import Watch
from server.scheduler.admission import Refusal
from server.session import Policy, Session

MAX_TEXT_CHARS: Final = 100_000  # of one request; longer texts go through the WebSocket
OPEN_FIELDS: Final = ("voice", "language", "speed", "pitch", "volume", "sample_rate", "bitrate")
START_FIELDS: Final = ("instruct", "seed")
OWN_LIMITS: Final = ("sessions", "rate", "quota")  # reasons that are a principal's, not the server's
FRAME_MS_PCM: Final = 100.0  # one piece of the response


class SpeakState(HttpState, Protocol):
    """What the server offers to this route."""

    @property
    def pool(self) -> EnginePool | None:
        """Where segments are rendered, once the engine is loaded."""

    @property
    def watch(self) -> Watch:
        """What is noticed about sessions."""

    @property
    def sessions(self) -> Sessions:
        """Those at work."""


@dataclass(frozen=True, slots=True)
class SpeakRequest:
    """A checked request body."""

    open: c.Open
    start: c.Start
    text: str
    format: str


def parse(data: bytes) -> SpeakRequest:
    """The request's JSON. Fields: `text`, `format` (wav, pcm or opus) and those of `open` and `start` that make sense
    here. Raises ProtocolError naming the field and what is allowed."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(ErrorCode.BAD_JSON, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ProtocolError(ErrorCode.BAD_JSON, "the body must be a JSON object with a `text`")
    text, container = body.get("text"), body.get("format", "wav")
    if "text" not in body:
        raise ProtocolError(ErrorCode.BAD_MESSAGE, "text is missing", "text")
    if not isinstance(text, str) or len(text) > MAX_TEXT_CHARS:
        raise ProtocolError(
            ErrorCode.BAD_MESSAGE, f"text must be a string of at most {MAX_TEXT_CHARS} characters", "text"
        )
    if not isinstance(container, str) or container not in BODIES:
        raise ProtocolError(ErrorCode.BAD_MESSAGE, f"format must be one of {', '.join(BODIES)}", "format")
    opus = container == "opus"
    manner = {name: body[name] for name in START_FIELDS if name in body}
    fields = {name: body[name] for name in OPEN_FIELDS if name in body}
    fields |= {
        "type": "open",
        "format": "opus" if opus else "pcm",
        "max_lead_ms": None,
        "timings": False,
        "frame_ms": None if opus else FRAME_MS_PCM,
    }
    try:
        open_ = decode_client(orjson.dumps(fields))
        start = decode_client(orjson.dumps({"type": "start", "seq": 1, "utterance": 1, **manner}))
    except orjson.JSONEncodeError:  # nested too deep to be any field's value
        names = ", ".join((*OPEN_FIELDS, *START_FIELDS))
        raise ProtocolError(ErrorCode.BAD_MESSAGE, f"{names} are strings or numbers") from None
    assert isinstance(open_, c.Open)
    assert isinstance(start, c.Start)
    return SpeakRequest(open_, start, text, container)


class Speech:
    """One text being spoken into a response body. Raises ProtocolError where it asks for what cannot be had."""

    def __init__(self, pool: EnginePool, policy: Policy, request: SpeakRequest, watch: Watch, principal: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._rate = request.open.sample_rate
        self.body: Body = BODIES[request.format]()
        self.session = Session(
            policy,
            pool.capabilities,
            session_id=secrets.token_urlsafe(12),
            token="",
            now=self._loop.time(),
            principal=principal,
        )
        self.tally: Tally | None = None  # while it has a place
        self.summary = Summary(self.session, watch, pool.capabilities.name, "http", principal)
        self._over = asyncio.Event()
        self._renderer = Renderer(self.session, pool, self._changed.set, self.summary.waited)
        text = request.text
        pieces = [text[at : at + limits.MAX_TEXT_CHARS] for at in range(0, len(text), limits.MAX_TEXT_CHARS)]
        numbered: list[c.ClientMessage] = [request.start]
        numbered += [c.Text(seq, piece) for seq, piece in enumerate(pieces, 2)]
        numbered.append(c.End(len(numbered) + 1))
        for message in (request.open, *numbered):
            self.session.receive(message, self._loop.time())
        self.summary.begun()

    async def stop(self, deadline_ms: int) -> None:
        """Wait until it is over, until the deadline at most: what is left then ends with its connection."""
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await self._over.wait()
        except TimeoutError:
            pass

    async def body_of(self, sessions: Sessions) -> AsyncGenerator[bytes]:
        """The response body, for a session that `sessions` admitted; releases it, once it has begun. Raises
        ProtocolError where the engine or the server fails.
        """
        outcome = "left"  # the client, before the end
        try:
            with sessions.member(self):
                async with aclosing(self._pieces()) as pieces:
                    async for piece in pieces:
                        yield piece
            outcome = "closed"
        except ProtocolError as error:
            outcome = error.code
            self.summary.failed(error)
            raise
        except Exception as error:
            outcome = ErrorCode.INTERNAL
            internal = internal_error(error)
            self.summary.failed(internal)
            raise internal from error
        finally:
            self.leave(sessions, outcome)

    def leave(self, sessions: Sessions, outcome: str) -> None:
        """It is over: give its place back. Harmless where that is done."""
        if self.tally is not None:
            tally, self.tally = self.tally, None
            self._over.set()
            sessions.leave(tally)
            self.summary.ended(outcome)

    async def _pieces(self) -> AsyncGenerator[bytes]:
        rendering = asyncio.ensure_future(self._renderer.run())
        try:
            while True:
                data = self.session.next_outgoing(self._loop.time())
                assert self.tally is not None
                self.tally.changed()
                if data is None:
                    await self._something_new(rendering)
                    continue
                self._renderer.wake()
                message = decode_server(data) if isinstance(data, str) else decode_frame(data)
                if isinstance(message, s.Opened):
                    piece = self.body.begin(self._rate, message.pre_skip)
                elif isinstance(message, s.Done):
                    piece = self.body.finish(message.samples)
                elif isinstance(data, bytes):
                    frame = decode_frame(data)
                    self.session.receive(c.Ack(1, frame.utterance, frame.end_sample), self._loop.time())
                    piece = self.body.add(frame)
                else:
                    continue
                if piece:
                    yield piece
                if isinstance(message, s.Done):
                    return
        finally:
            rendering.cancel()
            await asyncio.gather(rendering, return_exceptions=True)

    async def _something_new(self, rendering: asyncio.Future[Any]) -> None:
        self._changed.clear()
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((rendering, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if rendering.done():
            rendering.result()


def speak_routes(state: SpeakState) -> list[Route]:
    """The route, for `build_app`."""

    async def speak(request: Request) -> Response:
        principal = require_principal(state, request, "speak")
        _, policy = require_ready(state)
        assert state.pool is not None  # it is what being ready means
        try:
            asked = parse(await request.body())
        except ProtocolError as error:
            raise _refused(error, state.metrics) from None
        try:
            state.sessions.check_open(principal.name)
            speech = Speech(state.pool, policy, asked, state.watch, principal.name)
            speech.tally = state.sessions.enter(speech.session)
        except ProtocolError as error:
            raise _refused(error, state.metrics) from None
        except Refused as refused:
            raise _busy(refused.refusal) from None
        pieces = speech.body_of(state.sessions)
        try:
            first = await _while_connected(request, _until_audio(pieces))
        except ProtocolError as error:  # an engine that fails at once becomes a status, not a broken body
            raise _api_error(error, HTTPStatus.INTERNAL_SERVER_ERROR) from None
        except BaseException:  # cancelled before the body's first step: it gives nothing back then
            speech.leave(state.sessions, "left")
            raise
        return SpeechResponse(first, pieces, speech.body.media_type)

    return [Route("/v1/speak", speak, methods=["POST"])]


def _refused(error: ProtocolError, metrics: Metrics) -> ApiError:
    """The answer to a request at fault, before it became a session."""
    metrics.errors.labels(code=error.code).inc()
    return _api_error(error, HTTPStatus.BAD_REQUEST)


def _busy(refusal: Refusal) -> ApiError:
    """The answer to a request that is turned away: 429 where it is the principal's own limit."""
    own = refusal.reason in OWN_LIMITS
    status = HTTPStatus.TOO_MANY_REQUESTS if own else HTTPStatus.SERVICE_UNAVAILABLE
    after = {"Retry-After": str(max(1, ceil(refusal.retry_after_s)))}
    return ApiError(status, refusal.message, code=refusal.reason, headers=after)


def _api_error(error: ProtocolError, status: HTTPStatus) -> ApiError:
    """Fields have no prefix here: who sends a request never wrote an `open` or a `start`."""
    field, message = error.field, error.message
    for prefix in ("open.", "start."):
        if field is not None and field.startswith(prefix):
            field, message = field.removeprefix(prefix), message.replace(prefix, "")
    return ApiError(status, message, code=error.code, field=field)


class SpeechResponse(StreamingResponse):
    """Streams `first` and `rest`, and closes `rest` however the response ends, so that the engine stops at once."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes], media_type: str) -> None:
        super().__init__(_joined(first, rest), media_type=media_type)
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._rest.aclose()


async def _joined(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for piece in rest:
        yield piece


async def _until_audio(pieces: AsyncGenerator[bytes]) -> bytes:
    """The header and the first audio."""
    first = await anext(pieces, b"")
    return first + await anext(pieces, b"")


async def _while_connected(request: Request, work: Coroutine[Any, Any, bytes]) -> bytes:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientDisconnect then."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.receive())  # the body was read: only the client's end can follow
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
