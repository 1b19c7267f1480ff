"""`/v1/voices`: which voices there are, and learning new ones from recordings.

A learnt voice belongs to the principal who sent the recording; for everybody else it does not exist. The recording is
checked and learnt from by the engine, off the event loop, and not kept. What is held in memory meanwhile is bounded: so
many uploads at once, each of so many bytes, and only so long.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from math import ceil
from typing import Final, Protocol

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from server.background import in_daemon_thread
from server.cluster.base import EnginePool, PoolUnavailable
from server.engines.base import Capabilities, EngineError
from server.gateway.form import FormError, FormReader, Part, boundary_of
from server.gateway.http import ApiError, HttpState, json_response, require_principal, require_ready
from server.gateway.http_connection import VOICES_PATH
from server.session import Policy
from server.voices import OwnVoice, TooManyVoices, VoicesFailed, VoiceStore
from server.voices.voice_file import MAX_NAME_CHARS, MAX_TEXT_CHARS

log = structlog.get_logger(__name__)

MAX_UPLOADS: Final = 4  # at once: 64 MiB of recordings
UPLOADS_EACH: Final = 2  # of one principal
RETRY_S: Final = 3.0
FIELDS: Final = ("audio", "text", "name", "consent")


class VoicesState(HttpState, Protocol):
    """What the server offers to these routes."""

    @property
    def pool(self) -> EnginePool | None:
        """Where voices are learnt, once the engine is loaded."""

    @property
    def voices(self) -> VoiceStore:
        """Those that were learnt."""


class _Uploads:
    """Who sends a recording or waits for what is learnt from it."""

    def __init__(self) -> None:
        self._by_principal: Counter[str] = Counter()

    @contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """Meanwhile there is one more. Raises ApiError 503 where there are too many."""
        if self._by_principal.total() >= MAX_UPLOADS or self._by_principal[principal] >= UPLOADS_EACH:
            raise _later("too many voices are being learnt", RETRY_S)
        self._by_principal[principal] += 1
        try:
            yield
        finally:
            self._by_principal[principal] -= 1
            self._by_principal += Counter()  # drops those without any


def kind_of(capabilities: Capabilities) -> str:
    """What learnt voices an engine understands."""
    return capabilities.voice_kind or capabilities.name


def voices_routes(state: VoicesState) -> list[Route]:
    """The routes, for `build_app`."""
    uploads = _Uploads()

    async def listed(request: Request) -> Response:
        principal = require_principal(state, request, "voices", "speak")
        capabilities, policy = require_ready(state)
        own: list[OwnVoice] = []
        if capabilities.cloning:
            own = await in_daemon_thread(lambda: state.voices.of(principal.name, kind_of(capabilities)))
        found = _of_engine(capabilities, policy) + [_of_principal(voice, capabilities) for voice in own]
        answer = {"engine": capabilities.name, "default": policy.default_voice or None, "voices": found}
        return json_response(answer)

    async def shown(request: Request) -> Response:
        principal = require_principal(state, request, "voices", "speak")
        capabilities, policy = require_ready(state)
        voice = request.path_params["voice"]
        for each in _of_engine(capabilities, policy):
            if each["id"] == voice:
                return json_response(each)
        own = await in_daemon_thread(lambda: state.voices.find(voice, principal.name))
        if own is None or own.kind != kind_of(capabilities):
            raise _unknown()
        return json_response(_of_principal(own, capabilities))

    async def added(request: Request) -> Response:
        principal = require_principal(state, request, "voices")
        capabilities, _ = require_ready(state)
        _check_able(state, capabilities)
        with uploads.one(principal.name):
            try:
                await in_daemon_thread(lambda: state.voices.check_room(principal.name))
                fields = await _form(request)
                audio, text, name = _checked(fields)
                data = await _learn(state, audio, text)
                if await request.is_disconnected():
                    raise ClientDisconnect  # its sender does not wait for it, and may send it again
                voice = await in_daemon_thread(
                    lambda: state.voices.add(
                        name=name,
                        owner=principal.name,
                        text=text,
                        kind=kind_of(capabilities),
                        fingerprint=capabilities.fingerprint,
                        data=data,
                    )
                )
            except TooManyVoices as error:
                raise ApiError(HTTPStatus.CONFLICT, f"{error}: delete one first", code="too_many_voices") from None
            except VoicesFailed as error:
                raise _not_kept(error) from error
        log.info("a voice was learnt", voice=voice.id, principal=principal.name, bytes=len(data))
        headers = {"Location": f"{VOICES_PATH}/{voice.id}"}
        return json_response(_of_principal(voice, capabilities), HTTPStatus.CREATED, headers)

    async def removed(request: Request) -> Response:
        principal = require_principal(state, request, "voices")
        voice = request.path_params["voice"]
        try:
            known = await in_daemon_thread(lambda: state.voices.remove(voice, principal.name))
        except VoicesFailed as error:
            raise _not_kept(error) from error
        if not known:
            if state.capabilities is not None and state.capabilities.voice(voice) is not None:
                raise ApiError(HTTPStatus.FORBIDDEN, "the engine's own voices cannot be deleted", field="voice")
            raise _unknown()
        if state.pool is not None:
            state.pool.forget_voice(voice)
        log.info("a voice was deleted", voice=voice, principal=principal.name)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return [
        Route(VOICES_PATH, listed),
        Route(VOICES_PATH, added, methods=["POST"]),
        Route(VOICES_PATH + "/{voice}", shown),
        Route(VOICES_PATH + "/{voice}", removed, methods=["DELETE"]),
    ]


# ---- learning ----


def _check_able(state: VoicesState, capabilities: Capabilities) -> None:
    if not capabilities.cloning:
        message = f"the engine {capabilities.name} cannot learn voices"
        raise ApiError(HTTPStatus.NOT_IMPLEMENTED, message, code="unsupported")
    if state.voices.path is None:
        message = "this server keeps no voices: its setting `voices` is off, or has no directory"
        raise ApiError(HTTPStatus.NOT_IMPLEMENTED, message, code="unsupported")


async def _form(request: Request) -> dict[str, Part]:
    """The request's fields. Raises ApiError."""
    try:
        boundary = boundary_of(request.headers.get("content-type", ""))
        if boundary is None:
            message = f"a voice comes as multipart/form-data with the fields {', '.join(FIELDS)}"
            raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
        form = FormReader(boundary)
        async for piece in request.stream():  # the connection bounds it, and how long it may take
            form.feed(piece)
        return form.fields()
    except FormError as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, str(error)) from None


