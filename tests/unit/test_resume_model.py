"""Thousands of random schedules of drops, holes, slow readers, repeats, cancels, pauses and mode switches.

Each draws a whole world from its seed (`tests/support/resume_world.py`) and checks the invariants at every step: the
client's samples are the server's timeline, nothing twice, nothing missing, offsets and event numbers follow each other,
acked <= sent <= made, the ring covers what is not confirmed and stays within its bound, nobody writes on a connection
that was taken over, strangers are kept out, cuts depend on the text alone, and every utterance ends once the line is
good.

A failing schedule says its seed: `SCHEDULE=<seed> pytest tests/unit/test_resume_model.py` lives through it alone.
`SCHEDULES=<number>` asks for more of them (`make soak`).
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from bench._simulated_server import stand_in_opus
from protocol.frames import AudioFrame
from server.session import entries
from server.session.entries import Place
from server.session.flow import Flow
from server.session.ring import Ring
from tests.support.resume_checks import Violation
from tests.support.resume_world import World

GROUPS: Final = 8
SCHEDULES: Final = int(os.environ.get("SCHEDULES", "640"))
ALONE: Final = os.environ.get("SCHEDULE")  # the one to live through
SEEDS: Final = [range(int(ALONE), int(ALONE) + 1)] if ALONE else [range(n, SCHEDULES, GROUPS) for n in range(GROUPS)]


@pytest.fixture(autouse=True)
def _stand_in_opus() -> Iterator[None]:
    with stand_in_opus():
        yield


def live_through(seed: int) -> None:
    """One schedule. A failure of any kind tells its seed and its story."""
    world = World(seed)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001  # whatever it is, its seed must be known
        story = "\n".join(world.story)
        pytest.fail(f"SCHEDULE={seed} ({world.request.format}, {world.request.mode}): {error!r}\n{story}")


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_nothing_is_lost_and_nothing_is_heard_twice(seeds: range) -> None:
    for seed in seeds:
        live_through(seed)


def test_the_same_seed_is_the_same_story() -> None:
    stories = []
    for _ in range(2):
        world = World(3)
        world.run()
        stories.append((world.story, bytes(world.client.heard[1].pcm), world.client.connections))
    assert stories[0] == stories[1]


# What the model is worth: each of these faults is planted, and must be found.


def finds(schedules: int = 200) -> str | None:
    """The first violation that any schedule shows."""
    for seed in range(schedules):
        world = World(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001  # whatever it is, the fault was found
            return f"{seed}: {error!r}"
    return None


def slices_one_sample_late(patch: pytest.MonkeyPatch) -> None:
    split: Callable[..., Any] = entries.split

    def late(entry: entries.Entry, samples: int) -> Any:
        return split(entry, min(samples + 1, entry.item.count - 1))  # type: ignore[union-attr]  # only frames are split

    patch.setattr("server.session.ring.split", late)


def forgets_a_frame(patch: pytest.MonkeyPatch) -> None:
    rewind = Ring.rewind

    def broken(self: Ring, *arguments: Any) -> None:
        rewind(self, *arguments)
        frames = [entry for entry in self._waiting if isinstance(entry.item, AudioFrame) and entry.item.count]
        if len(frames) > 1:
            self._waiting.remove(frames[1])

    patch.setattr(Ring, "rewind", broken)


def sends_a_frame_again(patch: pytest.MonkeyPatch) -> None:
    rewind = Ring.rewind

    def broken(self: Ring, place: Place, events_seen: int, preroll: int | None) -> None:
        rewind(self, (place[0], max(0, place[1] - 1)), events_seen, preroll)

    patch.setattr(Ring, "rewind", broken)


def numbers_events_anew(patch: pytest.MonkeyPatch) -> None:
    rewind = Ring.rewind

    def broken(self: Ring, *arguments: Any) -> None:
        rewind(self, *arguments)
        for entry in self._waiting:
            entry.number = 0

    patch.setattr(Ring, "rewind", broken)


def never_counts_what_was_played(patch: pytest.MonkeyPatch) -> None:
    acked = Flow.acked
    patch.setattr(Flow, "acked", lambda self, utterance, sample, _: acked(self, utterance, sample, 0))


def alters_a_sample(patch: pytest.MonkeyPatch) -> None:
    rewind = Ring.rewind

    def broken(self: Ring, *arguments: Any) -> None:
        rewind(self, *arguments)
        for entry in self._waiting:
            if isinstance(entry.item, AudioFrame) and len(entry.item.payload) > 16:
                payload = bytes(len(entry.item.payload) - 2)
                entry.item = replace(entry.item, payload=bytes(entry.item.payload[:2]) + payload, crc=-1)
                return

    patch.setattr(Ring, "rewind", broken)


@pytest.mark.parametrize(
    "fault",
    [
        slices_one_sample_late,
        forgets_a_frame,
        sends_a_frame_again,
        numbers_events_anew,
        never_counts_what_was_played,
        alters_a_sample,
    ],
)
def test_a_planted_fault_is_found(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert finds() is not None


def test_an_intruder_that_is_let_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.session.Session.accepts", lambda self, token: True)
    found = finds()
    assert found is not None
    assert "intruder" in found


def test_violations_are_failures() -> None:
    assert issubclass(Violation, AssertionError)
