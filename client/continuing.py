"""The part of a session that outlives its connections: resume, and where that fails go on in a new one. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from client.effects import Adopt, Drop, Effect, Notice, RoomGrew
from client.errors import Busy, ClientError, Gap, ServerError, ServerLost, ServerMisbehaved, SessionGone, why_gone
from client.reconnecting import NO_ANSWER, Reconnecting
from client.saved import SavedSession
from client.statistics import UtteranceStatistics
from client.tracking import Tracked
from client.writing import Writing
from protocol import server_messages as s
from protocol.client_messages import ClientMessage, Open, Pause, Resume
from protocol.limits import RESUME_RUSH_S

FINAL_CLOSES: Final = (1003, 1007, 1008, 1009)  # the server refuses what this client says: it would again
GAP_PAUSE_S: Final = 1.0  # a second gap within this time, or the first thing after a resume, is no accident
RESUMING_OFF: Final = "resuming is off: without --no-resume (resume=False) the client comes back by itself"
KEEPS_NONE: Final = "the server keeps no sessions: run this again, or start it with --resume-ttl-s above 0"
FUTILE_RESTARTS: Final = 3  # in a row, without one segment spoken: the server dies of this text


class Continuing(Writing):
    """`resume` False: the first connection is the only one. `reconnect_s` None: as long as the server keeps it.
    `restart` False: where the session is gone, no other one takes its place.
    """

    def __init__(
        self,
        opened: s.Opened,
        now: float,
        *,
        rtt_s: float,
        queue_bytes: int,
        resume: bool,
        reconnect_s: float | None,
        restart: bool,
        request: Open,
        random: Random,
    ) -> None:
        ttl_ms = opened.limits.get("resume_ttl_ms", 0)
        if reconnect_s is None:
            reconnect_s = max(RESUME_RUSH_S, ttl_ms / 1_000 if isinstance(ttl_ms, int) else 0.0)
        super().__init__(opened, Reconnecting(self._greeting, random, reconnect_s, rtt_s), now, rtt_s, queue_bytes)
        voice = opened.config.get("voice")
        self._request = replace(request, voice=voice) if isinstance(voice, str) and voice else request
        self._may_resume = resume
        self._may_restart = restart
        self._gone: s.ResumeFailed | None = None  # the session is: the next connection opens a new one
        self._lost: tuple[str, int | None] = "", None  # what happened to the last connection, and its close code
        self._gap_at = float("-inf")
        self._fresh = False  # resumed, and nothing new came yet
        self._futile = 0
        self._probe = 0  # id of the ping that asks a connection which speaks again whether it hears, too
        self._probed = False  # in this outage
        self.going_away = False  # the server said so

    @property
    def is_out(self) -> bool:
        """Whether no connection carries the session at present."""
        return self._reconnecting.searching

    @property
    def _resumable(self) -> bool:
        return self._may_resume and self.resume_ttl_s > 0

    # ---- losing a connection ----

    def _lose(self, error: ClientError, what: str, now: float, heard_at: float, *, gone: bool) -> list[Effect]:
        """The connection is of no use any more (`gone`), or says nothing. Fails where the session dies with it."""
        if not self._resumable:
            return self._fail(self._unresumed(error))
        first = not self.is_out
        effects: list[Effect] = []
        if first:
            self._lost = what, error.close_code if isinstance(error, ServerLost) else None
            self._probed = False
            self.line.outage_begins(heard_at)
            effects.append(Notice(f"{what}: reconnecting"))
        return effects + self._reconnecting.begin(now, heard_at, gone=gone)

    def _unresumed(self, error: ClientError) -> ClientError:
        """The same, and why nothing is done about it, where nobody is known to have ended it on purpose."""
        if not isinstance(error, ServerLost) or error.close_code not in (None, 1006) or self.going_away:
            return error
        return ServerLost(f"{error}, and {KEEPS_NONE if self._may_resume else RESUMING_OFF}", error.close_code)

    def _gap(self, gap: Gap, now: float) -> list[Effect]:
        """Something is missing. What a connection lost, another one may bring."""
        carrier = self._reconnecting.carrier
        if self._fresh or now - self._gap_at < GAP_PAUSE_S or carrier is None:
            return self._fail(gap)
        self._gap_at = now
        return (
            [*self._lose(gap, "audio is missing", now, now, gone=True), Drop(carrier)]
            if self._resumable
            else self._fail(gap)
        )

    def _wake(self, now: float) -> list[Effect]:
        """The connection that was silent speaks and hears again, before another one took over."""
        quiet_s = now - self._reconnecting.heard_at
        self.line.outage_ends(now)
        self._watchdog.begin(now)
        return [
            *self._reconnecting.carried_again(),
            *self._give_waiting(now),
            *self._ack(now),
            Notice(f"the connection works again, after {quiet_s:.1f} s"),
        ]

    def _give_up(self, now: float) -> list[Effect]:
        what, code = self._lost
        seconds, why = now - self._reconnecting.heard_at, self._reconnecting.why or NO_ANSWER
        self.line.outage_ends(now)
        return self._fail(ServerLost(f"{what}; no new connection brought it back in {seconds:.0f} s: {why}", code))

    # ---- another connection ----

    def connected(self, connection: int, now: float) -> list[Effect]:
        """The connection that `Connect` asked for is open."""
        return self._reconnecting.connected(connection, now)

    def refused(self, connection: int, error: ClientError, now: float) -> list[Effect]:
        """It could not be opened."""
        why = error.message if isinstance(error, Busy) else str(error)  # when to come is told by who comes
        return self._reconnecting.failed(connection, why, now)

    def _greeting(self) -> ClientMessage:
        """What a new connection says first."""
        if self._gone is not None:
            return self._request
        utterance, next_sample, played = self._receiver.resume_position()
        return Resume(
            self.opened.session, self._token, self._epoch, self.generation, utterance, next_sample,
            self._receiver.last_event, played, have_decoder=True,
        )  # fmt: skip

    def _answer(self, message: s.ServerMessage, connection: int, now: float) -> list[Effect]:
        """What comes on a connection that does not carry the session."""
        reconnecting = self._reconnecting
        if reconnecting.asked_at(connection) is None and not isinstance(message, s.Busy | s.Error):
            return []
        match message:
            case s.Resumed() if self._gone is None:
                return self._resumed(message, connection, now)
            case s.ResumeFailed() if self._gone is None:
                return self._resume_failed(message, connection, now)
            case s.Opened() if self._gone is not None:
                return self._reopened(message, connection, now)
            case s.Busy():
                busy = Busy(message.retry_after_ms, message.reason, message.message)
                return [Drop(connection), *reconnecting.failed(connection, str(busy), now, busy.retry_after_s)]
            case s.Error() if message.retryable:
                return [Drop(connection), *reconnecting.failed(connection, message.message, now)]
            case s.Error():
                raise ServerError(message.code, message.message, message.field, message.retryable)
            case s.Resumed() | s.ResumeFailed() | s.Opened():
                raise ServerMisbehaved(f"the server sent `{message.type}` where it is not allowed")
            case _:
                return []

    def _resumed(self, message: s.Resumed, connection: int, now: float) -> list[Effect]:
        if message.generation <= self.generation:
            raise ServerMisbehaved(
                f"the server resumes generation {message.generation} after generation {self.generation}"
            )
        if message.seq < self.window.acked:
            return self._lost_its_end(connection, now)
        return [*self._take_over(connection, now), *self._go_on(message, now)]

    def come_back(self, saved: SavedSession, message: s.Resumed, now: float) -> list[Effect]:
        """The first connection carries a session that another process had. Raises ServerMisbehaved, SessionGone."""
        sent = saved.blocks.with_server(message.seq)
        if sent is None:
            raise SessionGone("epoch")
        if message.generation <= saved.generation:
            raise ServerMisbehaved(f"the server resumes generation {message.generation}, not a later one")
        self._utterances.go_on(saved, UtteranceStatistics(self.sample_rate, now), sent.ended)
        self._receiver.go_on(saved)
        self.window.go_on(message.seq)
        self._watchdog.begin(now)
        return self._go_on(message, now)

    def _go_on(self, message: s.Resumed, now: float) -> list[Effect]:
        if message.epoch != self._epoch:
            for entry in self._utterances.live.values():
                entry.transcript.replays = True  # the server restarted and may tell some things again
        self._receiver.generation = message.generation
        self._epoch, self._token = message.epoch, message.new_token or self._token
        self.line.resumes += 1
        self.line.mode_changed(message.mode, now)
        self._fresh = True
        self.window.ack(s.SeqAck(message.seq, message.room))
        self._sent_seq = message.seq
        for entry in self._utterances.live.values():
            entry.new_generation()
        return [*self._ack(now), *self._give_waiting(now), *self._give_backlog(now), RoomGrew()]

    def _lost_its_end(self, connection: int, now: float) -> list[Effect]:
        """A server that lost power has not all that it had taken, and does not know: only a new session can go on. Not
        on this connection: it carries the old one.
        """
        reconnecting = self._reconnecting
        if not self._may_restart:
            return self._fail(SessionGone("epoch"))
        self._gone = s.ResumeFailed("epoch")
        effects: list[Effect] = [Drop(connection)]
        if reconnecting.carrier is not None:
            effects.append(Drop(reconnecting.carrier))
            reconnecting.carrier = None
        return effects + reconnecting.failed(connection, "the server lost some of the text", now)

    def _take_over(self, connection: int, now: float) -> list[Effect]:
        reconnecting = self._reconnecting
        asked, heard_at, was_out = reconnecting.asked_at(connection), reconnecting.heard_at, reconnecting.searching
        assert asked is not None
        reconnecting.rtt_s = now - asked
        effects: list[Effect] = [Adopt(connection), *reconnecting.adopt(connection, now)]
        self._watchdog.moved(now, reconnecting.rtt_s)
        self.going_away = False
        if was_out:
            self.line.outage_ends(now)
            if self._gone is None:
                effects.append(Notice(f"resumed after {now - heard_at:.1f} s"))
        return effects

    # ---- another session ----

    def _resume_failed(self, message: s.ResumeFailed, connection: int, now: float) -> list[Effect]:
        reconnecting = self._reconnecting
        if not self.is_out:
            return [Drop(connection), *reconnecting.failed(connection, message.reason, now)]
        if not self._may_restart:
            self.line.outage_ends(now)
            return self._fail(SessionGone(message.reason))
        self._gone = message
        effects: list[Effect] = []
        if reconnecting.carrier is not None:
            effects.append(Drop(reconnecting.carrier))
            reconnecting.carrier = None
        return effects + reconnecting.ask_again(connection, self._request, now)

    def _reopened(self, opened: s.Opened, connection: int, now: float) -> list[Effect]:
        """A new session goes on with what the old one left unsaid."""
        gone = self._gone
        assert gone is not None
        if _sound(opened.config, opened.pre_skip) != _sound(self.opened.config, self.pre_skip):
            raise ServerMisbehaved("the session could not be resumed, and a new one sounds different: run this again")
        effects = self._take_over(connection, now)
        self._gone = None
        for entry in self._utterances.finished:
            entry.is_past = True
        self._receiver.new_session()
        self._enter(opened)
        self._fresh = False
        first: int | None = None
        cancelled: list[Effect] = []
        for entry in list(self._utterances.live.values()):
            if entry.cancelled:
                cancelled += self._receiver.cancelled_here(entry, now)
                continue
            self._say_rest(entry, gone)
            first = entry.base_text if first is None else first
        why = why_gone(gone.reason)
        if first is None:
            return [*effects, *cancelled, Notice(f"{why}: a new one was opened"), RoomGrew()]
        self._futile += 1
        self.line.restarts += 1
        if self._futile > FUTILE_RESTARTS:
            text = f"the server failed {self._futile} times at character {first}: see its log"
            return [*effects, *cancelled, *self._fail(ServerLost(text))]
        if self._paused:
            effects += self._number(Pause(0), now)
        return [
            *effects,
            *cancelled,
            Notice(f"{why}: going on with a new one, from character {first}"),
            *self._give_backlog(now),
            RoomGrew(),
        ]

    def _say_rest(self, entry: Tracked, gone: s.ResumeFailed) -> None:
        named = gone.restart_text_position if gone.utterance == entry.number else None
        rest = entry.transcript.rest(entry.timeline.received, named or 0, self.sample_rate)
        entry.go_on(rest, self.pre_skip)
        self._backlog.drop(entry.number)
        self._backlog.add(entry.number, rest.messages(self.max_text_chars))


def _sound(config: Mapping[str, Any], pre_skip: int) -> tuple[object, ...]:
    """What a consumer builds on."""
    return config.get("sample_rate", 24_000), config.get("format"), pre_skip
