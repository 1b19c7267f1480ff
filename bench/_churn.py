"""Clients who come and go: each does one thing after the other, at random from a seed, and checks what it hears.

Every client has a line of its own that can be cut (`deploy.faulty_proxy`). What was spoken to its end must be the same
as without disturbance, whatever happened in between.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import orjson

import client
from bench._fuzz_attack import HANDSHAKE
from deploy.faulty_proxy import DOWN, Connection, Cut, FaultyProxy
from protocol import server_messages as s

TEXTS: Final = (
    "你好。",
    "山高水远，天蓝云白，风轻日暖。今天是个好天气！",
    "The ferry left at a quarter past nine, half an hour late, with four hundred people on board.",
    "雾还没有散，码头上的灯一盏一盏地亮着。 Nobody had told the captain about the rocks. 他看了看表，什么也没说。",
    "One, two. 三，四。 Five, six! 七，八？ " * 4,
)
PATIENCE_S: Final = 60.0  # for anything a client does
REST_S: Final = 1.0  # between two things, at most
LAG_EVERY_S: Final = 0.05
SHOWN: Final = 10  # faults that are told in full
BUSY_WAIT_S: Final = 20.0

Digests = dict[tuple[str, str], str]
"""What a text sounds like: by text and way in (`websocket`, `http`)."""


class Wrong(Exception):
    """What was heard is not what it should be."""


@dataclass(slots=True)
class Tally:
    """What came of it."""

    done: Counter[str] = field(default_factory=Counter)  # by what was done
    complete: int = 0  # utterances heard to their end
    resumes: int = 0
    busy: int = 0
    faults: list[str] = field(default_factory=list)
    faulty: int = 0
    worst_lag_s: float = 0.0  # of the clients' own event loop: where it is late, what they see of the server is late

    def fault(self, text: str) -> None:
        """Something went wrong."""
        self.faulty += 1
        if len(self.faults) < SHOWN:
            self.faults.append(text)


class Client:
    """One of them. `speak` and the like are what it may do; `live` does one after the other."""

    def __init__(self, port: int, proxy: FaultyProxy, chance: Random, expected: Digests, tally: Tally) -> None:
        self._port = port
        self._proxy = proxy
        self._chance = chance
        self._expected = expected
        self._tally = tally
        self._things: tuple[tuple[Callable[[], Awaitable[None]], int], ...] = (
            (self.speak, 6), (self.drop, 5), (self.cancel, 4), (self.leave, 3), (self.idle, 2), (self.knock, 2),
            (self.request, 4), (self.leave_request, 3),
        )  # fmt: skip

    async def live(self, until: float) -> None:
        """Do one thing after the other."""
        loop = asyncio.get_running_loop()
        things, weights = zip(*self._things, strict=True)
        while loop.time() < until:
            thing = self._chance.choices(things, weights)[0]
            name = thing.__name__
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await thing()
                self._tally.done[name] += 1
            except client.Busy:
                self._tally.busy += 1
            except TimeoutError:
                self._tally.fault(f"{name}: no end after {PATIENCE_S:.0f} s")
            except (client.ClientError, OSError, EOFError, Wrong) as error:
                after = until - loop.time()
                self._tally.fault(f"{name}, {after:.0f} s before the end: {type(error).__name__}: {error}")
            await asyncio.sleep(self._chance.uniform(0.0, REST_S))

    # ---- what it may do ----

    async def speak(self) -> None:
        """One to three utterances, heard to their end."""
        async with self._connect() as session:
            for _ in range(self._chance.randrange(1, 4)):
                await self._utterance(session)
            self._tally.resumes += session.line.resumes

    async def drop(self) -> None:
        """The same, while the line is cut again and again."""
        for _ in range(self._chance.randrange(1, 4)):
            how = self._chance.choice((Connection.reset, Connection.reset, Connection.finish))
            self._proxy.cut_next(Cut(DOWN, how, byte=self._chance.randrange(1_400, 120_000)))
        try:
            await self.speak()
        finally:
            self._proxy._cuts.clear()

    async def cancel(self) -> None:
        """Stop in the middle, then say something else."""
        async with self._connect() as session:
            utterance = await session.start()
            writing = asyncio.ensure_future(_write(utterance, TEXTS[-1] * 10, self._chance))
            try:
                wanted = self._chance.choice((0, 1, 1, 5, 30))
                if wanted:
                    async for item in utterance:
                        wanted -= isinstance(item, client.Audio)
                        if wanted <= 0:
                            break
                await utterance.cancel()
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            await self._utterance(session)

    async def leave(self) -> None:
        """The connection is reset in the middle of a text, and the client does not come back."""
        async with self._connect(resume=False) as session:
            utterance = await session.start()
            await utterance.write(self._chance.choice(TEXTS[1:]) * 5)
            await anext(utterance)
            await asyncio.sleep(self._chance.uniform(0.0, 0.3))
            self._proxy.each(Connection.reset)

    async def idle(self) -> None:
        """Open, and say nothing."""
        async with self._connect():
            await asyncio.sleep(self._chance.uniform(0.2, 3.0))

    async def knock(self) -> None:
        """Connect, and go before it is said what is wanted."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(HANDSHAKE[: self._chance.choice((0, 10, len(HANDSHAKE)))])
            with suppress(TimeoutError):
                async with asyncio.timeout(self._chance.uniform(0.0, 0.5)):
                    await reader.read()
        finally:
            writer.transport.abort()

    async def request(self, text: str = "") -> None:
        """A text over HTTP; a random one where it is not given."""
        text = text or self._chance.choice(TEXTS)
        status, pcm = await speak_over_http(self._port, text)
        if status == 503:
            self._tally.busy += 1
            return
        if status != 200:
            raise Wrong(f"HTTP {status}")
        self._check(text, "http", hashlib.sha256(pcm).hexdigest())

    async def leave_request(self) -> None:
        """A long text over HTTP, and gone after some of it."""
        await speak_over_http(self._port, TEXTS[-1] * 20, most=self._chance.choice((0, 1, 20_000, 200_000)))

    # ---- parts ----

    def _connect(self, **options: Any) -> Any:
        chosen = {"format": self._chance.choice(("pcm", "pcm", "opus", "auto")), "mode": "stream", "decode": False}
        return client.connect(self._proxy.url, busy_wait_s=BUSY_WAIT_S, **{**chosen, **options})

    async def _utterance(self, session: client.Session, text: str = "") -> None:
        """A text, written in pieces and heard to its end. The client library checks the audio against the digests that
        the server names; this checks those.
        """
        text = text or self._chance.choice(TEXTS)
        slowly = self._chance.random() < 0.3
        utterance = await session.start()
        writing = asyncio.ensure_future(_write(utterance, text, self._chance))
        try:
            async for _ in utterance:
                if slowly:
                    await asyncio.sleep(0.01)
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        result = utterance.result
        if not isinstance(result, s.Done):
            raise Wrong(f"the utterance ended with {result}")
        if session.line.restarts:
            raise Wrong("the server lost the session, and the client said the rest of the text in a new one")
        self._check(text, "websocket", result.digest)

    def _check(self, text: str, way: str, digest: str) -> None:
        if self._expected.setdefault((text, way), digest) != digest:
            raise Wrong(f"{text[:20]!r} does not sound as it did ({way})")
        self._tally.complete += 1


