"""The modelled links that `bench.link` and the resume tests stand on do what was measured on real ones."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from bench._simulated_clock import Alarm, Clock
from bench._simulated_link import Direction, Link, Wire, kbit
from bench._simulated_network import Network
from bench._simulated_tcp import SEND_BUFFER, Endpoint

DELAY_S = 0.02  # each way: the 40 ms of the measurements


class Program:
    """An end's program: notes what comes, and when."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.end: Endpoint | None = None
        self.opened_at: float | None = None
        self.got: list[tuple[float, str | bytes]] = []
        self.closed_at: float | None = None
        self.code: int | None = None
        self.woken = 0

    def opened(self, end: Endpoint) -> None:
        self.end, self.opened_at = end, self.clock.now

    def received(self, end: Endpoint, message: str | bytes) -> None:
        self.got.append((self.clock.now, message))

    def writable(self, end: Endpoint) -> None:
        self.woken += 1

    def closed(self, end: Endpoint, code: int | None, reason: str) -> None:
        self.closed_at, self.code = self.clock.now, code


class Pair:
    """A client and a server over a link; the server speaks 40 ms frames of 24 kHz PCM from the first second on."""

    def __init__(self, link: Link, *, speaks_until: float = 0.0, seed: int = 1) -> None:
        self.clock = Clock()
        self.network = Network(self.clock, link, seed)
        self.client, self.server = Program(self.clock), Program(self.clock)
        self.sent: list[bytes] = []
        self.near = self.network.connect(self.client, lambda: self.server)
        if speaks_until:
            self.clock.at(1.0, lambda: self._speak(speaks_until))

    def _speak(self, until: float) -> None:
        assert self.server.end is not None
        frame = len(self.sent).to_bytes(4, "big") + bytes(1_944)
        self.sent.append(frame)
        self.server.end.write(frame)
        if self.clock.now < until:
            self.clock.after(0.04, lambda: self._speak(until))

    @property
    def arrived(self) -> list[bytes]:
        return [message for _, message in self.client.got if isinstance(message, bytes)]

    def longest_gap(self) -> tuple[float, float]:
        times = [at for at, _ in self.client.got]
        return max(pairwise(times), key=lambda pair: pair[1] - pair[0])


def both(**options: object) -> Link:
    direction = Direction(DELAY_S, **options)  # type: ignore[arg-type]
    return Link(direction, direction)


def test_what_happens_when() -> None:
    clock = Clock()
    seen: list[str] = []
    clock.at(2.0, lambda: seen.append("late"))
    clock.at(1.0, lambda: seen.append("first"))
    clock.at(1.0, lambda: seen.append("second"))
    clock.at(1.5, lambda: seen.append("never")).cancel()
    clock.run(1.9)
    assert (seen, clock.now) == (["first", "second"], 1.9)


def test_an_alarm_rings_once_at_the_last_time_asked_for() -> None:
    clock = Clock()
    rang: list[float] = []
    alarm = Alarm(clock, lambda: rang.append(clock.now))
    for due in (5.0, 2.0, 3.0):
        alarm.set(due)
    clock.run(10.0)
    alarm.set(11.0)
    alarm.set(None)
    clock.run(20.0)
    assert rang == [3.0]


def test_a_connection_takes_a_round_trip_and_a_half_until_the_server_has_it() -> None:
    pair = Pair(both())
    pair.clock.run(1.0)
    assert pair.server.opened_at == pytest.approx(3 * DELAY_S, abs=1e-4)
    assert pair.client.opened_at == pytest.approx(4 * DELAY_S, abs=1e-4)


@pytest.mark.parametrize(
    ("hole", "soonest", "latest"), [(0.5, 0.0, 0.6), (1.5, 0.0, 1.2), (3.0, 0.4, 3), (5.0, 2.0, 4.5)]
)
def test_an_old_connection_stays_silent_after_a_hole(hole: float, soonest: float, latest: float) -> None:
    # Measured on real TCP with 40 ms of round trip: 3.9 s after a hole of 5 s.
    pair = Pair(both(holes=((10.0, 10.0 + hole),)), speaks_until=30.0)
    pair.clock.run(60.0)
    begin, end = pair.longest_gap()
    assert 9.9 < begin < 10.1
    assert soonest <= end - (10.0 + hole) <= latest
    assert pair.arrived == pair.sent, "TCP loses nothing"