def _checked(fields: Mapping[str, Part]) -> tuple[bytes, str, str]:
    """Recording, text and name. Raises ApiError naming the field and what is allowed."""
    for field in fields:
        if field not in FIELDS:
            raise _bad(field, f"{field!r} is not one of {', '.join(FIELDS)}")
    audio = fields.get("audio")
    if audio is None or not audio.data:
        raise _bad("audio", "audio is missing: the recording, as a file")
    if _word(fields, "consent", 16).lower() != "true":
        message = "consent must be true: who speaks in the recording agrees that this voice is made and used"
        raise _bad("consent", message)
    return audio.data, _word(fields, "text", MAX_TEXT_CHARS), _word(fields, "name", MAX_NAME_CHARS)


def _word(fields: Mapping[str, Part], name: str, longest: int) -> str:
    """A field's text without what shows nothing, on one line; empty where it is missing. Raises ApiError."""
    try:
        text = " ".join(fields[name].data.decode("utf-8").split()) if name in fields else ""
    except UnicodeDecodeError:
        raise _bad(name, f"{name} must be UTF-8") from None
    if len(text) > longest or not all(character.isprintable() for character in text):
        raise _bad(name, f"{name} must be at most {longest} printable characters")
    return text


async def _learn(state: VoicesState, audio: bytes, text: str) -> bytes:
    """What the engine makes of it. Raises ApiError."""
    assert state.pool is not None  # it is what being ready means
    try:
        return await state.pool.make_voice(audio, text)
    except PoolUnavailable as error:
        raise _later(str(error), error.retry_after_s) from None
    except ValueError as error:
        message = " ".join(str(error).split())
        field = "text" if message.startswith("text") else "audio"
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, message, field=field) from None
    except EngineError as error:
        log.error("a voice could not be learnt", reason=str(error), kind=error.kind, trace=error.trace or None)
        message = "the engine failed to learn the voice; its log has the cause"
        raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, code="engine_failed") from None


# ---- answers ----


def _of_engine(capabilities: Capabilities, policy: Policy) -> list[dict[str, object]]:
    return [
        {
            "id": voice.id,
            "name": voice.name,
            "languages": voice.languages,
            "description": voice.description,
            "license": voice.license,
            "notice": voice.notice,
            "sample_rate": capabilities.sample_rate,
            "parameters": sorted(capabilities.parameters.difference(voice.lacks)),
            "default": voice.id == policy.default_voice,
        }
        for voice in capabilities.voices
    ]


def _of_principal(voice: OwnVoice, capabilities: Capabilities) -> dict[str, object]:
    return {
        "id": voice.id,
        "name": voice.name,
        "languages": capabilities.languages,
        "description": "Learnt from a recording.",
        "license": "own recording",
        "notice": "",
        "sample_rate": capabilities.sample_rate,
        "parameters": sorted(capabilities.parameters),
        "default": False,
        "own": True,
        "text": voice.text,
        "consent": True,
        "created": voice.created,
    }


def _bad(field: str, message: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, message, field=field)


def _unknown() -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, "you have no voice of this id", code="unknown_voice", field="voice")


def _later(message: str, retry_after_s: float) -> ApiError:
    headers = {"Retry-After": str(max(1, ceil(retry_after_s)))}
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, headers=headers)


def _not_kept(error: VoicesFailed) -> ApiError:
    """The cause goes to the log: a path is nobody else's business."""
    log.error("the folder of voices fails", reason=str(error))
    if error.full:
        return ApiError(HTTPStatus.INSUFFICIENT_STORAGE, "the server has no room left for voices")
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log has the cause")
