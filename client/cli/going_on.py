"""`--resume-from`: the arguments of an earlier run, and whether what is asked now fits them."""

import argparse
from pathlib import Path
from textwrap import shorten
from typing import Any

from client.cli.encodings import known_encoding
from client.cli.state import ARGUMENTS, STDIN, Source, State, find_state, read_state
from client.errors import UsageError


def go_on(args: argparse.Namespace) -> State:
    """Reads the state, and fills in what `args` does not say. Raises UsageError."""
    path, output = find_state(args.resume_from)
    state = read_state(path)
    if args.play:
        raise UsageError("--play and --resume-from do not go together: play the file when it is complete")
    given = args.given
    for name in ARGUMENTS:
        value = state.arguments[name]
        if name in given and getattr(args, name) != value:
            raise _contradicts(f"--{name.replace('_', '-')} {_in_a_line(getattr(args, name))}", path, _in_a_line(value))
        setattr(args, name, value)
    if "output" in given and Path(args.output).absolute() != output.absolute():
        raise _contradicts(f"-o {args.output}", path, output)
    if "container" in given and args.container != state.container:
        raise _contradicts(f"--container {args.container}", path, state.container)
    if "captions" in given and str(Path(args.captions).absolute()) != state.captions:
        raise _contradicts(f"--captions {args.captions}", path, state.captions)
    if "encoding" in given and state.encoding not in (None, known_encoding(args.encoding)):
        raise _contradicts(f"--encoding {args.encoding}", path, state.encoding)
    args.encoding = args.encoding or state.encoding
    args.output, args.container, args.captions = str(output), state.container, state.captions
    if "url" not in given:
        args.url = state.url
    _find_text(args, state, path, output)
    return state


def _in_a_line(value: Any) -> Any:
    """An instruction may be long, and have several."""
    return shorten(value, 60, placeholder=" ...") if isinstance(value, str) else value


def _contradicts(said: str, path: Path, value: Any) -> UsageError:
    had = "none" if value in (None, "") else value
    return UsageError(f"{said} contradicts {path}, which has {had}: leave it out, or begin anew without --resume-from")


def _find_text(args: argparse.Namespace, state: State, path: Path, output: Path) -> None:
    """The text must be what it was."""
    if state.source.path == STDIN:
        if args.file is None:
            raise UsageError(
                f"{path} is of a text from standard input, which is not kept: give the same text again, from its "
                f"beginning, as FILE or as - ... | python -m client stream - --resume-from {output}"
            )
        return
    if args.file is None:
        args.file = state.source.path
    if args.file == STDIN:
        raise UsageError(f"{path} is of {state.source.path}: leave FILE out, or name the file where it is now")
    if not Path(args.file).exists():
        raise UsageError(f"there is no file {args.file} any more: name it where it is now, as FILE")
    if Source.of(args.file).sha256 != state.source.sha256:
        raise UsageError(
            f"{args.file} is not the text of {path} any more: begin anew without --resume-from, or restore it"
        )