async def _write(utterance: client.Utterance, text: str, chance: Random) -> None:
    at = 0
    while at < len(text):
        size = chance.randrange(1, 40)
        await utterance.write(text[at : at + size])
        at += size
        if chance.random() < 0.3:
            await asyncio.sleep(chance.uniform(0.0, 0.05))
    await utterance.end()


async def speak_over_http(port: int, text: str, most: int | None = None) -> tuple[int, bytes]:
    """Status and body; `most`: leave after so many bytes of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = orjson.dumps({"text": text, "format": "pcm"})
        head = (
            "POST /v1/speak HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        if most is not None:
            return 0, await reader.read(most)
        status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])
        if status != 200:
            return status, await reader.read()
        pcm = bytearray()
        while size := int(await reader.readuntil(b"\r\n"), 16):
            pcm += (await reader.readexactly(size + 2))[:-2]
        return status, bytes(pcm)
    finally:
        writer.transport.abort()


async def expected_digests(port: int) -> Digests:
    """What every text sounds like when nothing disturbs it. Raises Wrong, OSError and client.ClientError."""
    expected: Digests = {}
    async with FaultyProxy(port) as proxy:
        undisturbed = Client(port, proxy, Random(0), expected, Tally())
        for text in TEXTS:
            async with undisturbed._connect() as session:
                await undisturbed._utterance(session, text)
            await undisturbed.request(text)
    return expected


class Churn:
    """What can be asked of the process (see `bench._helper`)."""

    def __init__(self) -> None:
        self._expected: Digests = {}

    async def prepare(self, port: int) -> None:
        """Hear every text once."""
        self._expected = await expected_digests(port)

    async def churn(self, port: int, seed: int, clients: int, seconds: float) -> Tally:
        """So many clients side by side for a while."""
        tally = Tally()
        until = asyncio.get_running_loop().time() + seconds

        async def one(number: int) -> None:
            chance = Random(f"{seed}:{number}")
            async with FaultyProxy(port) as proxy:
                await Client(port, proxy, chance, self._expected, tally).live(until)

        lag = asyncio.create_task(_watch_lag(tally))
        await asyncio.gather(*map(one, range(clients)))
        lag.cancel()
        return tally


async def _watch_lag(tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        tally.worst_lag_s = max(tally.worst_lag_s, loop.time() - due)
