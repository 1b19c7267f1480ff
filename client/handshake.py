"""The first steps of a connection: the WebSocket itself, and the server's answer to `open`."""

from ssl import SSLContext
from typing import Final

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus, WebSocketException
from websockets.http11 import Response
from websockets.typing import Subprotocol

from client.address import is_loopback
from client.errors import Busy, ClientError, ConnectFailed, ServerError, ServerMisbehaved, SessionGone
from client.explain import BUSY_STATUSES, explain_os_error, explain_status, retry_after_s
from client.wire import Socket
from protocol import SUBPROTOCOL, ErrorCode, ProtocolError, decode_server
from protocol import server_messages as s
from protocol.limits import MAX_MESSAGE_BYTES

CLOSE_TIMEOUT_S: Final = 1.0  # a peer that does not answer the close frame is dropped
PING_S: Final = 20.0  # transport-level; the session has its own watchdog while audio is owed
_USER_AGENT: Final = "cosystream-client"


async def open_socket(url: str, api_key: str | None, tls: SSLContext | None) -> Socket:
    """Connects. Raises ConnectFailed, whose text says what to do, or Busy where the answer is "later"."""
    try:
        socket = await connect(
            url,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            ssl=tls,
            user_agent_header=_USER_AGENT,
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=None,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            proxy=None if is_loopback(url) else True,
            create_connection=Socket,
        )
    except InvalidStatus as error:
        raise _refused(url, error.response) from None
    except InvalidMessage:
        raise ConnectFailed(f"{url} does not answer as a WebSocket server: is it the right port?") from None
    except (InvalidHandshake, WebSocketException) as error:
        raise ConnectFailed(f"{url} refuses the WebSocket: {error}") from None
    except OSError as error:
        raise ConnectFailed(explain_os_error(url, error)) from None
    if socket.subprotocol != SUBPROTOCOL:
        await socket.close()
        raise ConnectFailed(f"{url} is a WebSocket server but does not speak {SUBPROTOCOL}: check the address")
    assert isinstance(socket, Socket)
    return socket


def _refused(url: str, response: Response) -> ClientError:
    """What an answer over HTTP means, of the server or of a proxy before it."""
    why = explain_status(url, response.status_code, bytes(response.body))
    reason = BUSY_STATUSES.get(response.status_code)
    if reason is None:
        return ConnectFailed(why)
    times = response.headers.get_all("Retry-After")
    return Busy(round(retry_after_s(times[0] if times else None) * 1000), reason, why)


async def first_answer(socket: Socket, url: str) -> s.Opened | s.Resumed:
    """Waits for `opened`, or `resumed` where that was asked for. Raises what came instead, as an error."""
    try:
        message: s.ServerMessage = decode_server(await socket.recv(decode=True))
    except ProtocolError as error:
        raise ServerMisbehaved(f"{url} gives no answer to `open` that is understood: {error.message}") from None
    except ConnectionClosed as closed:
        frame = closed.rcvd
        why = f"code {frame.code} {frame.reason}".strip() if frame else "without a word"
        raise ConnectFailed(f"{url} closed the connection ({why}): is it a CosyStream server?") from None
    match message:
        case s.Opened() | s.Resumed():
            return message
        case s.ResumeFailed():
            raise SessionGone(message.reason)
        case s.Error() if message.code == ErrorCode.UNAUTHORIZED:
            raise ServerError(message.code, "it needs an API key: give --api-key or set COSYSTREAM_API_KEY")
        case s.Error():
            raise ServerError(message.code, message.message, message.field, message.retryable)
        case s.Busy():
            raise Busy(message.retry_after_ms, message.reason, message.message)
        case _:
            raise ServerMisbehaved(f"{url} answers `open` with `{message.type}`")
