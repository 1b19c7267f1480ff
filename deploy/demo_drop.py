"""`make demo-drop`: a text is spoken while its line is cut again and again, then the proof that nothing was lost.

Starts a server on a free port and a proxy before it, speaks a bilingual text through the client library with a listener
who plays at normal speed, cuts the line in four ways, writes demo_drop.wav, and compares that file with the server's
own checksums and with the same text spoken without disturbance. Every line it prints fits in 80 columns.
"""

import argparse
import asyncio
import hashlib
import sys
import time
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import client
from deploy.demo_picture import Outage, buffer_picture
from deploy.faulty_proxy import DOWN, UP, Connection, FaultyProxy
from deploy.local_server import ROOT, ServerNotReady, local_server
from protocol import server_messages as s

AUDIO: Final = ROOT / "demo_drop.wav"
RATE: Final = 24_000
LEAD_MS: Final = 4_000  # what the client may hold ahead of the listener; the server's default
DELAY_S: Final = 0.02  # each way
TICK_S: Final = 0.02  # how often the listener takes sound
PICTURE_S: Final = 0.5  # one column
PATIENCE_S: Final = 60.0
MODE: Final = "stream"  # pinned, so that both runs must give the same bits: `block` may round a sample differently

TEXT: Final = (
    "你好！这段话一边生成，一边播放，而线路会断开四次。第一次，连接被重置。"
    "The second time, nobody says a word: the old connection is simply dead. "
    "第三次，列车进入隧道，两秒钟没有信号。声音不会停，因为前面已经存了四秒。"
    "The last tunnel is longer than that, so you hear a pause, and then the very next sample. "
    "最后，我们核对每一个采样点。Thank you for listening!"
)


class DemoError(Exception):
    """The demo cannot go on, or did not prove what it should."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens `at_s` after the first sound, for `lasts_s`."""

    at_s: float
    what: str
    begin: Callable[[FaultyProxy], None]
    lasts_s: float = 0.0


FAULTS: Final = (
    Fault(2.0, "RESET   both ends get a RST", lambda proxy: proxy.each(Connection.reset)),
    Fault(5.0, "DEAD    this connection carries nothing", lambda proxy: proxy.each(Connection.silence)),
    Fault(9.0, "TUNNEL  nothing passes for 2 s", lambda proxy: proxy.hole(UP, DOWN), 2.0),
    Fault(15.0, "TUNNEL  nothing passes for 5 s", lambda proxy: proxy.hole(UP, DOWN), 5.0),
)


@dataclass
class Spoken:
    """The audio of an utterance as the client had it. `resumes`: how often another connection went on with it."""

    pcm: bytearray = field(default_factory=bytearray)
    segments: list[s.SegmentEnd] = field(default_factory=list)
    done: s.Done | None = None
    lost: int = 0  # samples
    repeated: int = 0
    resumes: int = 0

    def take(self, item: client.Item) -> None:
        """One thing that the utterance yielded."""
        match item:
            case client.Audio():
                gap = item.first_sample - len(self.pcm) // 2
                self.lost += max(0, gap)
                self.repeated += max(0, -gap)
                self.pcm += item.pcm
            case s.SegmentEnd():
                self.segments.append(item)
            case s.Done():
                self.done = item

    def digest(self, pcm: bytes | bytearray) -> str:
        """As the server counts it: the SHA-256 of the segments' SHA-256, with this audio."""
        whole, at = hashlib.sha256(), 0
        for end in self.segments:
            whole.update(hashlib.sha256(pcm[2 * at : 2 * (at + end.samples)]).digest())
            at += end.samples
        return whole.hexdigest()


