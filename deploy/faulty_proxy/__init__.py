"""A line that fails on request: a TCP proxy on loopback whose delay, rate, holes, stalls, cuts and resets are set while
it runs.

    async with FaultyProxy(server_port) as proxy:
        proxy.change(DOWN, delay_s=0.02, rate=25_000)  # the line, for every connection
        proxy.cut_next(Cut(DOWN, Connection.reset, byte=48_000))  # the next connection only
        proxy.hole(UP, DOWN)
        ...
        proxy.heal()

Nothing is lost inside a connection, as TCP promises: what meets a hole is held, in order and within `buffer_bytes`, and
comes later. With `tcp_backoff` it comes as late as TCP's retransmissions would bring it, which double their distance,
while a new connection works at once. Runs on asyncio and uvloop, in one event loop; the only tasks are those that dial.
"""

from deploy.faulty_proxy.boundaries import MessageBoundaries
from deploy.faulty_proxy.connection import Connection
from deploy.faulty_proxy.line import DOWN, UP, Cut, Direction, Line, next_attempt
from deploy.faulty_proxy.proxy import FaultyProxy

__all__ = [
    "DOWN",
    "UP",
    "Connection",
    "Cut",
    "Direction",
    "FaultyProxy",
    "Line",
    "MessageBoundaries",
    "next_attempt",
]
