"""A whole world of one session in virtual time, with a schedule of misfortunes drawn from a seed.

The server's `Session` and the client's `SessionState` are the real ones. What the client heard is compared with a
timeline that is made from the numbered messages alone: no network, no connection and no mode has a part in it.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

from bench._simulated_client import Client, Heard
from bench._simulated_clock import Clock
from bench._simulated_server import Server, Speaker
from bench._simulated_speech import EngineModel
from bench._simulated_tcp import Endpoint
from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.codec import decode_server, encode
from protocol.frames import HEADER, AudioFrame, Codec, decode_frame
from server.engines.base import RenderPlan
from server.link import Link, Switch
from server.session import Policy, SpeakSegment, SpeakSilence
from server.session.utterance import Utterance, speech_of
from server.text.segmenter import Segmenter, SegmentLimits
from tests.support.chaos_network import ChaosNetwork
from tests.support.session_driver import capabilities

RATE: Final = 8_000
GUESSED: Final = "guessed"
TROUBLE_S: Final = 12.0  # misfortunes happen until then
PATIENCE_S: Final = 90.0  # after that everything ends within this time, or never does
STEP_S: Final = 0.25
RING_MS: Final = 12_000
READ_AHEAD_MS: Final = 4_000
ENGINE: Final = EngineModel(samples_per_character=640, first_chunk_s=0.02, chunk_s=0.25)
PIECES: Final = (
    "你好，",
    "今天天气很好。",
    "我们去公园散步吧！",
    "Good morning, ",
    "it is 9 o'clock. ",
    "好",
    "吗？",
    "\n",
    "3.5公里",
)


class Violation(AssertionError):
    """Something that must never be."""


class RestlessLink(Link):
    """A link that changes its mind at random, as well as for its reasons."""

    dice: random.Random | None = None
    unrest = 0.0

    def decide(self, now: float, load: Any) -> Switch | None:
        """See Link."""
        switch = super().decide(now, load)
        if switch is None and self.dice is not None and self.dice.random() < self.unrest:
            return self._modes._switch(now, "stream" if self.mode == "block" else "block", "restless")
        return switch


class World:
    """One schedule. `run` lives through it and raises Violation where anything is wrong."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.clock = Clock(rng.uniform(0, 1_000))
        self.network = ChaosNetwork(self.clock, random.Random(rng.getrandbits(64)))
        policy = Policy("tone-low", ring_ms=RING_MS, read_ahead_ms=READ_AHEAD_MS)
        self.server = Server(self.clock, policy, capabilities(), ENGINE, observed=self._check_session)
        self.server.tapped = self._check_sent
        self.messages: list[c.Numbered] = []
        self.story: list[str] = []
        self.format = rng.choice(("pcm", "pcm", "opus", "auto"))
        lead = rng.choice((None, 300, 1_000, 4_000))
        self.request = c.Open(
            format=self.format,  # type: ignore[arg-type]
            mode=rng.choice(("auto", "auto", "auto", "stream", "block")),
            sample_rate=RATE,
            max_lead_ms=lead,
            max_buffer_delay_ms=None,
        )
        self.client = Client(
            self.clock,
            partial(self.network.connect, accept=self.server.accept),
            self.request,
            started=self._begin,
            plays=lead is not None,
        )
        self.has_decoder = rng.random() < 0.7
        self._ends: dict[tuple[int, int], int] = {}  # sent so far, by generation and utterance
        self._events: dict[int, int] = {}  # the last event sent, by generation
        self._writing = False
        self._paused = False
        self._looks = 0
        self.cancelled: set[int] = set()

    # ---- the run ----

    def run(self) -> None:
        """Live through the schedule, then look at the result."""
        start, clock = self.clock.now, self.clock
        while clock.now < start + TROUBLE_S + PATIENCE_S:
            clock.run(clock.now + STEP_S)
            if self.client.failure is not None:
                raise Violation(f"the client failed: {self.client.failure}")
            if clock.now > start + TROUBLE_S + 1 and self._is_over():
                break
        self._judge()

    def _is_over(self) -> bool:
        heard = self.client.heard.values()
        return all(each.result is not None and (each.player is None or each.player.is_over) for each in heard)

    def _begin(self, client: Client) -> None:
        """The session is open: from here on the schedule runs."""
        state = client.state
        assert state is not None
        number = state.window.number

        def noted(message: Any) -> Any:
            numbered = number(message)
            self.messages.append(numbered)
            return numbered

        state.window.number = noted  # type: ignore[method-assign]
        self._speaker = next(iter(self.server.speakers.values()))
        if self.request.mode == "auto":
            delivery, dice = self._speaker.session.delivery, random.Random(self.rng.getrandbits(64))
            restless = RestlessLink(self.clock.now, pinned=None, paced=self.request.max_lead_ms is not None)
            restless.dice, restless.unrest = dice, self.rng.choice((0.0, 0.02, 0.2))
            delivery.link = restless
        if not self.has_decoder:
            greeting = state._reconnecting._greeting
            state._reconnecting._greeting = lambda: _without_decoder(greeting())
        self._plan()

    def _plan(self) -> None:
        rng, at = self.rng, self.clock.at
        begin = self.clock.now
        self._do("start", self._start)
        moment = begin
        for _ in range(rng.randint(5, 40)):
            moment += rng.choice((0.0, 0.05, 0.2, 0.2, 0.6, 1.0)) * rng.random()
            what = rng.choices(
                (self._text, self._flush, self._silence, self._end, self._start, self._cancel, self._pause),
                (60, 4, 4, 8, 12, 3, 3),
            )[0]
            at(min(moment, begin + TROUBLE_S - 0.5), partial(self._do, what.__name__[1:], what))
        for _ in range(rng.choice((0, 1, 2, 4, 8, 16))):
            name, harm = rng.choice(self._harms())
            at(begin + rng.uniform(0, TROUBLE_S - 0.5), partial(self._do, name, harm))
        at(begin + TROUBLE_S - 0.4, partial(self._do, "all is well", self._calm_down))

    def _do(self, name: str, action: Callable[[], None]) -> None:
        if self.client.failure is None:
            self.story.append(f"{self.clock.now:9.3f} {name}")
            action()

    # ---- what the program does ----

    def _start(self) -> None:
        if self._writing:
            self._end()
        if len(self.client.heard) < 4:
            self.client.start(seed=self.rng.randrange(3))
            self._writing = True

    def _text(self) -> None:
        if self._writing:
            text = "".join(self.rng.choices(PIECES, k=self.rng.randint(1, 4)))
            self._say(lambda state, now: state.text(text, now))

    @property
    def _wrote(self) -> bool:
        """Whether text came that no flush followed."""
        return self._writing and self.client.state is not None and self.client.state._last_input is not None

    def _flush(self) -> None:
        if self._wrote:
            soft = self.rng.random() < 0.5
            self._say(lambda state, now: state.flush(now, soft=soft))

    def _silence(self) -> None:
        if self._wrote:
            ms = self.rng.choice((1, 40, 700, 2_500))
            self._say(lambda state, now: state.silence(ms, now))

    def _end(self) -> None:
        if self._writing:
            self._writing = False
            self._say(lambda state, now: state.end(now))

    def _cancel(self) -> None:
        unfinished = [number for number, heard in self.client.heard.items() if heard.result is None]
        if not unfinished:
            return
        number = self.rng.choice(unfinished)
        self.cancelled.add(number)
        if number == len(self.client.heard):
            self._writing = False
        if (player := self.client.heard[number].player) is not None:
            player.stop()
        self._say(lambda state, now: state.cancel(number, None, now) or [])

    def _pause(self) -> None:
        self._paused = not self._paused
        self._say(lambda state, now: state.pause(self._paused, now))

    def _say(self, what: Callable[[Any, float], Any]) -> None:
        self.client.do(what(self.client.state, self.clock.now))

    def _calm_down(self) -> None:
        self.network.change(up=True, down=True, refuses=False, delay=0.01, spread=0.01)
        self.client.hold(False)
        if self._paused:
            self._pause()
        self._end()

    # ---- what goes wrong ----

    def _harms(self) -> list[tuple[str, Callable[[], None]]]:
        network, rng, after = self.network, self.rng, self.clock.after

        def for_a_while(longest: float, **weather: float | bool) -> Callable[[], None]:
            normal: dict[str, float | bool] = {
                "up": True, "down": True, "refuses": False, "delay": 0.01, "spread": 0.01,
            }  # fmt: skip

            def begin() -> None:
                network.change(**weather)
                after(rng.uniform(0.02, longest), partial(network.change, **{name: normal[name] for name in weather}))

            return begin

        def hold() -> None:
            self.client.hold(True)
            after(rng.uniform(0.1, 3.0), partial(self.client.hold, False))

        return [
            ("cut", network.cut),
            ("cut", network.cut),
            ("cut near", partial(network.cut, far=False)),
            ("cut far", partial(network.cut, near=False)),
            ("blackhole", for_a_while(6.0, up=False, down=False)),
            ("nothing goes up", for_a_while(6.0, up=False)),
            ("nothing comes down", for_a_while(6.0, down=False)),
            ("no new connections", for_a_while(2.0, refuses=True)),
            ("slow", for_a_while(3.0, delay=0.4, spread=0.2)),
            ("a slow reader", hold),
            ("repeats", self._repeat),
            ("an intruder", self._intrude),
        ]

    def _repeat(self) -> None:
        """The client says again what it said, as after a takeover that it did not learn of."""
        state = self.client.state
        assert state is not None
        carrier = state._reconnecting.carrier
        end = self.client.end_of(carrier) if carrier is not None else None
        if end is None or state.is_out:
            return
        for message in self.rng.sample(self.messages, min(3, len(self.messages))):
            if message.seq <= state.window.seq and message.seq <= state._sent_seq:
                end.write(encode(message))
        if self.rng.random() < 0.5:
            end.write(encode(c.Ack(max(1, state.generation - 1), 1, 0)))

    def _intrude(self) -> None:
        """Somebody else tries to take the session over."""
        _Intruder(self)

    # ---- what must hold at every moment ----

    def _check_session(self, speaker: Speaker) -> None:
        session = speaker.session
        if session.config is None:
            return
        ring, flow = session.delivery.ring, session.delivery.flow
        for utterance in session._sending.values():
            if not utterance.acked <= utterance.sent <= utterance.coded:
                raise Violation(
                    f"utterance {utterance.id}: acked {utterance.acked}, sent {utterance.sent}, made {utterance.coded}"
                )
        longest = 1_000 * 4 * SEGMENT_CHARACTERS * ENGINE.samples_per_character // RATE
        held_ms = (ring.samples + ring.kept_samples) * 1_000 // RATE
        if held_ms > RING_MS + longest:
            raise Violation(f"the ring holds {held_ms} ms of audio")
        if flow.unacked_bytes > limits.MAX_UNACKED_BYTES + limits.MAX_MESSAGE_BYTES:
            raise Violation(f"{flow.unacked_bytes} bytes are on their way")
        self._looks += 1
        if self._looks % 8 == 0:
            self._check_ring(speaker)

    def _check_ring(self, speaker: Speaker) -> None:
        """It covers everything from what is confirmed to what is made, and counts itself right."""
        session = speaker.session
        ring = session.delivery.ring
        entries = [*ring._kept, *ring._waiting]
        if ring.bytes != sum(entry.size for entry in entries):
            raise Violation(f"the ring counts {ring.bytes} bytes and holds {sum(entry.size for entry in entries)}")
        frames = [entry.item for entry in entries if isinstance(entry.item, AudioFrame)]
        if ring.samples + ring.kept_samples != sum(frame.count for frame in frames):
            raise Violation("the ring counts its samples wrong")
        for utterance in session._sending.values():
            mine = [frame for frame in frames if frame.utterance == utterance.id and frame.count]
            for before, frame in pairwise(mine):
                seam = before.codec is not frame.codec
                if before.end_sample != frame.first_sample and not seam and not _resets(frame):
                    raise Violation(f"the ring has [..., {before.end_sample}) and then [{frame.first_sample}, ...)")
            end = mine[-1].end_sample if mine else utterance.coded
            if end != utterance.coded:
                raise Violation(f"the ring ends at {end}, {utterance.coded} samples were made")
            begin = mine[0].first_sample if mine else utterance.coded
            if begin > max(utterance.acked, self._received(utterance.id)):
                raise Violation(f"the ring begins at {begin}, only {utterance.acked} are acked")

    def _received(self, number: int) -> int:
        """What the client has of an utterance: an ack of a later event or utterance confirms it, too."""
        heard = self.client.heard.get(number)
        return 0 if heard is None else heard.next_sample

    def _check_sent(self, speaker: Speaker, data: str | bytes) -> None:
        """Frames and events of a generation follow each other without gap or repeat."""
        generation = speaker.session.generation
        if isinstance(data, bytes):
            frame = decode_frame(data)
            if frame.generation != generation:
                raise Violation(f"a frame of generation {frame.generation} was sent in {generation}")
            key = (generation, frame.utterance)
            end = self._ends.get(key)
            if end is not None and frame.first_sample != end and not _resets(frame):
                raise Violation(f"sent up to {end}, then {frame.first_sample} of utterance {frame.utterance}")
            self._ends[key] = frame.end_sample
            if len(data) > HEADER.size + 65_536:
                raise Violation(f"a message of {len(data)} bytes")
            return
        message = decode_server(data)
        if isinstance(message, s.EVENTS):
            last = self._events.get(generation)
            if last is not None and message.event != last + 1:
                raise Violation(f"event {message.event} was sent after {last}")
            self._events[generation] = message.event

    # ---- what must hold in the end ----

    def _judge(self) -> None:
        made = timelines(self.messages, self.request)
        for number, heard in self.client.heard.items():
            if heard.result is None:
                raise Violation(f"utterance {number} never ended; the server: {self._state_of_server()}")
            if heard.wrong:
                raise Violation(f"utterance {number}: {heard.wrong[0]}")
            self._compare(number, heard, made[number])
            if isinstance(heard.result, s.Cancelled) and number not in self.cancelled:
                raise Violation(f"utterance {number} was cancelled by nobody")
        if len(self.server.speakers) > 1:
            raise Violation(f"the client began a second session, after {self.server.refusals}")

    def _state_of_server(self) -> str:
        session = self._speaker.session
        return f"attached {session.attached}, unfinished {session.unfinished}, mode {session.mode}"

    def _compare(self, number: int, heard: Heard, made: "Timeline") -> None:
        done = heard.result if isinstance(heard.result, s.Done) else None
        pcm = bytes(heard.pcm)
        if pcm != made.pcm[: len(pcm)]:
            raise Violation(f"utterance {number}: what was heard is not what was made")
        per = RATE // 50
        for index, packet in heard.packets.items():
            block = made.pcm[2 * per * index : 2 * per * (index + 1)].ljust(2 * per, b"\0")
            if packet[4:8] != crc32(block).to_bytes(4, "big"):
                raise Violation(f"utterance {number}: packet {index} is not what was made")
        segments = [(e.start, e.end) for e in heard.events if isinstance(e, s.SegmentBegin)]
        if segments != made.spans[: len(segments)]:
            raise Violation(f"utterance {number}: cut as {segments}, not as {made.spans}")
        if done is None or number in self.cancelled:
            return  # where `done` crossed the cancel, what came after it was dropped here
        if 2 * done.samples != len(made.pcm):
            raise Violation(f"utterance {number}: {done.samples} samples, not {len(made.pcm) // 2}")
        if segments != made.spans:
            raise Violation(f"utterance {number}: {len(segments)} of {len(made.spans)} segments")
        if not heard.packets and len(pcm) != len(made.pcm):
            raise Violation(f"utterance {number}: {len(pcm) // 2} samples were heard of {done.samples}")
        if heard.packets:
            assert self.client.state is not None
            covered = (max(heard.packets) + 1) * per - self.client.state.pre_skip
            first = min(heard.packets) * per
            if (
                covered < done.samples
                or first > len(pcm) // 2
                or sorted(heard.packets) != list(range(min(heard.packets), max(heard.packets) + 1))
            ):
                raise Violation(f"utterance {number}: packets {min(heard.packets)}-{max(heard.packets)} are not all")
        words = [word for e in heard.events if isinstance(e, s.Timing) for word in e.words]
        if [word.text for word in words] != list(made.text):
            raise Violation(f"utterance {number}: the words are {''.join(word.text for word in words)!r}")


