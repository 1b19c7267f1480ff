"""One run in virtual time: a text is spoken over a modelled link; what the listener noticed comes back as numbers."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final

from bench._link_profiles import Profile
from bench._simulated_client import Client, Heard
from bench._simulated_clock import Clock
from bench._simulated_network import Network
from bench._simulated_server import Server, stand_in_opus
from bench._simulated_speaker import Made, Speaker
from protocol.client_messages import AudioFormat, Mode, Open
from protocol.server_messages import ModeChange
from server.engines.base import Capabilities
from server.engines.tone import ToneEngine
from server.session import Policy

SENTENCES: Final = (
    "今天的天气很好，我们一起去公园散步吧。", "这座城市有两千多年的历史，河边的樱花都开了。", "你听得清楚吗？",
    "第一，我们要知道数据从哪里来；第二，要确认它们是否完整。", "他每天早上都要下山去挑水，路很长，水桶又重。",
)  # fmt: skip
CHARACTERS_PER_SECOND: Final = 5
TOLD_LATE_S: Final = 0.15  # what was played is told by acks: this much later than a round trip
PATIENCE_S: Final = 120.0  # after the time the speech takes: a run that has not ended then never does
SAMPLE_RATE: Final = 24_000


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to send: which mode the client asks for, and how far audio may run ahead of what was played.

    `paced`: as one who sends in real time, `lead_ms` after the listener. The server knows the listener by acks, so the
    lead that is asked for is larger by what they come late.
    """

    name: str
    mode: Mode
    lead_ms: int
    paced: bool = False

    def asked_ms(self, rtt_s: float) -> int:
        """`open.max_lead_ms`."""
        return self.lead_ms + (round(1000 * (rtt_s + TOLD_LATE_S)) if self.paced else 0)


ARMS: Final = (
    Arm("chunk, paced", "stream", 300, paced=True),
    Arm("chunk, unpaced", "stream", 4_000),
    Arm("block", "block", 4_000),
    Arm("adaptive", "auto", 4_000),
)


@dataclass(slots=True)
class Outcome:
    """What one run measured. Seconds; a figure that there is none of is None."""

    finished: bool = False
    failure: str = ""
    wrong: list[str] = field(default_factory=list)
    wrong_samples: int = 0  # missing, doubled or altered
    first_sound_s: float | None = None  # from the text to the first sound
    first_frame_s: float | None = None  # from the text to the first audio at the client
    stalls: int = 0
    silent_s: float = 0.0
    audio_s: float = 0.0
    recovery_s: list[float] = field(default_factory=list)  # from link-up to sound, of every trouble that was heard
    unheard_troubles: int = 0  # holes and resets that nobody noticed
    resumes: int = 0
    resent_bytes: int = 0
    wasted_s: float = 0.0  # sent, and not heard because of the cancel
    switches: list[tuple[float, str, str]] = field(default_factory=list)  # (second, mode, reason)
    peak_ring_bytes: int = 0
    virtual_s: float = 0.0


@lru_cache(maxsize=1)
def capabilities() -> Capabilities:
    """Of an engine that speaks every language; only its cuts matter here."""
    return ToneEngine().capabilities


