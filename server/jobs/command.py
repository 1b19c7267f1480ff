"""`python -m server dlq`: look at the dead letters, and try them again. A running server is not disturbed."""

import argparse
import io
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from server.jobs import listing
from server.jobs.folder import Damage, FolderError, LetterFolder
from server.jobs.letters import Letter, Resolved, to_json
from server.jobs.place import folder_of
from server.jobs.replay import Target, replay
from server.json_text import dumps
from server.setting_sources import add_settings, load_parsed
from server.settings import Settings, SettingsError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


def run(arguments: Sequence[str]) -> int:
    """Run `dlq` with these arguments; the process's exit status."""
    given = _parser().parse_args(list(arguments))
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without Hanzi shows their numbers
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        settings = load_parsed(given, os.environ)
    except SettingsError as faults:
        for problem in faults.problems:
            _complain(problem)
        return EXIT_USAGE
    try:
        folder = _folder(given.dir, settings)
    except FolderError as problem:
        _complain(f"dead_letters: {problem}")
        return EXIT_FAILED
    if folder is None:
        _complain("dead letters are off (dead_letters); name a directory with --dir")
        return EXIT_FAILED
    if given.dir is not None and not folder.path.is_dir():
        _complain(f"{folder.path} is no directory")
        return EXIT_FAILED
    status = _Command(folder, settings).run(given)
    sys.stdout.flush()  # here, where a reader that is gone is no failure
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m server dlq",
        description="The dead-letter queue: the texts that the engine failed at.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("list", "list those that are not resolved, the newest last"),
        ("show", "show all about some, with the stacks"),
        ("replay", "render texts again; those that succeed are resolved"),
    ):
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            allow_abbrev=False,
            epilog="Every setting of the server is taken, too, from all its sources: see `python -m server --help`.",
        )
        add_settings(command, hidden=True)
        command.add_argument("--dir", type=Path, metavar="DIR", help="where they are (default: `dead_letters`)")
        if name == "list":
            command.add_argument("--json", action="store_true", help="as JSON, a line for each")
            command.add_argument("--resolved", action="store_true", help="those that are resolved, too")
        else:
            several = "*" if name == "replay" else "+"
            command.add_argument("ids", nargs=several, metavar="ID", help="of a letter, or how it begins")
        if name == "replay":
            command.add_argument("--all", action="store_true", help="all that are not resolved")
            command.add_argument(
                "-o", "--output", type=Path, metavar="PLACE", help="write the audio: a directory, or one FILE.wav"
            )
    return parser


def _folder(given: Path | None, settings: Settings) -> LetterFolder | None:
    """Raises FolderError."""
    if given is None:
        return folder_of(settings, os.environ)
    return LetterFolder(given.expanduser().absolute(), settings.dead_letter_mb * 1024 * 1024)


class _Command:
    """One call of `dlq`."""

    def __init__(self, folder: LetterFolder, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._resolved: dict[str, str] = {}  # when, by id
        self._ids: dict[str, None] = {}  # of all letters, the newest last
        self._damage = Damage()
        for entry in folder.read_noting(self._damage):
            if isinstance(entry, Resolved):
                self._resolved.setdefault(entry.id, entry.time)
            else:
                self._ids[entry.id] = None

    def run(self, given: argparse.Namespace) -> int:
        """Do what it says; the exit status."""
        for name, lines in self._damage.lines.items():
            are = "line is" if lines == 1 else "lines are"
            _complain(f"{self._folder.path / name}: {lines} {are} damaged and left out")
        for name, reason in self._damage.files.items():
            _complain(f"{self._folder.path / name} cannot be read: {reason}")
        status = EXIT_FAILED if self._damage.files else EXIT_OK
        if given.command == "list":
            self._list(as_json=given.json, resolved=given.resolved)
            return status
        if given.command == "replay" and bool(given.ids) == given.all:
            _complain("replay takes either ids or --all")
            return EXIT_USAGE
        ids = [each for each in self._ids if each not in self._resolved] if not given.ids else self._found(given.ids)
        if ids is None:
            return EXIT_FAILED
        if not ids:
            self._say_empty(resolved=False)
            return status
        if given.command == "show":
            return self._show(ids) or status
        return self._replay(ids, given.output) or status

    def _list(self, *, as_json: bool, resolved: bool) -> None:
        if not any(resolved or each not in self._resolved for each in self._ids):
            self._say_empty(resolved=resolved)
            return
        shown = (
            (letter, letter.id in self._resolved)
            for letter in self._letters(self._ids)
            if resolved or letter.id not in self._resolved
        )
        if as_json:
            for letter, is_resolved in shown:
                sys.stdout.buffer.write(dumps({**to_json(letter), "resolved": is_resolved}) + b"\n")
            return
        for row in listing.rows(shown, _columns()):
            print(row)

    def _say_empty(self, *, resolved: bool) -> None:
        hidden = "" if resolved or not self._ids else " that is not resolved (see `list --resolved`)"
        print(f"cosystream: there is no dead letter in {self._folder.path}{hidden}", file=sys.stderr)

    def _found(self, prefixes: Sequence[str]) -> list[str] | None:
        """The ids that begin so, each once; None where that is said to be unclear."""
        found: dict[str, None] = {}
        clear = True
        for prefix in prefixes:
            matches = [each for each in self._ids if each.startswith(prefix.lower())] if prefix else []
            if len(matches) == 1:
                found[matches[0]] = None
                continue
            clear = False
            if matches:
                _complain(f"{len(matches)} dead letters have an id that begins with {prefix}")
            else:
                _complain(f"no dead letter in {self._folder.path} has the id {listing.printable(prefix) or '(empty)'}")
        return list(found) if clear else None

    def _letters(self, ids: Iterable[str]) -> Iterable[Letter]:
        """The letters with these ids, in the order of the files, each once."""
        wanted = set(ids)
        for entry in self._folder.read():
            if isinstance(entry, Letter) and entry.id in wanted:
                wanted.discard(entry.id)
                yield entry

    def _show(self, ids: Sequence[str]) -> int:
        status = EXIT_OK
        letters = {letter.id: letter for letter in self._letters(ids)}
        for number, each in enumerate(ids):
            if each not in letters:
                _complain(f"the dead letter {each} was removed just now: there are newer ones")
                status = EXIT_FAILED
                continue
            if number:
                print()
            for line in listing.details(letters[each], self._resolved.get(each)):
                print(line)
        return status

    def _replay(self, ids: Sequence[str], output: Path | None) -> int:
        try:
            target = Target.of(output)
        except ValueError as problem:
            _complain(str(problem))
            return EXIT_USAGE
        if target.is_file and len(ids) > 1:
            _complain(f"{len(ids)} letters do not go into the one file {output}: name a directory with -o")
            return EXIT_USAGE
        letters = {letter.id: letter for letter in self._letters(ids)}
        return replay([letters[each] for each in ids if each in letters], self._folder, self._settings, target, print)


def _columns() -> int | None:
    """How wide the terminal is; None: it is no terminal."""
    columns = shutil.get_terminal_size((0, 0)).columns
    return columns if columns > 0 else None


def _complain(text: str) -> None:
    print(f"cosystream: {text}", file=sys.stderr)