class _Intruder:
    """A stranger who has read the session's name and guesses its token."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._generation = 0
        world.network.connect(self, world.server.accept)

    def opened(self, end: Endpoint) -> None:
        session = self._world._speaker.session
        self._generation = session.generation
        end.write(encode(c.Resume(session.id, GUESSED, session.epoch, 1, 0, 0, 0)))

    def received(self, end: Endpoint, message: str | bytes) -> None:
        answer = decode_server(message)
        if not isinstance(answer, s.ResumeFailed) or answer.reason not in ("auth", "unknown"):
            raise Violation(f"an intruder was told {answer}")
        end.abort()

    def writable(self, end: Endpoint) -> None: ...

    def closed(self, end: Endpoint, code: int | None, reason: str) -> None: ...


class Timeline:
    """What an utterance must sound like: its text cut and rendered at one go."""

    def __init__(self, start: c.Start, request: c.Open) -> None:
        limits_ = SegmentLimits(max_tokens=capabilities().max_tokens, count_tokens=capabilities().count_tokens)
        speech = speech_of(request, start, "tone-low")
        self._utterance = Utterance(start.utterance, speech, Segmenter(language=None, limits=limits_), 0.0)
        self._parts: list[bytes] = []
        self.text = ""
        self.spans: list[tuple[int, int]] = []

    def take(self, message: c.Numbered) -> None:
        """One of its messages."""
        match message:
            case c.Text():
                self._utterance.add(message.text, 0.0)
            case c.Flush():
                self._utterance.segmenter.flush(soft=message.soft)
            case c.Silence():
                self._utterance.add_silence(message.ms)
            case c.End():
                self._utterance.end()
            case _:
                pass

    def finish(self) -> None:
        """Nothing follows: render it."""
        utterance = self._utterance
        while isinstance(work := utterance.next_work(RenderPlan()), SpeakSegment | SpeakSilence):
            record = utterance.record
            assert record is not None
            self.spans.append((record.start, record.end))
            if isinstance(work, SpeakSegment):
                chunk = ENGINE.render(work.request)
                self.text += work.request.cut.text
                utterance.place(chunk)
                self._parts.append(chunk.pcm)
            else:
                self._parts.append(bytes(2 * work.samples))
            utterance.close_segment()
        self.pcm = b"".join(self._parts)


SEGMENT_CHARACTERS: Final = 60


def timelines(messages: list[c.Numbered], request: c.Open) -> dict[int, Timeline]:
    """The timeline of each utterance, as far as its text goes."""
    found: dict[int, Timeline] = {}
    writing: Timeline | None = None
    for message in messages:
        if isinstance(message, c.Start):
            writing = found[message.utterance] = Timeline(message, request)
        elif writing is not None and not isinstance(message, c.Cancel | c.Pause | c.Unpause):
            writing.take(message)
    for timeline in found.values():
        timeline.finish()
    return found


def _resets(frame: AudioFrame) -> bool:
    return frame.codec is Codec.OPUS and bool(frame.flags & 2)


def _without_decoder(message: c.ClientMessage) -> c.ClientMessage:
    return replace(message, have_decoder=False) if isinstance(message, c.Resume) else message