class Listener:
    """Plays at normal speed, and remembers how much was in hand."""

    def __init__(self, utterance: client.Utterance) -> None:
        self.playout = client.Playout(RATE)
        self.levels: list[float] = []  # seconds in the buffer, each `PICTURE_S`
        self.started: float | None = None  # when the first sound was played
        self._utterance = utterance

    @property
    def buffer_s(self) -> float:
        """Seconds in hand."""
        return self.playout.buffered_ms / 1000

    async def play(self) -> None:
        """Until everything was heard."""
        clock, taken = time.monotonic(), 0
        while not self.playout.drained:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            due = round((now - clock) * RATE) - taken
            taken += due
            before = self.playout.played_samples
            self.playout.pull(due)
            if self.started is None and self.playout.played_samples > before:
                self.started = now
            if self.started is not None and (now - self.started) / PICTURE_S >= len(self.levels):
                self.levels.append(self.buffer_s)
            self._utterance.played(self.playout.played_samples, self.playout.buffered_ms, self.playout.stalls)


class Show:
    """Prints what happens, with the time since the first sound."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def line(self, text: str) -> None:
        """One line."""
        print(f"{time.monotonic() - self.began:7.2f} s  {text}", flush=True)


async def undisturbed(url: str) -> Spoken:
    """The text without faults, as fast as it comes."""
    spoken = Spoken()
    async with client.connect(url, sample_rate=RATE, mode=MODE) as session:
        utterance = await session.start()
        await utterance.write(TEXT)
        await utterance.end()
        async for item in utterance:
            spoken.take(item)
    return spoken


@dataclass(frozen=True, slots=True)
class Heard:
    """The run over the line that fails. `outages`: times after the first sound."""

    spoken: Spoken
    listener: Listener
    outages: Sequence[Outage]
    by_new_connection: int  # after so many cuts another connection went on; after the others the old one did


async def disturbed(port: int) -> Heard:
    """The text with faults, played at normal speed. Raises DemoError where a fault came too late to matter."""
    show, spoken = Show(), Spoken()
    arrived = asyncio.Event()
    async with FaultyProxy(port, tcp_backoff=True) as proxy:
        proxy.change(UP, DOWN, delay_s=DELAY_S)
        async with client.connect(
            proxy.url,
            sample_rate=RATE,
            mode=MODE,
            max_lead_ms=LEAD_MS,
            on_notice=lambda text: show.line(f"  client: {text}"),
        ) as session:
            utterance = await session.start()
            await utterance.write(TEXT)
            await utterance.end()
            listener = Listener(utterance)
            playing = asyncio.create_task(listener.play(), name="listener")
            failing = asyncio.create_task(fail(proxy, session, listener, show, arrived), name="faults")
            try:
                async for item in utterance:
                    spoken.take(item)
                    if isinstance(item, client.Audio):
                        listener.playout.push(item.pcm, time.monotonic())
                        arrived.set()
                    elif isinstance(item, s.SegmentBegin | s.SegmentEnd):
                        listener.playout.between(isinstance(item, s.SegmentEnd))
                listener.playout.complete()
                await playing
                show.line(f"all of it was heard; silence where there should be none: {gap_s(listener):.2f} s")
                if not failing.done():
                    raise DemoError("the speech was over before the last cut")
                outages, resumes_before = failing.result()
            finally:
                for task in (playing, failing):
                    task.cancel()
                await asyncio.gather(playing, failing, return_exceptions=True)
            spoken.resumes = session.line.resumes
    resumes_after = [*resumes_before[1:], spoken.resumes]
    renewed = sum(after > before for before, after in zip(resumes_before, resumes_after, strict=True))
    return Heard(spoken, listener, outages, renewed)


async def fail(
    proxy: FaultyProxy, session: client.Session, listener: Listener, show: Show, arrived: asyncio.Event
) -> tuple[list[Outage], list[int]]:
    """Let the faults happen. Returns when the line was dead, and how often the session had been resumed before each."""
    await arrived.wait()
    show.began = time.monotonic()
    show.line("first sound")
    outages, resumes = [], []
    for number, fault in enumerate(FAULTS, 1):
        await asyncio.sleep(max(0.0, show.began + fault.at_s - time.monotonic()))
        began, gap = time.monotonic(), gap_s(listener)
        resumes.append(session.line.resumes)
        show.line(f"CUT {number}  {fault.what:<40}  {listener.buffer_s:.1f} s in hand")
        fault.begin(proxy)
        await asyncio.sleep(fault.lasts_s)
        proxy.heal()
        back = time.monotonic()
        if fault.lasts_s:
            show.line(f"  {'the line is back':<45}  {listener.buffer_s:.1f} s in hand")
        outages.append((began - show.began, (back if fault.lasts_s else began) - show.began))
        arrived.clear()
        await arrived.wait()
        after = f"{time.monotonic() - back:.2f} s after the {'line was back' if fault.lasts_s else 'cut'}"
        more = gap_s(listener) - gap
        show.line(f"  next sample {after}; {f'{more:.1f} s of' if more > TICK_S else 'no'} silence heard\n")
    return outages, resumes


def gap_s(listener: Listener) -> float:
    """Silence that was not meant."""
    return listener.playout.gap_samples / RATE


def write(spoken: Spoken) -> None:
    """The file to listen to."""
    with wave.open(str(AUDIO), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(spoken.pcm)


def report(calm: Spoken, spoken: Spoken, by_new_connection: int) -> list[str]:
    """The proof, line by line. Raises DemoError where it fails."""
    assert calm.done is not None
    assert spoken.done is not None
    with wave.open(str(AUDIO), "rb") as file:
        written = file.readframes(file.getnframes())
    of_file = spoken.digest(written)
    holds = {
        "the file has the server's checksum": of_file == spoken.done.digest,
        "no sample was lost or came twice": spoken.lost == spoken.repeated == 0,
        "the file has the length of the undisturbed run": len(written) == len(calm.pcm) == 2 * spoken.done.samples,
        "every sample is that of the undisturbed run": written == calm.pcm,
    }
    if wrong := [what for what, true in holds.items() if not true]:
        raise DemoError(f"not true: {'; '.join(wrong)}")
    return [
        _row("", "undisturbed", f"with {len(FAULTS)} cuts"),
        _row("samples", f"{len(calm.pcm) // 2:,}", f"{len(written) // 2:,}"),
        _row("SHA-256, as the server counted", f"{calm.done.digest[:16]}...", f"{spoken.done.digest[:16]}..."),
        _row("SHA-256, of what the client has", f"{calm.digest(calm.pcm)[:16]}...", f"{of_file[:16]}..."),
        _row("samples lost / that came twice", f"{calm.lost} / {calm.repeated}", f"{spoken.lost} / {spoken.repeated}"),
        _row("cuts, then a new connection went on", "", f"{by_new_connection}"),
        _row("cuts, then the old one worked again", "", f"{len(FAULTS) - by_new_connection}"),
    ]


def _row(what: str, undisturbed: str, disturbed: str) -> str:
    return f"{what:40}{undisturbed:>20}{disturbed:>20}"


async def show_it(port: int, url: str) -> None:
    """Both runs and the proof."""
    async with asyncio.timeout(PATIENCE_S):
        print("Speaking the text once without disturbance ...", flush=True)
        calm = await undisturbed(url)
        print("And now with a listener, over a line that is cut:\n", flush=True)
        heard = await disturbed(port)
    spoken = heard.spoken
    write(spoken)
    lines = report(calm, spoken, heard.by_new_connection)
    print(f"\n{buffer_picture(heard.listener.levels, heard.outages, PICTURE_S)}\n")
    print("\n".join(lines))
    print(f"\nBit for bit the same. Wrote {AUDIO.name}: {len(spoken.pcm) / 2 / RATE:.1f} s of speech.")


def main() -> int:
    """Run the demo; the exit status is 0 when the proof holds."""
    parser = argparse.ArgumentParser(prog="make demo-drop", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--engine", default="embedded", help="which engine speaks (default: embedded)")
    arguments = parser.parse_args()
    try:
        print("Starting a server ...", flush=True)
        with local_server("--engine", arguments.engine) as server:
            asyncio.run(show_it(server.port, server.url))
    except (DemoError, ServerNotReady, client.ClientError) as error:
        print(f"demo-drop: {error}", file=sys.stderr)
        return 1
    except TimeoutError:
        print(f"demo-drop: it was not over within {PATIENCE_S:.0f} s", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo-drop: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
