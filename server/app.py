"""The composition root: settings in, a server out, and a bounded way to stop it. `running.py` makes it a process."""

import asyncio
from dataclasses import replace
from functools import partial

import structlog
from websockets.asyncio.server import ServerConnection

from protocol.media.opus import OpusUnavailableError, load_opuslib
from protocol.server_messages import BusyReason
from server.background import in_daemon_thread
from server.cluster import EnginePool
from server.cluster.opening import PoolOpener
from server.engines import Capabilities
from server.gateway.auth import Principals, read_secret
from server.gateway.connection import GatewayConnection
from server.gateway.doorkeeper import Doorkeeper
from server.gateway.farewell import say_busy
from server.gateway.http import build_app
from server.gateway.http import warm_up as warm_up_http
from server.gateway.listener import Listener, start_listener
from server.gateway.origins import ANY, Origins
from server.gateway.pages import page_routes
from server.gateway.relay import Elsewhere
from server.gateway.self_signed import certified
from server.gateway.sessions import Sessions
from server.gateway.speak import speak_routes
from server.gateway.status import StatusReport, status_routes
from server.gateway.token_routes import token_routes
from server.gateway.voices import kind_of, voices_routes
from server.gateway.websocket import WebSocketConnection
from server.gateways.names import FIRST_INDEX, session_prefix
from server.gateways.place import Place
from server.gateways.pool_share import PoolShare
from server.gateways.routes import all_metrics, other_parts, private_routes
from server.jobs import open_dead_letters
from server.observe.loop_lag import LoopLag
from server.observe.pool import PoolWatch
from server.observe.watch import Watch
from server.scheduler.admission import Refusal
from server.scheduler.principals import PrincipalLimits
from server.session import Policy
from server.settings import Settings
from server.store import Activity, open_store
from server.voices import VoiceWatch
from server.voices.place import open_voices

log = structlog.get_logger(__name__)

LOADING_RETRY_S = 1.0
LEAST_FAILURES = 100  # an hour, else as many as there may be sessions: all may be gone, as after a restart


