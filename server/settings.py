"""The server's settings: defaults, then a TOML file, then the environment, then the command line.

`Settings` is the one table. Its fields drive `--help`, the environment's names, the keys of the file and the table in
docs/operations.md. Times carry their unit in the name: `_s` seconds, `_ms` milliseconds.
"""

import argparse
import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NoReturn

from server.setting_kinds import (
    Choice,
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
# Read by other parts: the voice cache and the client, which share the prefix.
_OTHER_ENV: Final = frozenset({CONFIG_ENV, "COSYSTREAM_MODEL_DIR", "COSYSTREAM_URL", "COSYSTREAM_API_KEY"})
# Kubernetes describes a service called `cosystream` by such variables in every pod.
_KUBERNETES_ENV: Final = re.compile(r"COSYSTREAM_(SERVICE_(HOST|PORT.*)|PORT_[0-9]+_.*)")


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


def option(kind: Kind, help_text: str, *, default: str = "", flag: str = "") -> dict[str, Any]:
    """Metadata of a settings field. `default` describes a computed default; `flag` is used where the name differs."""
    return {"kind": kind, "help": help_text, "default": default, "flag": flag}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a user can choose about the server."""

    host: str = field(
        default="127.0.0.1",
        metadata=option(
            Hosts(), "where to listen: addresses or names; `localhost` is IPv4 and IPv6, `::` is everywhere"
        ),
    )
    port: int = field(default=8765, metadata=option(WholeNumber(0, 65_535), "TCP port; 0 takes any free one"))
    engine: str = field(default="embedded", metadata=option(Text(), "which engine speaks"))
    engine_options: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=option(
            Pairs(), "options of the engine; may be given several times", default="-", flag="engine-option"
        ),
    )
    engine_threads: int = field(
        default_factory=cpu_count,
        metadata=option(WholeNumber(1, 1024), "threads the engine may use", default="number of CPUs"),
    )
    workers: int = field(
        default=0,
        metadata=option(
            WholeNumber(0, 256), "worker processes, each with an engine of its own; 0: engine threads in this process"
        ),
    )
    worker_devices: str = field(
        default="",
        metadata=option(
            Text("device numbers with commas between them"), "CUDA devices, given to the workers in turn", default="-"
        ),
    )
    step_timeout_s: float = field(
        default=5.0, metadata=option(Number(0.5, 600), "a step of the engine that takes longer hangs")
    )
    gateways: int = field(
        default=1, metadata=option(WholeNumber(1, 64), "processes that serve connections on the one port")
    )
    default_voice: str | None = field(
        default=None, metadata=option(Text(), "voice of clients that name none", default="the engine's first")
    )
    keys: Path | None = field(
        default=None, metadata=option(ReadableFile(), "key file; with one, every client needs a key", default="-")
    )
    insecure: bool = field(default=False, metadata=option(Flag(), "allow a public address without keys"))
    allow_origins: str = field(
        default="",
        metadata=option(Origins(), "web pages from elsewhere that may use the server; * is every page", default="-"),
    )
    tls_cert: Path | None = field(
        default=None, metadata=option(ReadableFile(), "certificate chain (PEM) for https and wss", default="-")
    )
    tls_key: Path | None = field(
        default=None, metadata=option(ReadableFile(), "private key (PEM) of `tls_cert`", default="-")
    )
    log_format: str = field(
        default="auto",
        metadata=option(
            Choice(("auto", "console", "json")), "how log lines look; auto: console on a terminal, else json"
        ),
    )
    log_level: str = field(
        default="info", metadata=option(Choice(("debug", "info", "warning", "error")), "least severity that is logged")
    )
    head_timeout_s: float = field(
        default=10.0, metadata=option(Number(0.1, 300), "from connecting until the head of the first request is there")
    )
    open_timeout_s: float = field(
        default=10.0, metadata=option(Number(0.1, 300), "from the WebSocket's start until its `open` message is there")
    )
    idle_timeout_s: float = field(
        default=300.0,
        metadata=option(Number(1, 86_400), "how long a client may send nothing at all; acks and pings count"),
    )
    stall_timeout_s: float = field(
        default=60.0, metadata=option(Number(1, 3_600), "how long a client may take nothing of what waits for it")
    )
    read_ahead_ms: int = field(
        default=10_000, metadata=option(WholeNumber(100, 600_000), "audio rendered and not yet sent, per session")
    )
    resume_ttl_s: float = field(
        default=120.0,
        metadata=option(Number(0, 86_400), "how long a session waits for a client that lost its connection; 0: not"),
    )
    detach_after_s: float = field(
        default=4.0,
        metadata=option(Number(0.5, 600), "audio unacked and nothing heard for so long: the connection is given up"),
    )
    resume_budget_mb: int = field(
        default=256,
        metadata=option(
            WholeNumber(1, 1_000_000), "MiB of audio kept for sessions without connection; the oldest are given up"
        ),
    )
    store: str = field(
        default="memory",
        metadata=option(Store(), "where sessions are kept: memory, or a directory that survives a restart"),
    )
    journal_fsync: bool = field(
        default=False, metadata=option(Flag(), "force the store to disk at each write: survives a loss of power, too")
    )
    no_text_at_rest: bool = field(default=False, metadata=option(Flag(), "refuse settings that write texts to disk"))
    max_sessions: int = field(default=4096, metadata=option(WholeNumber(1, 100_000), "sessions at the same time"))
    max_streams: float = field(
        default=0.0,
        metadata=option(
            Number(0, 100_000), "sessions that speak at the same time; 0: as many as the engine was measured to feed"
        ),
    )
    sessions_per_principal: int = field(
        default=0, metadata=option(WholeNumber(0, 100_000), "sessions of one principal at the same time; 0: no bound")
    )
    session_rate: float = field(
        default=0.0, metadata=option(Number(0, 10_000), "new sessions a second of one principal; 0: no bound")
    )
    session_burst: int = field(
        default=20, metadata=option(WholeNumber(1, 100_000), "new sessions of one principal at once, with a rate")
    )
    quota_chars: int = field(
        default=0, metadata=option(WholeNumber(0, 10**12), "characters of one principal in a quota window; 0: no bound")
    )
    quota_audio_s: float = field(
        default=0.0,
        metadata=option(Number(0, 10**9), "seconds of audio of one principal in a quota window; 0: no bound"),
    )
    quota_window_s: float = field(
        default=3600.0, metadata=option(Number(1, 31_536_000), "the time in which a used-up quota fills again")
    )
    log_sample_percent: float = field(
        default=1.0, metadata=option(Number(0, 100), "share of ordinary sessions that are logged in full detail")
    )
    drain_timeout_s: float = field(
        default=3.0, metadata=option(Number(0, 600), "how long a stopping server lets sessions finish")
    )
    warnings: tuple[str, ...] = ()
    """What `load` found odd but harmless; logged when the server starts."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """`host`, one by one."""
        return tuple(self.host.split(","))

    @property
    def origins(self) -> tuple[str, ...]:
        """`allow_origins`, one by one."""
        return tuple(filter(None, self.allow_origins.split(",")))


@dataclass(frozen=True, slots=True)
class Option:
    """One setting, as users name it."""

    name: str
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
        found.append(Option(item.name, data["kind"], data["help"], shown, flag))
    return tuple(found)


OPTIONS: Final = _options()
_BY_NAME: Final = {each.name: each for each in OPTIONS}


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError([f"command line: {message}"])


def argument_parser(prog: str = "python -m server") -> argparse.ArgumentParser:
    """The command line of the server; values stay text, so that all faults can be reported together."""
    parser = _Parser(
        prog=prog,
        description="A real-time speech server: text in over a WebSocket, speech out as it is made.",
        epilog=f"Every setting can also come from the environment ({ENV_PREFIX}PORT for --port) or from a TOML file "
        "(port = 8765); the command line wins over the environment, which wins over the file. "
        "Other commands: `keys add|list|remove`, `health`, `settings --markdown`.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help=f"TOML file with settings; also {CONFIG_ENV}")
    for each in OPTIONS:
        default = f" (default: {each.default})" if each.default not in ("", "-") else ""
        help_text = f"{each.help}: {each.kind.allowed}{default}".replace("%", "%%")
        if isinstance(each.kind, Flag):
            parser.add_argument(each.flag, dest=each.name, nargs="?", const="true", metavar="BOOL", help=help_text)
        else:
            parser.add_argument(each.flag, dest=each.name, action="append", metavar="VALUE", help=help_text)
    return parser


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


class _Loader:
    """Collects values and faults from the sources, in rising priority."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def take(self, source: str, shown: str, each: Option, value: object) -> None:
        try:
            parsed = each.kind.parse(value)
        except (ValueError, TypeError) as problem:
            reason = f" ({problem})" if isinstance(each.kind, ReadableFile) and str(problem) else ""
            if each.name == "port" and isinstance(value, str) and value.startswith("tcp://"):
                reason = " (Kubernetes set it; use `enableServiceLinks: false` or another service name)"
            self.problems.append(f"{source}: {shown} = {value!r}{reason}; allowed is {each.kind.allowed}")
            return
        if isinstance(each.kind, Pairs):
            parsed = {**self.values.get(each.name, {}), **parsed}
        self.values[each.name] = parsed

    def file(self, path: str) -> None:
        try:
            with Path(path).expanduser().open("rb") as handle:
                table = tomllib.load(handle)
        except OSError as problem:
            self.problems.append(f"{path}: cannot be read: {problem.strerror or type(problem).__name__}")
            return
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            self.problems.append(f"{path}: is not TOML: {problem}")
            return
        for name, value in table.items():
            if name in _BY_NAME:
                self.take(path, name, _BY_NAME[name], value)
            else:
                self.problems.append(f"{path}: {name} is no setting{_nearest(name, _BY_NAME)}")

    def environment(self, environ: Mapping[str, str]) -> None:
        known = {each.env: each for each in OPTIONS}
        for name in sorted(environ):
            if not name.startswith(ENV_PREFIX) or name in _OTHER_ENV or not environ[name].strip():
                continue  # an empty variable counts as not set: compose files pass on what is not there that way
            if name in known:
                self.take("environment", name, known[name], environ[name])
            elif not _KUBERNETES_ENV.fullmatch(name):
                self.warnings.append(f"environment: {name} is no setting{_nearest(name, known)}")

    def arguments(self, given: Mapping[str, Any], unknown: Sequence[str]) -> None:
        for each in OPTIONS:
            values = given.get(each.name)
            for value in values if isinstance(values, list) else [values]:
                if value is not None:
                    self.take("command line", each.flag, each, value)
        for argument in unknown:
            name = argument.split("=", 1)[0]
            near = _nearest(name, [each.flag for each in OPTIONS]) if name.startswith("-") else ""
            self.problems.append(f"command line: {argument} is not understood{near}")

    def finish(self) -> Settings:
        if not self.problems:
            if self.values.get("journal_fsync") and self.values.get("store", "memory") == "memory":
                self.warnings.append("journal_fsync does nothing without a store (--store file:DIRECTORY)")
            if self.values.get("worker_devices") and not self.values.get("workers"):
                self.warnings.append("worker_devices does nothing without worker processes (--workers N)")
            settings = Settings(**self.values, warnings=tuple(self.warnings))
            self.problems += _contradictions(settings)
            if not self.problems:
                return settings
        raise SettingsError(self.problems + [f"warning: {each}" for each in self.warnings])


def _contradictions(settings: Settings) -> list[str]:
    found = []
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        found.append(f"{missing} is missing: tls_cert and tls_key go together")
    if settings.no_text_at_rest and settings.store != "memory":
        found.append(
            f"store = {settings.store!r} writes texts to disk, which no_text_at_rest refuses; allowed is memory"
        )
    if settings.store != "memory" and settings.resume_ttl_s <= 0:
        found.append(f"store = {settings.store!r} needs resume_ttl_s above 0")
    public = [host for host in settings.hosts if not is_loopback(host)]
    if public and settings.keys is None and not settings.insecure:
        found.append(
            f"host = {', '.join(public)!r} can be reached from other machines; allowed with --keys FILE "
            "(make one with `python -m server keys add NAME`), or without keys by --insecure"
        )
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`, an address or a name. Names other than `localhost` count as public."""
    try:
        address = ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return host.lower() == "localhost"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """The settings from command line `argv` (without the program's name) and the environment, all sources merged.

    Raises SettingsError naming every fault at once.
    """
    loader = _Loader()
    arguments = argparse.Namespace(config=None)
    unknown: list[str] = []
    try:
        arguments, unknown = argument_parser().parse_known_args(list(argv))
    except SettingsError as problem:
        loader.problems += problem.problems
    config = arguments.config or environ.get(CONFIG_ENV, "").strip()
    if config:
        loader.file(config)
    loader.environment(environ)
    loader.arguments(vars(arguments), unknown)
    return loader.finish()


def markdown_table() -> str:
    """Every setting as a Markdown table, for docs/operations.md."""
    rows = ["| setting | environment | allowed | default | what it does |", "|---|---|---|---|---|"]
    rows.append(f"| `--config` | `{CONFIG_ENV}` | the path of a TOML file | - | settings by name, e.g. `port = 8765` |")
    for each in OPTIONS:
        default = f"`{each.default}`" if re.fullmatch(r"[\w.:]+", each.default) else each.default
        rows.append(f"| `{each.flag}` | `{each.env}` | {each.kind.allowed} | {default} | {each.help} |")
    return "\n".join(rows)
