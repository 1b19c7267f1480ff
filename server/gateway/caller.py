"""Who is on the other end of a connection, as far as that is known."""

from collections.abc import Callable
from typing import Any

from protocol import TOKEN_SUBPROTOCOL
from protocol import client_messages as c
from protocol.errors import ErrorCode, ProtocolError
from server.gateway.auth import ANONYMOUS, WRONG_KEY
from server.gateway.doorkeeper import Doorkeeper
from server.gateway.tokens import TOKEN_PREFIX

Authenticate = Callable[[str | None], str | None]
"""The principal's name for the key in `open` (None: there is none), or None where access is refused."""


class Caller:
    """`principal` is its name, once a message proved it."""

    def __init__(
        self, authenticate: Authenticate, remote_address: Any, doorkeeper: Doorkeeper, refusal: str = ""
    ) -> None:
        """`refusal`: why its handshake should have been refused."""
        self._refusal = refusal
        self.principal: str | None = None
        self._authenticate = authenticate
        self._remote_address = remote_address
        self._doorkeeper = doorkeeper

    def check_handshake(self) -> None:
        """Raises ProtocolError where it came in only to be told why it cannot stay."""
        if self._refusal:
            raise ProtocolError(ErrorCode.UNAUTHORIZED, self._refusal)

    def identify(self, message: c.Open | c.Resume) -> str:
        """Check the key; the principal. Raises ProtocolError."""
        if self.principal is None:
            self.principal = self._authenticate(message.api_key)
        if self.principal is None:
            raise ProtocolError(ErrorCode.UNAUTHORIZED, _why_not(message.api_key), f"{message.type}.api_key")
        return self.principal

    def count_failure(self) -> None:
        """Nothing came of its attempt to open or to resume. Raises Refused where there were too many."""
        if self.principal is not None and self.principal != ANONYMOUS.name:
            who = self.principal
        else:
            who = str(self._remote_address[0]) if self._remote_address else ""
        self._doorkeeper.check_failure(who)


def _why_not(api_key: str | None) -> str:
    """Why a message that gave this does not help."""
    token = f"offered as the subprotocol `{TOKEN_SUBPROTOCOL}TOKEN`"
    if not api_key:
        return f"an API key is needed: header `Authorization: Bearer KEY`, or `api_key` in `open`; or a token, {token}"
    return f"this is a token, not an API key: tokens are {token}" if api_key.startswith(TOKEN_PREFIX) else WRONG_KEY
