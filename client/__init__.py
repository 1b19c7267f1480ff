"""The client of CosyStream: send text as it is written, receive speech as it is made.

    import asyncio
    import client

    async def main() -> None:
        async with client.connect("ws://127.0.0.1:8765") as session:
            async for audio in session.speak("你好, world."):
                print(audio.first_sample, len(audio.pcm))

    asyncio.run(main())

`python -m client` is the command line. The names below are loaded when first used, so that importing this package costs
nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client.connection import connect
    from client.errors import (
        Busy,
        ClientError,
        ConnectFailed,
        DigestMismatch,
        ServerError,
        ServerLost,
        ServerMisbehaved,
    )
    from client.items import Audio, Item
    from client.playout import Playout
    from client.shell import Session
    from client.utterance import Utterance

__all__ = [
    "Audio",
    "Busy",
    "ClientError",
    "ConnectFailed",
    "DigestMismatch",
    "Item",
    "Playout",
    "ServerError",
    "ServerLost",
    "ServerMisbehaved",
    "Session",
    "Utterance",
    "connect",
]

_MODULES = {
    "connection": ("connect",),
    "errors": (
        "Busy", "ClientError", "ConnectFailed", "DigestMismatch", "ServerError", "ServerLost", "ServerMisbehaved",
    ),
    "items": ("Audio", "Item"),
    "playout": ("Playout",),
    "shell": ("Session",),
    "utterance": ("Utterance",),
}  # fmt: skip
_HOME = {name: f"client.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
