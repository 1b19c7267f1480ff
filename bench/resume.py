"""What a drop costs: how soon sound goes on, what 1,000 drops lose, what 200 sessions without connection hold.

`python -m bench.resume [--drops N]`. A text is spoken by the embedded voice while its connection is cut over and over;
the audio must be that of an undisturbed run: equal where the mode is pinned, within one 16-bit step where it is not.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

import client
from bench._common import Report, ServerProcess, arguments, run, server_process
from deploy.faulty_proxy import Connection, FaultyProxy
from protocol import SUBPROTOCOL
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.client_messages import Mode
from protocol.codec import decode_server, encode
from protocol.frames import AudioFrame, decode_frame

SENTENCES: Final = (
    "The ferry left at a quarter past nine, half an hour late, with four hundred people on board.",
    "雾还没有散，码头上的灯一盏一盏地亮着。",
    "Nobody had told the captain about the rocks.",
    "他看了看表，又看了看海，什么也没说。",
)
RESUMES: Final = 60  # timed
GAP_S: Final = 0.5  # of audio between two drops, at least
DETACHED: Final = 200
BUDGET_MB: Final = 32


@dataclass(slots=True)
class Line:
    """One session over many sockets, as bare as can be: what arrived, and how long each resume took."""

    url: str
    socket: ClientConnection
    opened: s.Opened
    token: str
    generation: int = 1
    next_sample: int = 0
    event: int = 0

    @classmethod
    async def open(cls, url: str, text: str, **options: Any) -> "Line":
        """A session that speaks `text`."""
        socket = await _connect(url)
        await socket.send(encode(c.Open(**{"max_lead_ms": None, **options})))
        opened = decode_server(await socket.recv(decode=True))
        if not isinstance(opened, s.Opened):
            raise RuntimeError(f"the server did not open a session: {opened}")
        for message in (c.Start(1, 1), c.Text(2, text), c.End(3)):
            await socket.send(encode(message))
        return cls(url, socket, opened, opened.token)

    async def frame(self) -> AudioFrame:
        """The next audio; events on the way are counted."""
        while True:
            data = await self.socket.recv()
            if isinstance(data, bytes):
                frame = decode_frame(data)
                self.next_sample = frame.end_sample
                return frame
            message = decode_server(data)
            if isinstance(message, s.EVENTS):
                self.event = message.event
            elif isinstance(message, s.Resumed):
                self.generation, self.token = message.generation, message.new_token
            elif isinstance(message, s.ResumeFailed | s.Error):
                raise RuntimeError(f"not resumed: {message}")

    async def drop(self) -> None:
        """The connection is gone, without a word."""
        self.socket.transport.abort()
        await self.socket.wait_closed()

    async def resume(self) -> float:
        """Come back; seconds from the first SYN to the first new audio."""
        began = time.perf_counter()
        self.socket = await _connect(self.url)
        await self.socket.send(encode(self.ask()))
        expected = self.next_sample
        frame = await self.frame()
        if frame.first_sample != expected:
            raise RuntimeError(f"sample {frame.first_sample} came instead of {expected}")
        return time.perf_counter() - began

    def ask(self) -> c.Resume:
        """The message that asks to go on."""
        return c.Resume(
            self.opened.session, self.token, self.opened.epoch, self.generation, 1, self.next_sample, self.event
        )


async def _connect(url: str) -> ClientConnection:
    return await connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None)


async def resume_times(url: str) -> list[float]:
    """How long it takes from a new connection to new sound, milliseconds."""
    line = await Line.open(url, " ".join(SENTENCES * 40))
    times = []
    for _ in range(RESUMES):
        for _ in range(5):
            await line.frame()
        await line.drop()
        times.append(1_000 * await line.resume())
    await line.socket.close()
    return times


@dataclass(slots=True)
class Taken:
    """An utterance as the client library gave it out."""

    pcm: bytes
    digest: str
    resumes: int
    seconds: float


async def speak(proxy: FaultyProxy, text: str, mode: Mode, drops: int) -> Taken:
    """The text's audio by the client library, its connection cut `drops` times, each after it had come back."""
    pcm, done, cut_at = bytearray(), 0, 0.0
    began = time.perf_counter()
    async with client.connect(proxy.url, mode=mode) as session:
        utterance = await session.start()
        writing = asyncio.ensure_future(_write(utterance, text))
        async for item in utterance:
            if not isinstance(item, client.Audio):
                continue
            if item.first_sample * 2 != len(pcm):
                raise RuntimeError(f"sample {item.first_sample} came after {len(pcm) // 2}")
            pcm += item.pcm
            if done < drops and done == session.line.resumes and item.end_sample >= cut_at:
                done, cut_at = done + 1, item.end_sample + GAP_S * session.sample_rate
                proxy.each(Connection.reset)
        await writing
        result = utterance.result
        if not isinstance(result, s.Done) or result.samples * 2 != len(pcm):
            raise RuntimeError(f"{len(pcm) // 2} samples came, and then {result}")
        return Taken(bytes(pcm), result.digest, session.line.resumes, time.perf_counter() - began)


