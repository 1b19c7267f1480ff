"""The server's command line: `python -m server` serves; beside it are `keys`, `health`, `settings`, `dlq`, `doctor` and
`parity`.
"""

import argparse
import importlib
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.metadata import version
from pathlib import Path
from typing import Final

from server.engines.examining import how_to_install
from server.gateway.auth import KeysError, add_key, read_key_file, remove_keys, write_secret
from server.setting_sources import load
from server.settings import ENV_PREFIX, OPTIONS, Settings, SettingsError, markdown_table

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

COMMANDS: Final = ("keys", "settings", "health", "dlq", "doctor", "parity", "serve")
HEALTH_TIMEOUT_S: Final = 2.0
DEFAULT_KEY_FILE: Final = "cosystream-keys.txt"
RUNNING: Final = "a running server goes by the old file until it is restarted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the process's exit status: 0 done, 1 failed, 2 wrongly called or configured."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = dict(zip(COMMANDS, (_keys, _settings, _health, _dlq, _doctor, _parity, _serve), strict=True))
    try:
        if "--version" in arguments:
            print(f"cosystream {version('cosystream')}")
            return EXIT_OK
        if arguments and arguments[0] in commands:
            return commands[arguments[0]](arguments[1:])
        return _serve(arguments)
    except KeyboardInterrupt:
        return EXIT_OK
    except BrokenPipeError:  # `| head`: nobody reads on, which is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _load(arguments: list[str]) -> Settings | None:
    """The settings; None where they do not hold together, which is then said."""
    try:
        return load(arguments, os.environ)
    except SettingsError as faults:
        for problem in faults.problems:
            print(f"cosystream: {problem}", file=sys.stderr)
        late = [each for each in COMMANDS if f"command line: {each} is not understood" in faults.problems]
        for command in late[:1]:
            print(f"cosystream: the command comes first: `python -m server {command} ...`", file=sys.stderr)
        print("cosystream: see `python -m server --help`", file=sys.stderr)
        return None


def _serve(arguments: list[str]) -> int:
    settings = _load(arguments)
    if settings is None:
        return EXIT_USAGE
    # Late, so that --help and wrong settings do not wait for the engines' libraries, and the parent of several gateways
    # never loads them.
    run = importlib.import_module("server.gateways.parent" if settings.gateways > 1 else "server.running").run
    status: int = run(settings)
    return status


def _dlq(arguments: list[str]) -> int:
    """Look at the dead letters, and try them again."""
    status: int = importlib.import_module("server.jobs.command").run(arguments)
    return status


def _doctor(arguments: list[str]) -> int:
    """Whether the engine of these settings can run here."""
    if {"-h", "--help"}.intersection(arguments):
        print(importlib.import_module("server.doctor").help_text(), end="")
        return EXIT_OK
    settings = _load(arguments)
    if settings is None:
        return EXIT_USAGE
    status: int = importlib.import_module("server.doctor").run(settings)
    return status


def _parity(arguments: list[str]) -> int:
    """Compare the engine cosyvoice with vectors of the original code."""
    try:
        status: int = importlib.import_module("server.engines.cosyvoice.parity.command").run(arguments)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "server":
            raise
        print(f"cosystream: there is no {missing.name}: {how_to_install('cosyvoice')}", file=sys.stderr)
        return EXIT_USAGE
    return status


def _health(arguments: list[str]) -> int:
    """Whether the server that runs on this machine with the same settings is alive."""
    settings = _load(arguments)
    if settings is None:
        return EXIT_USAGE
    host = settings.hosts[0]
    if host in ("0.0.0.0", "::", "*"):
        host = "127.0.0.1"
    if not settings.secure:
        connection = HTTPConnection(host, settings.port, timeout=HEALTH_TIMEOUT_S)
    else:
        context = ssl.create_default_context()
        context.check_hostname = False  # its certificate has the name that others know it by
        context.verify_mode = ssl.CERT_NONE
        connection = HTTPSConnection(host, settings.port, timeout=HEALTH_TIMEOUT_S, context=context)
    try:
        connection.request("GET", "/healthz")
        healthy = connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException) as problem:
        print(f"cosystream: no answer from {host} port {settings.port}: {problem}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        connection.close()
    return EXIT_OK if healthy else EXIT_FAILED


def _keys(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m server keys", description="Manage API keys. A running server reads the file when it starts."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("add", "make a key and print it, once: only its hash is stored"),
        ("list", "print who has keys"),
        ("remove", "remove every key of a name"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        if name != "list":
            command.add_argument("name", metavar="NAME", help="whom the key is for; a name may have several keys")
        command.add_argument("--file", type=Path, default=_key_file(os.environ), help="key file (default: %(default)s)")
    text = "make a file with a secret that tokens for browsers are signed with"
    commands.add_parser("secret", help=text, description=text).add_argument("file", metavar="FILE", type=Path)
    given = parser.parse_args(arguments)
    try:
        if given.command == "secret":
            write_secret(given.file)
            print(f"serve with --token-secret {given.file}", file=sys.stderr)
        elif given.command == "add":
            print(add_key(given.file, given.name))
            print(f"stored in {given.file}; serve with --keys {given.file} ({RUNNING})", file=sys.stderr)
        elif given.command == "list":
            for name in sorted({entry.name for entry in read_key_file(given.file)}):
                print(name)
        elif count := remove_keys(given.file, given.name):
            keys = "1 key" if count == 1 else f"{count} keys"
            print(f"removed {keys} of {given.name} from {given.file} ({RUNNING})", file=sys.stderr)
        else:
            print(f"cosystream: {given.file} has no key of {given.name}", file=sys.stderr)
            return EXIT_FAILED
    except KeysError as problem:
        print(f"cosystream: {problem}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def _key_file(environ: Mapping[str, str]) -> Path:
    return Path(environ.get(f"{ENV_PREFIX}KEYS", "").strip() or DEFAULT_KEY_FILE).expanduser()


def _settings(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m server settings", description="Print every setting.")
    parser.add_argument("--markdown", action="store_true", help="as the table in docs/operations.md")
    if parser.parse_args(arguments).markdown:
        print(markdown_table())
    else:
        for each in OPTIONS:
            print(f"{each.flag:20} {each.env:28} {each.help}: {each.kind.allowed} (default: {each.default})")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