def test_a_new_connection_moves_at_once_after_a_hole() -> None:
    pair = Pair(both(holes=((10.0, 15.0),)), speaks_until=20.0)
    second = Program(pair.clock)
    pair.clock.at(15.01, lambda: pair.network.connect(second, lambda: Program(pair.clock)))
    pair.clock.run(60.0)
    assert second.opened_at == pytest.approx(15.01 + 4 * DELAY_S, abs=1e-3)
    assert second.opened_at is not None
    assert pair.longest_gap()[1] > second.opened_at


def test_nothing_comes_down_for_long_when_nothing_goes_up() -> None:
    direction = Direction(DELAY_S)
    pair = Pair(Link(direction, Direction(DELAY_S, holes=((10.0, 14.0),))), speaks_until=20.0)
    pair.clock.run(60.0)
    begin, end = pair.longest_gap()
    assert 10.0 < begin < 11.0
    assert end > 14.0
    assert pair.arrived == pair.sent


def test_lost_packets_come_again_in_order() -> None:
    loss = ((1.0, 100.0, 0.05),)
    pair = Pair(both(loss=loss, jitter_s=0.005), speaks_until=30.0)
    pair.clock.run(60.0)
    assert pair.network.down.dropped_packets > 20
    assert pair.arrived == pair.sent


def test_a_slow_link_carries_its_rate_and_no_more() -> None:
    pair = Pair(both(rates=((0.0, kbit(200)),)), speaks_until=30.0)
    pair.clock.run(21.0)
    goodput = sum(map(len, pair.arrived)) * 8 / 20_000
    assert 160 <= goodput <= 200


def test_the_rate_changes_in_the_middle_of_a_packet() -> None:
    wire = Wire(Direction(0.0, rates=((0.0, 1_000.0), (1.0, 100.0))), random.Random(0))
    assert wire.carry(0.5, 600) == pytest.approx(2.0), "500 bytes in half a second, 100 in one more"
    assert wire.carry(0.6, 100) == pytest.approx(3.0), "behind the first"


def test_a_queue_that_is_full_drops() -> None:
    wire = Wire(Direction(0.0, rates=((0.0, 1_000.0),), queue_bytes=2_000), random.Random(0))
    assert [wire.carry(0.0, 1_000) is not None for _ in range(5)] == [True, True, True, False, False]


def test_a_program_is_told_when_it_may_write_again() -> None:
    pair = Pair(both(rates=((0.0, kbit(1_000)),)))
    pair.clock.run(1.0)
    end = pair.server.end
    assert end is not None
    written = 0
    while end.is_writable:
        end.write(bytes(10_000))
        written += 10_000
    assert SEND_BUFFER <= written <= SEND_BUFFER + 20_000
    pair.clock.run(2.0)
    assert pair.server.woken == 1


def drop(pair: Pair) -> None:
    pair.near.abort()


def close(pair: Pair) -> None:
    pair.near.close(1000, "done")


def reset(pair: Pair) -> None:
    pair.network.reset()


@pytest.mark.parametrize(("end_it", "code"), [(drop, None), (close, 1000), (reset, None)])
def test_the_end_of_a_connection(end_it: Callable[[Pair], None], code: int | None) -> None:
    pair = Pair(both(), speaks_until=30.0)
    pair.clock.at(5.0, lambda: end_it(pair))
    pair.clock.run(10.0)
    assert pair.server.closed_at == pytest.approx(5.0 if end_it is reset else 5.0 + DELAY_S, abs=1e-3)
    assert pair.server.code == code
    assert (pair.client.closed_at is not None) == (end_it is reset), "who ends it is not told"
    assert pair.client.got[-1][0] <= 5.0


def test_a_server_learns_late_of_a_client_that_left_in_a_hole() -> None:
    pair = Pair(both(holes=((4.9, 6.0),)), speaks_until=30.0)
    pair.clock.at(5.0, pair.near.abort)
    pair.clock.run(10.0)
    assert pair.server.closed_at is not None
    assert pair.server.closed_at > 6.0, "its reset was lost; the next packet is answered by another"


def test_the_same_seed_is_the_same_world() -> None:
    def arrivals(seed: int) -> list[float]:
        pair = Pair(both(loss=((1.0, 100.0, 0.1),), jitter_s=0.01), speaks_until=10.0, seed=seed)
        pair.clock.run(20.0)
        return [at for at, _ in pair.client.got]

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)
