"""Segments on their way through upstream's generators, which know neither how to be cancelled nor how to fail.

Each runs on a thread of its own; the pieces that it made wait in a short queue. What upstream's driver lacks is put
around its parts: a language model that is stopped draws no more codes, and one that fails ends its utterance.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from server.engines.base import EngineError, Samples

WAIT_S: Final = 0.03  # of a step, for the next piece
WAITING_PIECES: Final = 2  # while nobody else wants to be spoken
_LOOK_S: Final = 0.05
_KEPT_BY_REQUEST: Final = ("tts_speech_token_dict", "llm_end_dict", "hift_cache_dict")
_FIRST_CODES: Final = 25  # of the first chunk; upstream lets it grow for all later requests


class Stopped(Exception):
    """Nobody wants this utterance any more."""


class Driver:
    """Upstream's `CosyVoice2Model` or `CosyVoice3Model`, made safe to stop. One utterance at a time."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._turn = threading.Lock()
        self._count = threading.Lock()
        self._queued = 0
        self._stopped: Callable[[], bool] = lambda: False
        self._error: BaseException | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._draws, self._infers, self._solves = model.llm_job, model.llm.inference, model.token2wav
        model.llm_job, model.llm.inference, model.token2wav = self._job, self._inference, self._token2wav

    @property
    def wanted(self) -> bool:
        """Whether another utterance waits for its turn."""
        return self._queued > 0

    def run(
        self, generate: Callable[[], Iterator[Any]], give: Callable[[Any], None], stopped: Callable[[], bool]
    ) -> None:
        """Take turns with other threads, then give everything that is generated. Raises Stopped, and what upstream
        raises, on whichever of its threads.
        """
        with self._count:
            self._queued += 1
        while not self._turn.acquire(timeout=_LOOK_S):
            if stopped():
                self._leave()
                raise Stopped
        self._leave()
        try:
            self._stopped, self._error = stopped, None
            if hasattr(self._model, "token_hop_len"):
                self._model.token_hop_len = _FIRST_CODES
            try:
                for made in generate():
                    give(made)
            except Exception as error:
                if self._error is None:
                    raise
                raise self._error from error  # what came of it is of no interest
            if self._error is not None:
                raise self._error
        finally:
            self._idle.wait()  # its language model's thread: stopped() is looked at for every code
            for name in _KEPT_BY_REQUEST:
                getattr(self._model, name, {}).clear()
            self._turn.release()

    def _leave(self) -> None:
        with self._count:
            self._queued -= 1

    def _job(self, *args: Any) -> None:
        """Upstream waits for the end of this for ever where it raises. Its last argument is the request's name."""
        self._idle.clear()
        try:
            self._draws(*args)
        except Exception as error:  # noqa: BLE001  # raised again on the thread that waits
            self._error = error
        finally:
            self._model.llm_end_dict[args[-1]] = True
            self._idle.set()

    def _inference(self, *args: Any, **options: Any) -> Iterator[Any]:
        for code in self._infers(*args, **options):
            if self._stopped():
                return
            yield code

    def _token2wav(self, *args: Any, **options: Any) -> Any:
        if self._stopped():
            raise Stopped
        if self._error is not None:
            raise self._error
        return self._solves(*args, **options)


class Speech:
    """One segment. Iterate over `pieces()` from one thread; closing the iterator stops it."""

    def __init__(self, driver: Driver, generate: Callable[[], Iterator[Any]]) -> None:
        """`generate` calls upstream: an iterator of `{"tts_speech": [1, samples]}`."""
        self._driver = driver
        self._generate = generate
        self._changed = threading.Condition()
        self._made: deque[Samples] = deque()
        self._stop = self._ended = False
        self._error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="cosyvoice-upstream", daemon=True)

    def pieces(self) -> Iterator[Samples]:
        """Samples as they come; nothing while there are none yet. Raises EngineError."""
        self.thread.start()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._made or self._ended, timeout=WAIT_S)
                    piece = self._made.popleft() if self._made else None
                    over = piece is None and self._ended
                    self._changed.notify_all()
                if over:
                    break
                yield np.zeros(0, np.float32) if piece is None else piece
            if self._error is not None:
                kind = type(self._error).__name__
                raise EngineError(f"CosyVoice failed: {kind}") from self._error  # its message may quote the text
        finally:
            self.stop()

    def stop(self) -> None:
        """It ends soon; does not wait for it."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._driver.run(self._generate, self._give, lambda: self._stop)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001  # told where the segment is waited for
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _give(self, made: Any) -> None:
        samples = np.asarray(made["tts_speech"], np.float32).reshape(-1)
        with self._changed:
            self._made.append(samples)
            self._changed.notify_all()
            # While others wait, a listener who takes his time must not hold them up: a segment is short enough.
            while len(self._made) >= WAITING_PIECES and not self._stop and not self._driver.wanted:
                self._changed.wait(timeout=_LOOK_S)
            if self._stop:
                raise Stopped