class Server:
    """A server inside a running event loop.

    `start` listens at once and loads the engine behind it, so that probes get an answer; `ready` is set when it can
    speak.
    """

    def __init__(self, settings: Settings, place: Place | None = None) -> None:
        """`place`: where it stands among several gateways, if it is one of them."""
        self.settings = settings
        self.place = place
        self.watch = Watch(sample_percent=settings.log_sample_percent)
        self.metrics = self.watch.metrics
        self.loop_lag = LoopLag(self.metrics.loop_lag_seconds.observe)
        self.pool_watch = PoolWatch(self.metrics, settings.engine)
        self._report = StatusReport(
            self, partial(other_parts, place) if place else None, shared_engines=bool(place and place.workers)
        )
        secret = place.token_secret if place else read_secret(settings.token_secret)
        self.principals = Principals.load(settings.keys, secret)
        self.ready = asyncio.Event()
        self.listener: Listener | None = None
        self._private: Listener | None = None  # for the other gateways
        self.pool: EnginePool | None = None
        self.voices = open_voices(settings)
        self._voice_watch: VoiceWatch | None = None
        self.dead_letters = open_dead_letters(
            settings, self.metrics, warns=place is None or place.siblings.index == FIRST_INDEX
        )
        self._opener = PoolOpener(
            settings,
            self.pool_watch,
            place.workers if place else (),
            on_failure=self.dead_letters.add,
            voices=self.voices,
        )
        self._policy: Policy | None = None
        self.doorkeeper = Doorkeeper(
            self.metrics,
            max_streams=settings.max_streams,
            limits=PrincipalLimits(
                sessions=settings.sessions_per_principal,
                session_rate=settings.session_rate,
                session_burst=settings.session_burst,
                chars=settings.quota_chars,
                audio_s=settings.quota_audio_s,
                window_s=settings.quota_window_s,
                failures=max(LEAST_FAILURES, settings.max_sessions),
            ),
            lag_s=self.loop_lag.recent_s,
        )
        self.sessions = Sessions(
            settings.max_sessions,
            self.watch,
            store=open_store(
                settings.store,
                ttl_s=settings.resume_ttl_s or 1.0,
                fsync=settings.journal_fsync,
                observer=self._on_journal,
            ),
            budget_bytes=settings.resume_budget_mb * 1024 * 1024,
            id_prefix=session_prefix(place.name) if place else "",
            doorkeeper=self.doorkeeper,
        )
        self._stopping = False

    # What the HTTP side asks (HttpState)

    @property
    def not_ready_reason(self) -> str:
        """Empty when the server can speak."""
        if self.pool is None or self._not_serving:
            return self._not_serving
        return "" if self.pool.capacity().workers else "no engine is at work"

    @property
    def _not_serving(self) -> str:
        """Why connections are sent away; empty when they are served, at the latest as soon as an engine is back."""
        if self._stopping:
            return "stopping"
        return "" if self.ready.is_set() else "loading the engine"

    @property
    def capabilities(self) -> Capabilities | None:
        """The engine's, once it is loaded."""
        return self.pool.capabilities if self.pool else None

    @property
    def policy(self) -> Policy | None:
        """What sessions go by, once the engine is loaded."""
        return self._policy

    @property
    def name(self) -> str:
        """Among several gateways; empty for the only one."""
        return self.place.name if self.place else ""

    async def scrape(self) -> bytes:
        """The metrics, of all gateways."""
        return await all_metrics(self.metrics, self.place) if self.place else self.metrics.render()

    # Life

    async def start(self) -> None:
        """Listen, then load and warm the engine.

        Raises OSError for the address, ValueError for a setting, LookupError for an engine that does not exist and
        EngineError for one that cannot start.
        """
        self.loop_lag.start()
        loop = asyncio.get_running_loop()
        self.metrics.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
        async with certified(self.settings) as settings:
            self.listener = await start_listener(
                settings,
                app=build_app(
                    self,
                    routes=[
                        *page_routes(),
                        *speak_routes(self),
                        *voices_routes(self),
                        *token_routes(self),
                        *status_routes(self._report),
                    ],
                    origins=Origins.of(self.settings),
                ),
                websocket_handler=self._serve,
                principals=self.principals,
                metrics=self.metrics,
                sockets=self.place.sockets if self.place else None,
                share=self.place,
                not_serving=lambda: self._not_serving,
            )
        if self.place is not None:
            self._private = await start_listener(
                replace(self.settings, tls_cert=None, tls_key=None, allow_origins=ANY),  # the other one has looked
                app=build_app(self, routes=private_routes(self.metrics, self.sessions, self._report)),
                websocket_handler=partial(self._serve, relayed=True),
                principals=self.principals,
                sockets=[self.place.open_private()],
            )
        await self._load()

    async def _load(self) -> None:
        settings = self.settings
        pool, *_ = await asyncio.gather(self._opener.start(), in_daemon_thread(_warm_up_opus), warm_up_http())
        known = [voice.id for voice in pool.capabilities.voices]
        voice = settings.default_voice or next(
            iter(known), ""
        )  # an engine may have none but those that users had learnt
        if voice and voice not in known:
            raise ValueError(f"default_voice must be one of {', '.join(known)}, not {voice!r}")
        if self.place is not None and self.place.workers:
            pool = PoolShare(pool, self.place.gateways)
        self.pool = pool
        if pool.capabilities.cloning:
            self._voice_watch = VoiceWatch(self.voices, pool.forget_voice)
        self.pool_watch.follow(pool)
        self.metrics.speaking.set_function(lambda: self.doorkeeper.speaking)
        self.doorkeeper.follow(pool)
        self._policy = Policy(
            default_voice=voice,
            open_timeout_s=settings.open_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
            read_ahead_ms=settings.read_ahead_ms,
            detach_after_s=settings.detach_after_s,
            resume_ttl_s=settings.resume_ttl_s,
            block_tokens=settings.block_tokens,
            block_window_tokens=settings.block_window_tokens,
            overlap_tokens=settings.block_overlap_tokens,
            owns_voice=partial(self._owns_voice, pool.capabilities),
        )
        self.ready.set()

    def _owns_voice(self, capabilities: Capabilities, principal: str, voice: str) -> bool:
        """Whether a principal has a learnt voice that the engine understands. Asked with each segment: it takes as long
        as opening a small file.
        """
        found = self.voices.find(voice, principal) if capabilities.cloning else None
        return found is not None and found.kind == kind_of(capabilities)

    def _on_journal(self, activity: Activity) -> None:
        self.metrics.journal_bytes.inc(activity.bytes)
        self.metrics.journal_failures.inc(len(activity.failures))

    async def stop(self) -> None:
        """Tell clients, let them finish for `drain_timeout_s`, close everything. Takes that and a few seconds."""
        self._stopping = True
        if self.place is not None:
            self.place.retire()
        if self.sessions.taken:
            log.info("stopping", sessions=self.sessions.taken, drain_timeout_s=self.settings.drain_timeout_s)
        await self.sessions.stop(round(self.settings.drain_timeout_s * 1000))
        await asyncio.gather(*(each.close(timeout=1.0) for each in (self.listener, self._private) if each is not None))
        if self._voice_watch is not None:
            self._voice_watch.close()
        await self._opener.close()
        await self.dead_letters.close()  # what the pool gave up just now is among them
        self.loop_lag.stop()
        self.watch.report_left_out()
        if self.ready.is_set():
            log.info("stopped")

    async def _serve(self, connection: ServerConnection, *, relayed: bool = False) -> None:
        """One WebSocket connection; `relayed`: another gateway passes it on."""
        if self.pool is None or self._policy is None or self._not_serving:
            reason: BusyReason = "stopping" if self._stopping else "loading"
            retry_s = self.doorkeeper.spread(LOADING_RETRY_S)
            refusal = Refusal(reason, retry_s, f"the server is not ready: {self.not_ready_reason}")
            await say_busy(connection, self.doorkeeper.refused(refusal).refusal)
            return
        assert isinstance(connection, GatewayConnection)
        header = connection.request.headers.get("Authorization") if connection.request is not None else None
        authenticate = self.principals.for_connection(header, connection.principal)
        elsewhere = Elsewhere(self.place.siblings, self.metrics.relayed, relays=not relayed) if self.place else None
        await WebSocketConnection(
            connection, self.pool, self._policy, authenticate, self.sessions, elsewhere, connection.refusal
        ).run()


def _warm_up_opus() -> None:
    """Load libopus now, not for the first client who asks for it."""
    try:
        load_opuslib()
    except OpusUnavailableError as error:
        log.warning("there is no Opus, only PCM", reason=str(error))
