"""What an honest server sends for one utterance, as plain values, for tests of the client's pure parts."""

import hashlib
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from client.effects import Deliver, Effect, Failed, Send
from client.items import Audio
from client.session import SessionState
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame, Codec, FrameFlag

RATE = 24_000
Sent: TypeAlias = s.ServerMessage | AudioFrame


def opened(**changes: object) -> s.Opened:
    """An answer to `open`; `changes` go to its config, limits or fields."""
    config = {"sample_rate": RATE, "format": "pcm", "max_lead_ms": changes.pop("max_lead_ms", None)}
    config |= {"format": changes.pop("format", "pcm")}
    limits = {
        "text_window_chars": changes.pop("window", 1_000),
        "idle_timeout_ms": 60_000,
        "resume_ttl_ms": changes.pop("resume_ttl_ms", 0),
    }
    return replace(s.Opened("id", "token", 0, 1, config, limits), **changes)  # type: ignore[arg-type]  # by name


def started(now: float = 0.0, **options: object) -> SessionState:
    """A session with its first utterance begun."""
    queue = options.pop("queue_bytes", 1_048_576)
    assert isinstance(queue, int)
    state = SessionState(opened(**options), now, queue_bytes=queue)
    state.start(c.Start(0, 1), now)
    return state


def samples(count: int, salt: int = 0) -> bytes:
    """Samples that differ everywhere."""
    return b"".join(((n * 2_654_435_761 + salt) % 65_536).to_bytes(2, "little") for n in range(count))


@dataclass
class Script:
    """Builds the messages of an utterance. Segments are their sample counts; cuts are where frames end."""

    utterance: int = 1
    event: int = 0
    sent: list[Sent] = field(default_factory=list)
    pcm: bytes = b""

    def _number(self) -> int:
        self.event += 1
        return self.event

    def speak(self, segments: list[int], cuts: list[int], *, late_ends: bool = False) -> "Script":
        """Segments one after the other; frames may cross their edges. `late_ends`: ends come after the next begin."""
        starts = [sum(segments[:i]) for i in range(len(segments) + 1)]
        total = starts[-1]
        self.pcm = samples(total, self.utterance)
        edges = sorted({0, total, *(cut for cut in cuts if 0 < cut < total)})
        frames = list(pairwise(edges))
        digests, wire = hashlib.sha256(), hashlib.sha256()
        begun = ended = 0

        def catch_up(begin_before: int, end_at: int) -> None:
            nonlocal begun, ended
            while begun < len(segments) and starts[begun] < begin_before:
                self.sent.append(s.SegmentBegin(self._number(), self.utterance, begun, begun, begun + 1, starts[begun]))
                begun += 1
            while ended < begun and starts[ended + 1] <= end_at:
                digest = hashlib.sha256(self.pcm[2 * starts[ended] : 2 * starts[ended + 1]])
                digests.update(digest.digest())
                self.sent.append(
                    s.SegmentEnd(self._number(), self.utterance, ended, segments[ended], digest.hexdigest())
                )
                ended += 1

        for first, last in frames:
            catch_up(last, -1 if late_ends else first)
            payload = self.pcm[2 * first : 2 * last]
            wire.update(payload)
            self.sent.append(AudioFrame(Codec.PCM, self.utterance, first, last - first, payload))
        catch_up(total + 1, total)
        self.sent.append(s.Done(self._number(), self.utterance, total, digests.hexdigest(), wire.hexdigest(), {}))
        return self


def feed(state: SessionState, item: Sent, now: float = 0.0) -> list[Effect]:
    """Gives the state one thing from the server."""
    return state.feed_frame(item, now) if isinstance(item, AudioFrame) else state.feed_message(item, now)


def play(state: SessionState, sent: list[Sent], now: float = 0.0) -> list[Effect]:
    """All of them."""
    return [effect for item in sent for effect in feed(state, item, now)]


def pcm_of(effects: list[Effect], utterance: int = 1) -> bytes:
    """The audio that was delivered, checked to be one piece."""
    parts: list[bytes] = []
    at = 0
    for effect in effects:
        if isinstance(effect, Deliver) and isinstance(effect.item, Audio) and effect.utterance == utterance:
            assert effect.item.first_sample == at
            assert len(effect.item.pcm) == 2 * effect.item.count
            at = effect.item.end_sample
            parts.append(effect.item.pcm)
    return b"".join(parts)


def acks_of(effects: list[Effect]) -> list[c.Ack]:
    """The acks among the effects."""
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, c.Ack)]


def failure_of(effects: list[Effect]) -> Exception | None:
    """The error of the session, if it failed."""
    return next((effect.error for effect in effects if isinstance(effect, Failed)), None)


def frame(first: int, pcm: bytes, utterance: int = 1, flags: FrameFlag = FrameFlag.NONE) -> AudioFrame:
    """A PCM frame."""
    return AudioFrame(Codec.PCM, utterance, first, len(pcm) // 2, pcm, flags)