async def _write(utterance: client.Utterance, text: str) -> None:
    await utterance.write(text)
    await utterance.end()


def difference(a: bytes, b: bytes) -> tuple[int, int]:
    """Samples that one has more than the other, and the largest difference in 16-bit steps."""
    first, second = np.frombuffer(a, "<i2").astype(np.int32), np.frombuffer(b, "<i2").astype(np.int32)
    count = min(len(first), len(second))
    largest = int(np.abs(first[:count] - second[:count]).max()) if count else 0
    return abs(len(first) - len(second)), largest


async def many_drops(report: Report, proxy: FaultyProxy, drops: int) -> None:
    """One long text, undisturbed and cut all the time."""
    text = " ".join(SENTENCES * (5 + drops // 6))
    modes: tuple[Mode, ...] = ("stream", "auto")
    for mode in modes:
        whole = await speak(proxy, text, "stream", 0)
        cut = await speak(proxy, text, mode, drops)
        lost, steps = difference(whole.pcm, cut.pcm)
        report.add(f"mode {mode}: drops without a resume", drops - cut.resumes, "", 0)
        report.add(f"mode {mode}: samples lost or repeated", lost, "", 0)
        report.add(f"mode {mode}: largest difference", steps, "LSB", 0 if mode == "stream" else 1)
        report.note(
            f"mode {mode}: {len(cut.pcm) / 48_000:.0f} s of audio in {cut.seconds:.0f} s; digest {cut.digest[:16]}"
        )


async def detached(report: Report, server: ServerProcess) -> None:
    """Many sessions lose their connections at once; the server keeps what the budget allows."""
    lines = [await Line.open(server.url, " ".join(SENTENCES * 8)) for _ in range(DETACHED)]
    for line in lines:
        await line.frame()
        await line.drop()
    deadline = time.monotonic() + 120
    kept = -1.0
    while time.monotonic() < deadline:  # until the engine has filled what it may
        before, kept = kept, server.metric("cosystream_sessions_detached_bytes")
        if kept == before and kept:
            break
        await asyncio.sleep(2.0)
    report.add(f"{DETACHED} sessions without connection hold", kept / 1024 / 1024, "MiB", BUDGET_MB)
    answers: list[str] = []
    for line in lines:
        socket = await _connect(server.url)
        await socket.send(encode(line.ask()))
        answer = decode_server(await socket.recv(decode=True))
        answers.append(answer.reason if isinstance(answer, s.ResumeFailed) else type(answer).__name__.lower())
        await socket.close()
    report.note(
        "their clients came back: " + ", ".join(f"{answers.count(each)} {each}" for each in sorted(set(answers)))
    )
    report.add(
        "  answered neither `resumed` nor `evicted`", sum(a not in ("resumed", "evicted") for a in answers), "", 0
    )


async def measure(args: argparse.Namespace) -> Report:
    """The figures."""
    report = Report("resume")
    with server_process() as server:
        times = await resume_times(server.url)
        report.spread("from a new connection to new sound", times, "ms", p95=20.0)
        async with FaultyProxy(server.port) as proxy:
            await many_drops(report, proxy, args.drops)
    with server_process("--resume-budget-mb", str(BUDGET_MB), "--engine", "tone", "--max-sessions", "400") as server:
        await detached(report, server)
    return report


def main() -> int:
    """The command."""
    args = arguments(__doc__, drops=(1_000, "how often the long text is cut"))
    return run(measure(args)).finish(args.json)


if __name__ == "__main__":
    raise SystemExit(main())
