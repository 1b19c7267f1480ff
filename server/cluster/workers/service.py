"""The worker's side of its connections: what gateways ask for, asked of the engine pool of this process."""

import asyncio
import os
from typing import Any, Final, cast

import structlog

from server.cluster.base import Capacity, StepReport, Urgency
from server.cluster.in_process import InProcessPool
from server.cluster.workers.messages import (
    Audio,
    Cancel,
    End,
    Failed,
    FromWorker,
    Hello,
    Learn,
    Learnt,
    Leaving,
    LeavingReason,
    Load,
    Next,
    Ping,
    Pong,
    Stepped,
    Synthesize,
)
from server.cluster.workers.served import ServedStream, learn
from server.cluster.workers.wire import FrameReader, WireError, encode

log = structlog.get_logger(__name__)

LOAD_AT_MOST_EVERY_S: Final = 0.02  # to who is being served
LOAD_TO_ALL_S: Final = 0.1  # to every gateway, while there is something new
MAX_UNREAD: Final = 1_048_576
"""Bytes of reports that may wait for a gateway which does not read: half an hour's. Audio does not count: each chunk
is asked for, and may be longer than that."""
LEAVING_S: Final = 2.0  # for chunks that are being made when the worker is told to end


class WorkerService:
    """Serves gateways with `pool`. `server()` makes the protocol of one connection."""

    def __init__(self, described: dict[str, Any]) -> None:
        """`described`: the engine's capabilities as `capabilities.describe` tells them. Set `pool` before serving."""
        self.pool: InProcessPool | None = None
        self.loop = asyncio.get_running_loop()
        self.steps = 0
        self.leaving: LeavingReason | None = None
        self.hello = Hello(os.getpid(), described)
        self._reports: list[StepReport] = []  # those of a tenth of a second at most
        self._gateways: set[_Peer] = set()
        self._told: Load | None = None
        self._timer: asyncio.TimerHandle | None = None

    def server(self) -> asyncio.Protocol:
        """For `create_unix_server`."""
        return _Peer(self)

    # What the pool tells (PoolObserver)

    def stepped(self, report: StepReport) -> None:
        """Told on with the next answer, or soon: one gateway counts it."""
        self.steps += 1
        self._reports.append(report)
        self.load_changed()

    def take_reports(self) -> list[StepReport]:
        """The steps that no gateway was told of."""
        reports, self._reports = self._reports, []
        return reports

    def worker_lost(self, reason: str) -> None:
        """A step hangs; see `hung`, which has been called before."""

    def hung(self) -> None:
        """A step hangs. Nothing can stop its thread but the end of the process: gateways are told, then it comes."""
        self.leaving = "hung"
        self.loop.call_soon(self._tell_hung)  # once the streams in that step have heard of it

    def _tell_hung(self) -> None:
        for gateway in self._gateways:
            culprits = [number for number, stream in gateway.streams.items() if stream.hangs]
            gateway.send(Leaving("hung", tuple(culprits)))
        self.loop.call_later(0.01, os._exit, os.EX_SOFTWARE)  # once that is written

    # Its connections

    def joined(self, gateway: "_Peer") -> None:
        """A gateway has connected."""
        if self.leaving is not None:
            gateway.break_off()  # to come again when another worker listens here
            return
        self._gateways.add(gateway)
        gateway.send(self.hello)
        gateway.tell_load()

    def left(self, gateway: "_Peer") -> None:
        """A gateway's connection is gone."""
        self._gateways.discard(gateway)

    def capacity(self) -> Capacity:
        """The pool's."""
        assert self.pool is not None
        return self.pool.capacity()

    @property
    def streams(self) -> int:
        """Open streams of all gateways."""
        return sum(len(gateway.streams) for gateway in self._gateways)

    def load_changed(self) -> None:
        """Something was asked for or done: every gateway hears how the worker is doing, soon."""
        if self._timer is None:
            self._timer = self.loop.call_later(LOAD_TO_ALL_S, self._tell_all)

    def _tell_all(self) -> None:
        self._timer = None
        if self._gateways:
            max(self._gateways, key=lambda gateway: gateway.reads).tell_steps()
        self._reports.clear()
        now = Load(self.capacity(), self.streams)
        if now != self._told:
            self._told = now
            for gateway in self._gateways:
                gateway.tell_load()
        if now.capacity.late_s:
            self.load_changed()  # being late fades by itself, also where nothing is asked any more

    # Its end

    def leave(self) -> None:
        """Tell every gateway to send no further stream."""
        self.leaving = "stopping"
        for gateway in self._gateways:
            gateway.send(Leaving("stopping"))

    async def drained(self) -> None:
        """Returns when every chunk that was asked for is there, after 2 s at most. What is left goes on elsewhere, so
        nothing more is said of it: to a stream that is only cancelled its end would look like the segment's.
        """
        try:
            async with asyncio.timeout(LEAVING_S):
                for gateway in list(self._gateways):
                    for stream in list(gateway.streams.values()):
                        await stream.answered()
        except TimeoutError:
            pass
        for gateway in self._gateways:
            for stream in list(gateway.streams.values()):
                stream.cancel()