def text_of(seconds: float) -> str:
    """A text that takes about so long to speak."""
    count = round(seconds * CHARACTERS_PER_SECOND)
    text = "".join(SENTENCES)
    whole = text * (count // len(text) + 1)
    return whole[: whole.rindex("。", 0, max(count, len(SENTENCES[0]))) + 1]


def simulate(profile: Profile, audio_format: AudioFormat, arm: Arm, seed: int, *, watchdog: bool = True) -> Outcome:
    """Speak over this link. The same arguments give the same outcome."""
    with stand_in_opus():
        return _Run(profile, audio_format, arm, seed, watchdog).outcome


class _Run:
    def __init__(self, profile: Profile, audio_format: AudioFormat, arm: Arm, seed: int, watchdog: bool) -> None:
        rng = random.Random(f"{profile.name} {seed}")
        self._profile = profile
        self._clock = clock = Clock()
        self._link = link = profile.link(rng)
        self._text = text_of(profile.speech_s)
        self._text_at = 0.0
        self._server = server = Server(clock, Policy("tone-low"), capabilities())
        network = Network(clock, link, rng.getrandbits(32))
        request = Open(
            format=audio_format,
            mode=arm.mode,
            max_lead_ms=arm.asked_ms(link.rtt_s),
            sample_rate=SAMPLE_RATE,
            max_buffer_delay_ms=None,
        )
        self._client = client = Client(
            clock, partial(network.connect, accept=server.accept), request, started=self._speak, watchdog=watchdog
        )
        self.outcome = Outcome()
        try:
            self._run(profile.speech_s + PATIENCE_S)
        finally:
            self._speakers: Sequence[Speaker] = list(server.speakers.values())
        self._judge(client)

    def _speak(self, client: Client) -> None:
        state, now = client.state, self._clock.now
        assert state is not None
        self._text_at = now
        client.start()
        client.do(state.text(self._text, now))
        client.do(state.end(now))

    def _run(self, limit: float) -> None:
        clock, client = self._clock, self._client
        cancel_after = self._profile.cancel_after_s
        while clock.now < limit and client.failure is None:
            clock.run(clock.now + 0.5)
            heard = client.heard.get(1)
            if heard is None:
                continue
            if cancel_after is not None and heard.player is not None:
                begun = heard.player.hearing.first_sound
                if begun is not None and clock.now >= begun + cancel_after:
                    self._cancel(heard)
                    cancel_after = None
            if heard.result is not None and (heard.player is None or heard.player.is_over):
                break
        self.outcome.virtual_s = clock.now

    def _cancel(self, heard: Heard) -> None:
        assert self._client.state is not None
        assert heard.player is not None
        speaker = next(iter(self._server.speakers.values()))
        sent = speaker.session.delivery.samples_sent
        self.outcome.wasted_s = max(0, sent - heard.player.playout.played_samples) / SAMPLE_RATE
        heard.player.stop()
        self._client.do(self._client.state.cancel(1, None, self._clock.now) or [])

    # ---- what it was like ----

    def _judge(self, client: Client) -> None:
        out, heard = self.outcome, client.heard.get(1)
        out.failure = "" if client.failure is None else f"{type(client.failure).__name__}: {client.failure}"
        if heard is None:
            return
        speaker = self._speakers[0] if self._speakers else None
        out.finished = heard.result is not None
        if heard.first_audio is not None:
            out.first_frame_s = heard.first_audio - self._text_at
        for event in heard.events:
            if isinstance(event, ModeChange):
                out.switches.append((event.at_sample / SAMPLE_RATE, event.mode, event.reason))
        if heard.player is not None:
            self._judge_sound(heard)
        if speaker is not None and 1 in speaker.made:
            out.resumes = speaker.session.resumes
            out.resent_bytes = speaker.session.delivery.bytes_resent
            out.peak_ring_bytes = speaker.peak_ring_bytes
            complete = out.finished and self._profile.cancel_after_s is None
            out.wrong_samples = wrong_samples(heard, speaker.made[1], SAMPLE_RATE // 50, complete=complete)
        out.wrong = heard.wrong[:5]

    def _judge_sound(self, heard: Heard) -> None:
        out, player = self.outcome, heard.player
        assert player is not None
        hearing = player.hearing
        if hearing.first_sound is not None:
            out.first_sound_s = hearing.first_sound - self._text_at
        out.stalls = len(hearing.silences)
        out.silent_s = hearing.silent_s
        out.audio_s = player.playout.played_samples / SAMPLE_RATE
        link = self._link
        ups = sorted({end for _, end in (*link.down.holes, *link.up.holes)} | set(link.resets))
        for up in ups:
            if hearing.first_sound is None or not hearing.first_sound < up < self._clock.now:
                continue
            again = hearing.sound_again_after(up)
            if again is None:
                out.unheard_troubles += 1
            else:
                out.recovery_s.append(again)


def wrong_samples(heard: Heard, made: Made, samples_per_packet: int, *, complete: bool) -> int:
    """How many samples (whole packets' for Opus) are not what the server made; 0 also where only the end is missing
    of what need not be complete."""
    wrong = 0
    if heard.packets:
        missing = [index for index in made.packets if index not in heard.packets] if complete else []
        altered = [index for index, packet in heard.packets.items() if made.packets.get(index) != packet]
        wrong += samples_per_packet * (len(missing) + len(altered))
    pcm = bytes(made.pcm) if made.opus_from is None else bytes(made.pcm[: 2 * made.opus_from])
    got = bytes(heard.pcm)
    both = min(len(got), len(pcm))
    if got[:both] != pcm[:both]:
        wrong += sum(got[at : at + 2] != pcm[at : at + 2] for at in range(0, both, 2))
    wrong += (len(got) - both) // 2
    if complete:
        wrong += (len(pcm) - both) // 2
    return wrong
