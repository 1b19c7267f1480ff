"""Waiting for pipes, sockets and terminals without holding up the event loop."""

import asyncio
import os
import stat


def may_block(descriptor: int) -> bool:
    """Whether reading or writing may wait for someone else: not with a regular file."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(descriptor))


async def readable(descriptor: int) -> None:
    """Waits until something can be read, or the end is there."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def writable(descriptor: int) -> None:
    """Waits until something can be written, or nobody reads any more."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)
