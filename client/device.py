"""The sound device, through the optional package `sounddevice`."""

import asyncio
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from client.errors import ClientError
from client.items import Audio
from client.playout import MAX_PREROLL_MS, Playout
from protocol.server_messages import Event, SegmentBegin, SegmentEnd

REPORT_S: Final = 0.1  # how often played samples are reported
MAX_BUFFERED_S: Final = 30  # waits above this; the server's lead (`max_lead_ms`) normally keeps it far below


class DeviceUnavailable(ClientError):
    """Nothing to play on: the package is missing, or the machine has no sound device."""


class DeviceSink:
    """Plays an utterance. `report(played_sample, buffered_ms, stalls)` is called about ten times a second meanwhile."""

    def __init__(self, report: Callable[[int, int, int], None], max_preroll_ms: int = MAX_PREROLL_MS) -> None:
        self.stalls = 0
        self._report = report
        self._max_preroll_ms = max_preroll_ms
        self._sounddevice = load_sounddevice()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # the device's thread pulls, the event loop pushes
        self._drained = asyncio.Event()
        self._room = asyncio.Event()
        self._playout: Playout | None = None
        self._stream: Any = None
        self._until_report = 0
        self._latency = 0

    @property
    def played_sample(self) -> int:
        """How far the listener has heard."""
        if self._playout is None:
            return 0
        return max(0, self._playout.played_samples - self._latency)

    async def begin(self, sample_rate: int, pre_skip: int) -> None:
        """Opens the device. Raises DeviceUnavailable."""
        self._playout = Playout(sample_rate, max_preroll_ms=self._max_preroll_ms)
        try:
            self._stream = self._sounddevice.RawOutputStream(
                samplerate=sample_rate, channels=1, dtype="int16", callback=self._pull
            )
            self._latency = int(self._stream.latency * sample_rate)
            self._stream.start()
        except self._sounddevice.PortAudioError as error:
            raise DeviceUnavailable(f"cannot play: {error}") from error

    async def write(self, audio: Audio) -> None:
        """Queues the audio; waits while far too much is queued."""
        playout = self._opened()
        while playout.buffered_samples > MAX_BUFFERED_S * playout.sample_rate:
            self._room.clear()
            await self._room.wait()
        with self._lock:
            playout.push(audio.pcm, monotonic())

    def told(self, event: Event) -> None:
        """What the server says about the audio: between segments it is not the line that is silent."""
        if isinstance(event, SegmentBegin | SegmentEnd):
            with self._lock:
                self._opened().between(isinstance(event, SegmentEnd))

    async def finish(self, samples: int) -> None:
        """Waits until everything was heard."""
        with self._lock:
            self._opened().complete()
        await self._drained.wait()
        await asyncio.sleep(self._latency / self._opened().sample_rate)  # what the device itself still holds
        self._close()

    def silence(self) -> None:
        """Plays nothing more of what is queued."""
        with self._lock:
            self._opened().clear()

    async def interrupt(self) -> None:
        """Silence, now."""
        self.silence()
        self._close()

    async def abandon(self) -> None:
        """The same."""
        if self._playout is not None:
            await self.interrupt()

    def _opened(self) -> Playout:
        assert self._playout is not None
        return self._playout

    def _pull(self, out: Any, frames: int, _time: object, _status: object) -> None:
        """Runs in the device's thread."""
        playout = self._opened()
        with self._lock:
            out[:] = playout.pull(frames)
            drained = playout.drained
        self._until_report -= frames
        if self._until_report <= 0 or drained:
            self._until_report = int(REPORT_S * playout.sample_rate)
            self._loop.call_soon_threadsafe(self._tell, drained)

    def _tell(self, drained: bool) -> None:
        playout = self._opened()
        self.stalls = playout.stalls
        self._room.set()
        self._report(playout.played_samples if drained else self.played_sample, playout.buffered_ms, playout.stalls)
        if drained:
            self._drained.set()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.abort()
            self._stream.close()
            self._stream = None


def load_sounddevice() -> Any:
    """The package. Raises DeviceUnavailable, also where the machine has no sound device."""
    try:
        import sounddevice
    except ImportError:
        raise DeviceUnavailable("cannot play: the package sounddevice is missing, pip install -e '.[play]'") from None
    except OSError as error:  # PortAudio itself is missing
        raise DeviceUnavailable(f"cannot play: {error} (Debian and Ubuntu: apt-get install libportaudio2)") from None
    try:
        sounddevice.query_devices(kind="output")
    except (sounddevice.PortAudioError, ValueError):
        raise DeviceUnavailable("cannot play: this machine has no sound device") from None
    return sounddevice
