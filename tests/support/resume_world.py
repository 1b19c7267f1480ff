"""A whole world of one session in virtual time, with a schedule of misfortunes drawn from a seed.

The server's `Session` and the client's `SessionState` are the real ones. What the client heard is compared with a
timeline that is made from the numbered messages alone: no network, no connection and no mode has a part in it.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bench._simulated_client import Client
from bench._simulated_clock import Clock
from bench._simulated_server import Server
from bench._simulated_tcp import Endpoint
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server, encode
from server.link import Link, Switch
from server.session import Policy
from tests.support.chaos_network import ChaosNetwork
from tests.support.resume_checks import RING_MS, Checks, Violation, compare
from tests.support.resume_timeline import ENGINE, RATE, timelines
from tests.support.session_driver import capabilities

GUESSED: Final = "guessed"
TROUBLE_S: Final = 12.0  # misfortunes happen until then
PATIENCE_S: Final = 90.0  # after that everything ends within this time, or never does
STEP_S: Final = 0.25
READ_AHEAD_MS: Final = 4_000
PIECES: Final = (
    "你好，", "今天天气很好。", "我们去公园散步吧！", "Good morning, ", "it is 9 o'clock. ",
    "好", "吗？", "\n", "3.5公里",
)  # fmt: skip


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
        checks = Checks(self._received)
        policy = Policy("tone-low", ring_ms=RING_MS, read_ahead_ms=READ_AHEAD_MS)
        self.server = Server(self.clock, policy, capabilities(), ENGINE, observed=checks.session)
        self.server.tapped = checks.sent
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
        self._writing = False
        self._paused = False
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
        self._asked_for = (0, 0)  # a later attempt never asks for less
        self._acked = (0, 0)  # nor for what any ack confirmed
        ack_of = state._receiver._ack_of

        def noted_ack(entry: Any, sample: int, event: int) -> Any:
            self._acked = max(self._acked, (entry.number, sample))
            return ack_of(entry, sample, event)

        state._receiver._ack_of = noted_ack  # type: ignore[method-assign]
        greeting = state._reconnecting._greeting
        state._reconnecting._greeting = lambda: self._greets(greeting())
        self._plan()

    def _greets(self, message: c.ClientMessage) -> c.ClientMessage:
        """Some clients have no decoder any more; some forgot a little, so that a frame must be cut to the sample."""
        if not isinstance(message, c.Resume):
            return message
        floor = max(self._acked, self._speaker.session.delivery.ring.floor, self._asked_for)
        may = [n for n in (1, 7, 160, 333) if (message.utterance, message.next_sample - n) >= floor]
        if may and message.next_sample > 333 and self.rng.random() < 0.7:
            at = message.next_sample - self.rng.choice(may)
            message = replace(message, next_sample=at, played_sample=min(at, message.played_sample))
        self._asked_for = max(self._asked_for, (message.utterance, message.next_sample))
        return message if self.has_decoder else replace(message, have_decoder=False)

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
        end = self.client._ends[carrier] if carrier is not None else None
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

    # ---- what must hold in the end ----

    def _judge(self) -> None:
        assert self.client.state is not None
        made = timelines(self.messages, self.request)
        for number, heard in self.client.heard.items():
            if heard.result is None:
                raise Violation(f"utterance {number} never ended; the server: {self._state_of_server()}")
            if heard.wrong:
                raise Violation(f"utterance {number}: {heard.wrong[0]}")
            compare(number, heard, made[number], self.client.state.pre_skip, whole=number not in self.cancelled)
            if isinstance(heard.result, s.Cancelled) and number not in self.cancelled:
                raise Violation(f"utterance {number} was cancelled by nobody")
        if len(self.server.speakers) > 1:
            raise Violation(f"the client began a second session, after {self.server.refusals}")

    def _received(self, number: int) -> int:
        """What the client has of an utterance: an ack of a later event or utterance confirms it, too."""
        heard = self.client.heard.get(number)
        return 0 if heard is None else heard.next_sample

    def _state_of_server(self) -> str:
        session = self._speaker.session
        return f"attached {session.attached}, unfinished {session.unfinished}, mode {session.mode}"


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