class _Peer(asyncio.Protocol):
    """One gateway's connection."""

    def __init__(self, service: WorkerService) -> None:
        self.streams: dict[int, ServedStream] = {}  # bounded by what gateways admit
        self.closed = False
        self._learning: set[asyncio.Task[None]] = set()  # bounded by what gateways let in, and by `Learning`
        self._service = service
        self._reader = FrameReader()
        self._told_load_at = 0.0
        self.reads = True  # as far as is known
        self._unread = 0  # bytes of reports since it stopped
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._service.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        for stream in list(self.streams.values()):
            stream.cancel()
        for learning in list(self._learning):
            learning.cancel()  # the engine goes on; nobody hears of it
        self._service.left(self)

    def pause_writing(self) -> None:
        self.reads = False

    def resume_writing(self) -> None:
        self.reads, self._unread = True, 0

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._handle(message)
        except WireError as error:
            log.error("a gateway's connection is broken off", reason=str(error))
            self.break_off()

    def _handle(self, message: object) -> None:
        match message:
            case Next():
                stream = self.streams.get(message.stream)
                if stream is not None:  # else it ended as this was on its way
                    stream.ask(Urgency(self._service.loop.time() + message.slack_s, message.first))
                    self._service.load_changed()
            case Synthesize():
                if message.stream in self.streams:
                    raise WireError(f"there is a stream {message.stream} already")
                assert self._service.pool is not None
                asked = self._service.pool.synthesize(
                    message.request, message.start_sample, principal=message.principal
                )
                self.streams[message.stream] = ServedStream(message.stream, asked, self)
            case Learn():
                learning = asyncio.ensure_future(self._learn(message))
                self._learning.add(learning)
                learning.add_done_callback(self._learning.discard)
            case Cancel():
                stream = self.streams.get(message.stream)
                if stream is not None:
                    stream.cancel()
                    self._service.load_changed()
            case Ping():
                self.send(Pong(self._service.steps))
            case _:
                raise WireError(f"a gateway does not say {type(message).__name__}")

    async def _learn(self, message: Learn) -> None:
        assert self._service.pool is not None
        self.send(await learn(self._service.pool, message))

    def send(self, *messages: FromWorker) -> None:
        """Write messages; nothing where the connection is gone. ValueError where one is too long."""
        if self.closed or self._transport is None or self._transport.is_closing():
            return
        for message in messages:
            parts = encode(message)
            self._transport.writelines(parts)
            if not self.reads and not isinstance(message, Audio | End | Failed | Learnt):
                self._unread += sum(map(len, parts))
        if self._unread > MAX_UNREAD:
            log.error("a gateway that does not read is broken off")
            self.break_off()

    def break_off(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    def answer(self, message: Audio | End | Failed) -> None:
        """Write what a stream asked for. A hung worker answers no more: its streams go on elsewhere."""
        if self._service.leaving == "hung":
            return
        self.send(message, *map(Stepped, self._service.take_reports()))
        if self._service.loop.time() - self._told_load_at >= LOAD_AT_MOST_EVERY_S:
            self.tell_load()
        self._service.load_changed()

    def tell_steps(self) -> None:
        """Write what the engine did, unless another gateway was told."""
        self.send(*map(Stepped, self._service.take_reports()))

    def tell_load(self) -> None:
        """Write how the worker is doing."""
        self._told_load_at = self._service.loop.time()
        self.send(Load(self._service.capacity(), self._service.streams - len(self.streams)))
