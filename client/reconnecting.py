"""Which connection carries the session, and how another one takes over: attempts, their times, giving up. Pure.

The connection that fell silent is kept until another one answers: whichever gets through first, both ways, wins.
Attempts start every half second, at most three at a time: the oldest is given time, the others make way for fresh ones,
because a fresh connection gets through at once when the line is back, while an old one waits for its retransmission
timer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from client.effects import Connect, Drop, Effect, SendOn
from protocol.client_messages import ClientMessage
from protocol.limits import RESUME_ATTEMPT_S, RESUME_RUSH_S

ATTEMPT_S: Final = 5.0  # an attempt that is not through by then is dropped; the same again for the server's answer
PENDING: Final = 3  # attempts at a time
FRESH_S: Final = 0.75  # a younger attempt never makes way for another one; on a slow line more ...
FRESH_ROUND_TRIPS: Final = 6  # ... TCP, TLS and WebSocket take up to four
ANSWER_S: Final = 1.0  # so long a connection waits for the answer to `resume` before another one asks too
JITTER: Final = 0.2  # many clients that lost the same server do not come back in step
LONGEST_PAUSE_S: Final = 8.0
NO_ANSWER: Final = "no answer: check the network and the server"
SETTLED_S: Final = 5.0  # a connection that lived so long is no part of the outage before it


@dataclass(slots=True)
class _Attempt:
    began: float
    connected: bool = False
    asked: float | None = None  # when it asked for the session

    @property
    def ends(self) -> float:
        return (self.began if self.asked is None else self.asked) + ATTEMPT_S


class Reconnecting:
    """Connection 0 carries the session at first. `greeting` makes the message that asks for it on another one."""

    def __init__(self, greeting: Callable[[], ClientMessage], random: Random, give_up_s: float, rtt_s: float) -> None:
        self.carrier: int | None = 0  # None: gone
        self.lost_at: float | None = None  # since when the session is looked for; None: it is carried
        self.heard_at = 0.0  # when the server was last heard before that
        self.why = ""  # the last attempt's failure, and what to do about it
        self.rtt_s = rtt_s
        self.retry_at = 0.0  # the server said that trying before is of no use
        self._greeting = greeting
        self._random = random
        self._give_up_s = give_up_s
        self._attempts: dict[int, _Attempt] = {}
        self._numbers = 0
        self._last_attempt = float("-inf")
        self._next_attempt = 0.0
        self._pause = RESUME_ATTEMPT_S
        self._adopted_at: float | None = None  # None: something new came since
        self._in_vain = 0  # adoptions since something new came
        self._gives_up_at = 0.0

    @property
    def searching(self) -> bool:
        """Whether the session is carried by no connection that is known to work."""
        return self.lost_at is not None

    def is_open(self, connection: int) -> bool:
        """Whether anything of this connection still counts."""
        return connection == self.carrier or connection in self._attempts

    # ---- the outage ----

    def begin(self, now: float, heard_at: float, *, gone: bool) -> list[Effect]:
        """The carrier fell silent, or is `gone`. The first attempt is made at once."""
        if gone:
            self.carrier = None
        if self.lost_at is None:
            self.lost_at, self.heard_at, self.why = now, heard_at, ""
            if not self._is_futile(now):
                self._gives_up_at = now + self._give_up_s
                self._pause = RESUME_ATTEMPT_S
        again = self._last_attempt + RESUME_ATTEMPT_S if self._in_vain > 1 and self._is_futile(now) else now
        self._next_attempt = max(now, again, self.retry_at)
        return self.tick(now)

    def progress(self) -> None:
        """Something new came over the carrier: an outage that follows is another one."""
        self._adopted_at = None
        self._in_vain = 0

    def carried_again(self) -> list[Effect]:
        """The silent connection spoke before another one took over: attempts that did not ask yet are of no use."""
        self.lost_at = None
        unused = [number for number, attempt in self._attempts.items() if attempt.asked is None]
        return [self._drop(number) for number in unused]

    def adopt(self, connection: int, now: float) -> list[Effect]:
        """This attempt carries the session now; all else goes."""
        self._attempts.pop(connection)
        dropped = list(self._attempts)
        self._attempts.clear()
        if self.carrier is not None:
            dropped.append(self.carrier)
        self.carrier, self.lost_at, self._adopted_at = connection, None, now
        self._in_vain += 1
        return [Drop(number) for number in dropped]

    # ---- attempts ----

    def connected(self, connection: int, now: float) -> list[Effect]:
        """The attempt's WebSocket is open. It asks, unless another one just did."""
        attempt = self._attempts.get(connection)
        if attempt is None:
            return []
        if self.lost_at is None:
            return [self._drop(connection)]
        attempt.connected = True
        return self._ask(now)

    def failed(self, connection: int, why: str, now: float, retry_after_s: float = 0.0) -> list[Effect]:
        """The attempt came to nothing; another one follows in its time."""
        if self._attempts.pop(connection, None) is None:
            return []
        self.why = why
        if retry_after_s:
            self.retry_at = now + retry_after_s
            self._next_attempt = max(self._next_attempt, self.retry_at)
        return self._ask(now) if self.searching else []

    def asked_at(self, connection: int) -> float | None:
        """When this attempt asked for the session."""
        attempt = self._attempts.get(connection)
        return attempt.asked if attempt else None

    def ask_again(self, connection: int, message: ClientMessage, now: float) -> list[Effect]:
        """The attempt asks for something else; it has its time again, and the others go."""
        attempt = self._attempts[connection]
        attempt.asked = now
        others = [number for number in self._attempts if number != connection]
        return [*[self._drop(number) for number in others], SendOn(connection, message)]

    # ---- time ----

    def gave_up(self, now: float) -> bool:
        """Whether it takes too long."""
        return self.searching and now >= self._gives_up_at

    def slept(self, now: float) -> None:
        """This process did not run for a while: the attempts did not either."""
        self._gives_up_at = max(self._gives_up_at, now + RESUME_RUSH_S)

    def deadline(self) -> float | None:
        """When `tick` has something to do; None while there is no attempt."""
        times = [attempt.ends for attempt in self._attempts.values()]
        if self.searching:
            times += [self._next_attempt, self._gives_up_at]
            if self._spare() is not None:
                times.append(self._may_ask_at())
        return min(times) if times else None

    def tick(self, now: float) -> list[Effect]:
        """Ends attempts that take too long, and makes new ones."""
        effects: list[Effect] = []
        for number in [number for number, attempt in self._attempts.items() if now >= attempt.ends]:
            self.why = NO_ANSWER
            effects.append(self._drop(number))
        if not self.searching:
            return effects
        effects += self._ask(now)
        if now >= self._next_attempt:
            if len(self._attempts) >= PENDING and (stale := self._stale(now)) is not None:
                effects.append(self._drop(stale))
            if len(self._attempts) < PENDING:
                self._numbers += 1
                self._attempts[self._numbers] = _Attempt(now)
                self._last_attempt = now
                effects.append(Connect(self._numbers))
            self._next_attempt = now + self._interval(now)
        return effects

    def _is_futile(self, now: float) -> bool:
        """Whether the connection that was adopted last brought nothing: then this is still the outage before it."""
        return self._adopted_at is not None and now - self._adopted_at < SETTLED_S

    def _interval(self, now: float) -> float:
        assert self.lost_at is not None
        if now - self.lost_at >= RESUME_RUSH_S:
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        return self._pause * self._random.uniform(1 - JITTER, 1 + JITTER)

    def _stale(self, now: float) -> int | None:
        """The attempt that makes way: not the oldest, no young one, none that is open and may still ask."""
        fresh = max(FRESH_S, FRESH_ROUND_TRIPS * self.rtt_s)
        unanswered = 2 * (ANSWER_S + self.rtt_s)
        for number, attempt in list(self._attempts.items())[1:]:
            if attempt.asked is None and not attempt.connected and now - attempt.began >= fresh:
                return number
            if attempt.asked is not None and now - attempt.asked >= unanswered:
                return number
        return None

    def _spare(self) -> int | None:
        """The newest connection that is open and has not asked."""
        return next((n for n, a in reversed(self._attempts.items()) if a.connected and a.asked is None), None)

    def _may_ask_at(self) -> float:
        asked = [attempt.asked for attempt in self._attempts.values() if attempt.asked is not None]
        return max(asked, default=float("-inf")) + ANSWER_S + self.rtt_s

    def _ask(self, now: float) -> list[Effect]:
        spare = self._spare()
        if spare is None or now < self._may_ask_at():
            return []
        self._attempts[spare].asked = now
        return [SendOn(spare, self._greeting())]

    def _drop(self, connection: int) -> Drop:
        del self._attempts[connection]
        return Drop(connection)
