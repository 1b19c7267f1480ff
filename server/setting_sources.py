"""Where settings come from: a TOML file, then the environment, then the command line; merged, and every fault told."""

import argparse
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from server.setting_kinds import Flag, Pairs, ReadableFile
from server.settings import CONFIG_ENV, ENV_PREFIX, GROUPS, OPTIONS, Option, Settings, SettingsError, is_loopback

# Read by other parts: the voice cache and the client, which share the prefix.
_OTHER_ENV: Final = frozenset({CONFIG_ENV, "COSYSTREAM_MODEL_DIR", "COSYSTREAM_URL", "COSYSTREAM_API_KEY"})
# Kubernetes describes a service called `cosystream` by such variables in every pod.
_KUBERNETES_ENV: Final = re.compile(r"COSYSTREAM_(SERVICE_(HOST|PORT.*)|PORT_[0-9]+_.*)")
LEAST_OVERLAP_TOKENS: Final = 8  # about a clause: less says too little about how the sentence goes on
_NOT_SHOWN: Final = ("token_secret",)  # it may be the secret itself, in place of its file
_WITHOUT_MODEL: Final = ("embedded", "tone")
_BY_NAME: Final = {each.name: each for each in OPTIONS}


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """The settings from command line `argv` (without the program's name) and the environment, all sources merged.

    Raises SettingsError naming every fault at once.
    """
    arguments = argparse.Namespace(config=None)
    unknown: list[str] = []
    problems: list[str] = []
    try:
        arguments, unknown = argument_parser().parse_known_args(list(argv))
    except SettingsError as problem:
        problems = problem.problems
    return _load(arguments, environ, unknown, problems)


def load_parsed(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """As `load`, of what a parser with `add_settings` understood."""
    return _load(arguments, environ, (), ())


def _load(
    arguments: argparse.Namespace, environ: Mapping[str, str], unknown: Sequence[str], problems: Sequence[str]
) -> Settings:
    loader = _Loader(problems)
    config = arguments.config or environ.get(CONFIG_ENV, "").strip()
    if config:
        loader.file(config)
    loader.environment(environ)
    loader.arguments(vars(arguments), unknown)
    return loader.finish()


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError([f"command line: {message}"])


def argument_parser(prog: str = "python -m server") -> argparse.ArgumentParser:
    """The command line of the server; values stay text, so that all faults can be reported together."""
    parser = _Parser(
        prog=prog,
        usage="%(prog)s [--config FILE] [OPTION VALUE ...]",
        description="A real-time speech server: text in over a WebSocket, speech out as it is made.",
        epilog=f"Every setting can also come from the environment ({ENV_PREFIX}PORT for --port) or from a TOML file "
        "(port = 8765); the command line wins over the environment, which wins over the file. "
        "Other commands: `keys add|list|remove|secret`, `health`, `settings --markdown`, `dlq list|show|replay`,"
        " `doctor`, `parity DIR`.",
        allow_abbrev=False,
    )
    add_settings(parser)
    return parser


def add_settings(parser: argparse.ArgumentParser, *, hidden: bool = False) -> None:
    """Every setting as an option of this parser. `hidden`: its help does not show them."""

    def shown(text: str) -> str:
        return argparse.SUPPRESS if hidden else text.replace("%", "%%")

    parser.add_argument("--config", metavar="FILE", help=shown(f"TOML file with settings; also {CONFIG_ENV}"))
    groups = {name: parser if hidden else parser.add_argument_group(name) for name in GROUPS}
    for each in OPTIONS:
        group = groups[each.group]
        default = f" (default: {each.default})" if each.default not in ("", "-") else ""
        help_text = shown(f"{each.help}: {each.kind.allowed}{default}")
        if isinstance(each.kind, Flag):
            group.add_argument(each.flag, dest=each.name, nargs="?", const="true", metavar="BOOL", help=help_text)
        else:
            group.add_argument(each.flag, dest=each.name, action="append", metavar="VALUE", help=help_text)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


class _Loader:
    """Collects values and faults from the sources, in rising priority."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.values: dict[str, Any] = {}
        self.problems = list(problems)
        self.warnings: list[str] = []

    def take(self, source: str, shown: str, each: Option, value: object) -> None:
        try:
            parsed = each.kind.parse(value)
        except (ValueError, TypeError) as problem:
            reason = f" ({problem})" if isinstance(each.kind, ReadableFile) and str(problem) else ""
            if each.name == "port" and isinstance(value, str) and value.startswith("tcp://"):
                reason = " (Kubernetes set it; use `enableServiceLinks: false` or another service name)"
            told = "..." if each.name in _NOT_SHOWN else repr(value)
            self.problems.append(f"{source}: {shown} = {told}{reason}; allowed is {each.kind.allowed}")
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
            overlap = self.values.get("block_overlap_tokens", LEAST_OVERLAP_TOKENS)
            if overlap < LEAST_OVERLAP_TOKENS:
                self.warnings.append(
                    f"block_overlap_tokens = {overlap}: below {LEAST_OVERLAP_TOKENS}, prosody may break "
                    "where a long sentence is cut into blocks"
                )
            settings = Settings(**self.values, warnings=tuple(self.warnings))
            self.problems += _contradictions(settings)
            if not self.problems:
                return settings
        raise SettingsError(self.problems + [f"warning: {each}" for each in self.warnings])


def _contradictions(settings: Settings) -> list[str]:
    found = []
    if settings.engine in _WITHOUT_MODEL and "model" in settings.engine_options:
        found.append(
            f"model = {str(settings.engine_options['model'])!r}: the engine {settings.engine} takes no model; "
            "for CosyVoice add --engine cosyvoice"
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        found.append(f"{missing} is missing: tls_cert and tls_key go together")
    if settings.tls_self_signed and (settings.tls_cert or settings.tls_key):
        found.append("tls_self_signed makes a certificate of its own: leave tls_cert and tls_key out, or it")
    if settings.no_text_at_rest and settings.store != "memory":
        found.append(
            f"store = {settings.store!r} writes texts to disk, which no_text_at_rest refuses; allowed is memory"
        )
    if settings.no_text_at_rest and settings.dead_letters not in ("auto", "off"):
        found.append(
            f"dead_letters = {settings.dead_letters!r} writes texts to disk, which no_text_at_rest refuses; "
            "allowed is off (auto means that, too)"
        )
    if settings.no_text_at_rest and settings.voices not in ("auto", "off"):
        found.append(
            f"voices = {settings.voices!r} writes the texts of recordings to disk, which no_text_at_rest refuses; "
            "allowed is off (auto means that, too)"
        )
    if settings.block_window_tokens > settings.block_tokens:
        found.append(
            f"block_window_tokens = {settings.block_window_tokens} is more than block_tokens; allowed is up to "
            f"{settings.block_tokens}"
        )
    if settings.store != "memory" and settings.resume_ttl_s <= 0:
        found.append(f"store = {settings.store!r} needs resume_ttl_s above 0")
    public = [host for host in settings.hosts if not is_loopback(host)]
    if public and settings.keys is None and not settings.insecure:
        found.append(
            f"host = {', '.join(public)!r} is no loopback address, so others may reach it; allowed with --keys FILE "
            "(make one with `python -m server keys add NAME`), or without keys by --insecure"
        )
    return found
