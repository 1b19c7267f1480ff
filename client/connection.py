"""Opening a session: `async with connect(url) as session`."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar

from websockets.exceptions import ConnectionClosed

from client.address import stream_url
from client.durations import in_words
from client.errors import Busy, ClientError, ConnectFailed, ServerMisbehaved
from client.handshake import first_answer, open_socket
from client.saved import SavedSession, Sent
from client.session import QUEUE_BYTES, SessionState
from client.shell import Session
from client.tls import tls_context
from client.utterance import Utterance
from protocol import encode
from protocol.client_messages import AudioFormat, Mode, Open, Resume, SpeechLanguage
from protocol.media.opus import OpusUnavailableError, load_opuslib
from protocol.server_messages import Opened, Resumed

T = TypeVar("T")


class Connect:
    """What `connect` returns: `async with` it, or await it and call `Session.close` yourself."""

    def __init__(
        self,
        url: str,
        request: Open,
        *,
        api_key: str | None,
        tls_ca: str | Path | None,
        decode: bool,
        open_timeout: float,
        busy_wait_s: float,
        resume: bool,
        reconnect_s: float | None,
        on_notice: Callable[[str], None] | None,
        restart: bool,
        confirm: bool,
    ) -> None:
        self._url = url
        self._request = request
        self._api_key = api_key
        self._tls_ca = tls_ca
        self._decode = decode
        self._timeout = open_timeout
        self._busy_wait_s = busy_wait_s
        self._resume = resume
        self._reconnect_s = reconnect_s
        self._on_notice = on_notice
        self._restart = restart
        self._confirm = confirm
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._open().__await__()

    async def come_back(
        self, saved: SavedSession, before: Callable[[SavedSession], None]
    ) -> tuple[Session, Utterance, Sent]:
        """Instead of a new session the one that another process had, its utterance, and what the server has of that.

        `before` is given what is good from now on, before the server learns that it arrived: then the old token is none
        any more. Close the session yourself. Raises SessionGone where the server does not know it any more, and what
        opening one raises.
        """
        return await self._patiently(lambda: self._come_back_now(saved, before))

    async def __aenter__(self) -> Session:
        self._session = await self._open()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def _open(self) -> Session:
        return await self._patiently(self._open_now)

    async def _patiently(self, opening: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Waits for a server that is busy."""
        give_up_at = monotonic() + self._busy_wait_s
        while True:
            try:
                return await opening()
            except Busy as busy:
                if monotonic() + busy.retry_after_s > give_up_at:
                    raise
                if self._on_notice is not None:
                    self._on_notice(f"{busy.message}: trying again in {in_words(busy.retry_after_s)}")
                await asyncio.sleep(busy.retry_after_s)

    async def _open_now(self) -> Session:
        if self._request.format == "auto" and self._decode and not _has_opus():
            self._request = replace(self._request, format="pcm")
        session, _ = await self._greet(self._request, None)
        return session

    async def _come_back_now(
        self, saved: SavedSession, before: Callable[[SavedSession], None]
    ) -> tuple[Session, Utterance, Sent]:
        session, answer = await self._greet(saved.greeting, saved.opened)
        try:
            assert isinstance(answer, Resumed)
            token = answer.new_token or saved.token
            before(replace(saved, token=token, epoch=answer.epoch, generation=answer.generation))
            return session, *session.come_back(saved, answer)
        except BaseException:
            await session.close()
            raise

    async def _greet(self, greeting: Open | Resume, opened: Opened | None) -> tuple[Session, Opened | Resumed]:
        """`opened`: what was answered to whom had the session before; None: a new one is opened."""
        url = stream_url(self._url)
        tls = tls_context(url, self._tls_ca)
        try:
            async with asyncio.timeout(self._timeout):
                socket = await open_socket(url, self._api_key, tls)
                try:
                    sent = monotonic()
                    with suppress(ConnectionClosed):  # a full server says `busy` and closes before it reads `open`
                        await socket.send(encode(greeting))
                    answer = await first_answer(socket, url)
                    now = monotonic()
                    if opened is None and isinstance(answer, Opened):
                        opened = answer
                    elif opened is None or isinstance(answer, Opened):
                        raise ServerMisbehaved(f"{url} answers `{greeting.type}` with `{answer.type}`")
                    state = SessionState(
                        opened, now,
                        rtt_s=now - sent, queue_bytes=0 if self._confirm else QUEUE_BYTES, resume=self._resume,
                        reconnect_s=self._reconnect_s, restart=self._restart, request=self._request, random=Random(),
                    )  # fmt: skip
                except ClientError:
                    await socket.close()
                    raise
                except BaseException:
                    socket.transport.abort()
                    raise
        except TimeoutError:
            raise ConnectFailed(f"{url} did not answer within {self._timeout:g} s: check the address") from None
        reopen = partial(open_socket, url, self._api_key, tls)
        session = Session(socket, state, self._decode, reopen, self._on_notice, confirms=self._confirm)
        return session, answer


def connect(
    url: str,
    *,
    voice: str | None = None,
    language: SpeechLanguage = "auto",
    speed: float = 1.0,
    pitch: float = 1.0,
    volume: float = 1.0,
    format: AudioFormat = "pcm",
    sample_rate: int = 24_000,
    frame_ms: float | None = None,
    bitrate: int | None = None,
    mode: Mode = "auto",
    max_lead_ms: int | None = None,
    timings: bool = True,
    api_key: str | None = None,
    tls_ca: str | Path | None = None,
    decode: bool = True,
    open_timeout: float = 10.0,
    busy_wait_s: float = 0.0,
    resume: bool = True,
    reconnect_s: float | None = None,
    on_notice: Callable[[str], None] | None = None,
    restart: bool = True,
    confirm: bool = False,
) -> Connect:
    """Opens a session.

    `url`: `host:port`, or with ws(s):// or http(s)://. `max_lead_ms`: how far audio may run ahead of what was played
    (see `Utterance.played`); None takes it as fast as the engine goes. `tls_ca`: a file of certificates that are
    trusted in place of the system's. `decode=False` leaves Opus packets as they are.
    `busy_wait_s`: for so long a server that says `busy`, or a proxy that says it (HTTP 429, 502, 503, 504), is asked
    again, whenever it says; then Busy is raised.
    `resume`: after a lost connection come back, and lose nothing; for `reconnect_s` at most (None: as long as the
    server keeps the session, at least 30 s). `on_notice` is called with a line for the user when that happens.
    `restart`: where the server does not know the session any more, a new one says the rest; False: SessionGone.
    `confirm`: only what `Utterance.confirm` tells is acked, so that the server can give everything else again.
    The other arguments are those of the `open` message (docs/protocol.md). Raises ConnectFailed, Busy, ServerError.
    """
    request = Open(
        voice, language, speed, pitch, volume, format, sample_rate, frame_ms, bitrate, mode, max_lead_ms, None, timings
    )
    return Connect(
        url, request, api_key=api_key, tls_ca=tls_ca, decode=decode, open_timeout=open_timeout,
        busy_wait_s=busy_wait_s, resume=resume, reconnect_s=reconnect_s, on_notice=on_notice,
        restart=restart, confirm=confirm,
    )  # fmt: skip


def _has_opus() -> bool:
    try:
        load_opuslib()
    except OpusUnavailableError:
        return False
    return True
