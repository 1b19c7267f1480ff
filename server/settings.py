"""The server's settings: what there is to choose. Where it comes from is in `setting_sources.py`.

`Settings` is the one table. Its fields drive `--help`, the environment's names, the keys of the file and the table in
docs/operations.md. Times carry their unit in the name: `_s` seconds, `_ms` milliseconds.
"""

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from server.setting_kinds import (
    Choice,
    Devices,
    DirectoryOr,
    Flag,
    Hosts,
    Kind,
    Number,
    Origins,
    Pairs,
    ReadableFile,
    Store,
    Text,
    WholeNumber,
)

ENV_PREFIX: Final = "COSYSTREAM_"
CONFIG_ENV: Final = "COSYSTREAM_CONFIG"


class SettingsError(Exception):
    """The settings do not hold together; `problems` has one line for each fault."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def cpu_count() -> int:
    """How many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Group = Literal[
    "Network",
    "Keys and TLS",
    "Engine",
    "Workers and gateways",
    "Sessions",
    "Long text",
    "Limits",
    "Time-outs",
    "Logs",
]
GROUPS: Final[tuple[Group, ...]] = get_args(Group)
"""What settings are shown under, in this order."""


def option(group: Group, kind: Kind, help_text: str, *, default: str = "", flag: str = "") -> dict[str, Any]:
    """Metadata of a settings field. `default` describes a computed default; `flag` is used where the name differs."""
    return {"group": group, "kind": kind, "help": help_text, "default": default, "flag": flag}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a user can choose about the server."""

    host: str = field(
        default="127.0.0.1",
        metadata=option(
            "Network", Hosts(), "where to listen: addresses or names; `localhost` is IPv4 and IPv6, `::` is everywhere"
        ),
    )
    port: int = field(
        default=8765, metadata=option("Network", WholeNumber(0, 65_535), "TCP port; 0 takes any free one")
    )
    engine: str = field(
        default="embedded",
        metadata=option(
            "Engine",
            Text("a name"),
            "embedded, cosyvoice (see docs/cosyvoice.md), tone (no speech, for tests), or one you installed",
        ),
    )
    engine_options: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=option(
            "Engine", Pairs(), "options of the engine; may be given several times", default="-", flag="engine-option"
        ),
    )
    model: str | None = field(
        default=None,
        metadata=option(
            "Engine",
            Text("a folder or a name"),
            "the model of an engine that can have several",
            default="the engine's own",
        ),
    )
    engine_threads: int = field(
        default_factory=cpu_count,
        metadata=option("Engine", WholeNumber(1, 1024), "threads the engine may use", default="number of CPUs"),
    )
    workers: int = field(
        default=0,
        metadata=option(
            "Workers and gateways",
            WholeNumber(0, 256),
            "worker processes, each with an engine of its own; 0: engine threads in this process",
        ),
    )
    worker_devices: str = field(
        default="",
        metadata=option(
            "Workers and gateways",
            Devices(),
            "CUDA devices, given to the workers in turn",
            default="-",
        ),
    )
    step_timeout_s: float = field(
        default=5.0, metadata=option("Engine", Number(0.5, 600), "a step of the engine that takes longer hangs")
    )
    gateways: int = field(
        default=1,
        metadata=option("Workers and gateways", WholeNumber(1, 64), "processes that serve connections on the one port"),
    )
    default_voice: str | None = field(
        default=None, metadata=option("Engine", Text(), "voice of clients that name none", default="the engine's first")
    )
    voices: str = field(
        default="auto",
        metadata=option(
            "Engine",
            DirectoryOr(("auto", "off")),
            "where voices that users have learnt are kept, by engines that can; auto: in the user's state directory",
        ),
    )
    keys: Path | None = field(
        default=None,
        metadata=option("Keys and TLS", ReadableFile(), "key file; with one, every client needs a key", default="-"),
    )
    insecure: bool = field(
        default=False, metadata=option("Keys and TLS", Flag(), "allow a public address without keys")
    )
    allow_origins: str = field(
        default="",
        metadata=option(
            "Keys and TLS", Origins(), "web pages from elsewhere that may use the server; * is every page", default="-"
        ),
    )
    token_secret: Path | None = field(
        default=None,
        metadata=option(
            "Keys and TLS",
            ReadableFile(),
            "at least 32 secret bytes that tokens for browsers are signed with",
            default="random, at each start",
        ),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=option("Keys and TLS", ReadableFile(), "certificate chain (PEM) for https and wss", default="-"),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=option("Keys and TLS", ReadableFile(), "private key (PEM) of `tls_cert`", default="-"),
    )
    tls_self_signed: bool = field(
        default=False,
        metadata=option("Keys and TLS", Flag(), "https and wss with a certificate that the server makes itself"),
    )
    log_format: str = field(
        default="auto",
        metadata=option(
            "Logs", Choice(("auto", "console", "json")), "how log lines look; auto: console on a terminal, else json"
        ),
    )
    log_level: str = field(
        default="info",
        metadata=option("Logs", Choice(("debug", "info", "warning", "error")), "least severity that is logged"),
    )
    head_timeout_s: float = field(
        default=10.0,
        metadata=option("Time-outs", Number(0.1, 300), "from connecting until the head of the first request is there"),
    )
    open_timeout_s: float = field(
        default=10.0,
        metadata=option("Time-outs", Number(0.1, 300), "from the WebSocket's start until its `open` message is there"),
    )
    idle_timeout_s: float = field(
        default=300.0,
        metadata=option(
            "Time-outs", Number(1, 86_400), "how long a client may send nothing at all; acks and pings count"
        ),
    )
    stall_timeout_s: float = field(
        default=60.0,
        metadata=option("Time-outs", Number(1, 3_600), "how long a client may take nothing of what waits for it"),
    )
    read_ahead_ms: int = field(
        default=10_000,
        metadata=option("Sessions", WholeNumber(100, 600_000), "audio rendered and not yet sent, per session"),
    )
    resume_ttl_s: float = field(
        default=120.0,
        metadata=option(
            "Sessions", Number(0, 86_400), "how long a session waits for a client that lost its connection; 0: not"
        ),
    )
    detach_after_s: float = field(
        default=4.0,
        metadata=option(
            "Time-outs", Number(0.5, 600), "audio unacked and nothing heard for so long: the connection is given up"
        ),
    )
    resume_budget_mb: int = field(
        default=256,
        metadata=option(
            "Sessions",
            WholeNumber(1, 1_000_000),
            "MiB of audio kept for sessions without connection; the oldest are given up",
        ),
    )
    store: str = field(
        default="memory",
        metadata=option("Sessions", Store(), "where sessions are kept: memory, or a directory that survives a restart"),
    )
    journal_fsync: bool = field(
        default=False,
        metadata=option("Sessions", Flag(), "force the store to disk at each write: survives a loss of power, too"),
    )
    no_text_at_rest: bool = field(
        default=False, metadata=option("Sessions", Flag(), "refuse settings that write texts to disk")
    )
    max_sessions: int = field(
        default=4096, metadata=option("Limits", WholeNumber(1, 100_000), "sessions at the same time")
    )
    max_streams: float = field(
        default=0.0,
        metadata=option(
            "Limits",
            Number(0, 100_000),
            "sessions that speak at the same time; 0: as many as the engine was measured to feed",
        ),
    )
    sessions_per_principal: int = field(
        default=0,
        metadata=option("Limits", WholeNumber(0, 100_000), "sessions of one principal at the same time; 0: no bound"),
    )
    session_rate: float = field(
        default=0.0, metadata=option("Limits", Number(0, 10_000), "new sessions a second of one principal; 0: no bound")
    )
    session_burst: int = field(
        default=20,
        metadata=option("Limits", WholeNumber(1, 100_000), "new sessions of one principal at once, with a rate"),
    )
    voices_per_principal: int = field(
        default=100, metadata=option("Limits", WholeNumber(1, 100_000), "learnt voices that one principal may have")
    )
    quota_chars: int = field(
        default=0,
        metadata=option("Limits", WholeNumber(0, 10**12), "characters of one principal in a quota window; 0: no bound"),
    )
    quota_audio_s: float = field(
        default=0.0,
        metadata=option("Limits", Number(0, 10**9), "seconds of audio of one principal in a quota window; 0: no bound"),
    )
    quota_window_s: float = field(
        default=3600.0,
        metadata=option("Limits", Number(1, 31_536_000), "the time in which a used-up quota fills again"),
    )
    log_sample_percent: float = field(
        default=1.0,
        metadata=option("Logs", Number(0, 100), "share of ordinary sessions that are logged in full detail"),
    )
    block_tokens: int = field(
        default=256,
        metadata=option(
            "Long text",
            WholeNumber(16, 4096),
            "a sentence of more tokens is cut again; the engine's own limit counts, too",
        ),
    )
    block_window_tokens: int = field(
        default=128,
        metadata=option(
            "Long text", WholeNumber(16, 4096), "the most tokens of a block that such a sentence is cut into"
        ),
    )
    block_overlap_tokens: int = field(
        default=16,
        metadata=option(
            "Long text",
            WholeNumber(0, 64),
            "tokens said just before in the same sentence that an engine gets as context, if it can use any",
        ),
    )
    context_cache_blocks: int = field(
        default=0,
        metadata=option(
            "Long text",
            WholeNumber(0, 100_000),
            "blocks whose inner state each engine keeps; 0: by the memory of its device",
            default="20 to 50",
        ),
    )
    context_cache_mb: int = field(
        default=64, metadata=option("Long text", WholeNumber(0, 1_000_000), "MiB that this may take; 0: none is kept")
    )
    audio_cache_mb: int = field(
        default=32,
        metadata=option("Long text", WholeNumber(0, 1_000_000), "MiB of finished audio kept for texts that come again"),
    )
    fallback_engine: str = field(
        default="embedded",
        metadata=option(
            "Long text",
            Text("a name, or none"),
            "the engine that speaks what the other one fails at; loaded when first needed",
        ),
    )
    dead_letters: str = field(
        default="auto",
        metadata=option(
            "Long text",
            DirectoryOr(("auto", "off")),
            "where failed texts are written down; auto: in the user's state directory",
        ),
    )
    dead_letter_mb: int = field(
        default=16, metadata=option("Long text", WholeNumber(1, 1_000_000), "MiB of them that are kept, the newest")
    )
    drain_timeout_s: float = field(
        default=3.0, metadata=option("Time-outs", Number(0, 600), "how long a stopping server lets sessions finish")
    )
    warnings: tuple[str, ...] = ()
    """What `setting_sources.load` found odd but harmless; logged when the server starts."""

    def __post_init__(self) -> None:
        """`model` is an engine option that has a name of its own."""
        if self.model is not None:
            object.__setattr__(self, "engine_options", {**self.engine_options, "model": self.model})

    @property
    def hosts(self) -> tuple[str, ...]:
        """`host`, one by one."""
        return tuple(self.host.split(","))

    @property
    def secure(self) -> bool:
        """Whether it is https and wss that it serves."""
        return self.tls_cert is not None or self.tls_self_signed

    @property
    def origins(self) -> tuple[str, ...]:
        """`allow_origins`, one by one."""
        return tuple(filter(None, self.allow_origins.split(",")))


@dataclass(frozen=True, slots=True)
class Option:
    """One setting, as users name it."""

    name: str
    group: Group
    kind: Kind
    help: str
    default: str
    flag: str

    @property
    def env(self) -> str:
        """Its environment variable."""
        return ENV_PREFIX + self.name.upper()


def _options() -> tuple[Option, ...]:
    found = []
    for item in fields(Settings):
        if "kind" not in item.metadata:
            continue
        data = item.metadata
        shown = data["default"]
        if not shown and item.default is not MISSING:
            shown = str(item.default).lower() if isinstance(item.default, bool) else f"{item.default}"
        flag = "--" + (data["flag"] or item.name.replace("_", "-"))
        found.append(Option(item.name, data["group"], data["kind"], data["help"], shown, flag))
    return tuple(sorted(found, key=lambda each: GROUPS.index(each.group)))


OPTIONS: Final = _options()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`, an address or a name. Names other than `localhost` count as public."""
    try:
        address = ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return host.lower() == "localhost"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def markdown_table() -> str:
    """Every setting as a Markdown table, for docs/operations.md."""
    rows = ["| setting | environment | allowed | default | what it does |", "|---|---|---|---|---|"]
    rows.append(f"| `--config` | `{CONFIG_ENV}` | the path of a TOML file | - | settings by name, e.g. `port = 8765` |")
    group = ""
    for each in OPTIONS:
        if each.group != group:
            group = each.group
            rows.append(f"| **{group}** | | | | |")
        default = f"`{each.default}`" if re.fullmatch(r"[\w.:]+", each.default) else each.default
        rows.append(f"| `{each.flag}` | `{each.env}` | {each.kind.allowed} | {default} | {each.help} |")
    return "\n".join(rows)
