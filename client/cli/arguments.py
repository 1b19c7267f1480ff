"""The arguments of `python -m client`."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from client.cli.exit_codes import MEANINGS, VOICES_MEANINGS, ExitCode
from client.defaults import DEFAULT_BUSY_WAIT_S, DEFAULT_URL

URL_VARIABLE: Final = "COSYSTREAM_URL"
KEY_VARIABLE: Final = "COSYSTREAM_API_KEY"


def _exit_codes(meanings: Mapping[ExitCode, str]) -> str:
    return "exit codes:\n" + "\n".join(f"  {code.value:3}  {text}" for code, text in meanings.items())


_EXIT_CODES: Final = _exit_codes(MEANINGS)
_VOICES_EXIT_CODES: Final = _exit_codes(VOICES_MEANINGS)
_EXAMPLES: Final = """examples:
  python -m client stream book.txt -o book.wav
  python -m client stream --resume-from book.wav
  some-llm | python -m client stream - --play
  python -m client say "你好, world" -o hello.opus --captions hello.vtt
  python -m client say "Hello" -o - | aplay
  python -m client say "Good night." --voice own-3f2a9c01d2e4b567 --instruct "whisper" --seed 7
  python -m client voices
  python -m client voices add --wav me.wav --text "What I say in it." --consent

"""


def build_parser() -> argparse.ArgumentParser:
    """The whole parser."""
    parser = _Parser(
        prog="python -m client",
        description="Send text to a CosyStream server and hear it spoken as it is made.",
        epilog=_EXAMPLES + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    server = server_options()
    speech = _speech_options()
    parents = [server, speech]
    raw = argparse.RawDescriptionHelpFormatter
    stream = commands.add_parser(
        "stream",
        parents=parents,
        help="speak a file or standard input as it arrives",
        epilog=_EXIT_CODES,
        formatter_class=raw,
    )
    stream.add_argument("file", metavar="FILE", nargs="?", help="a text; - reads standard input as it arrives")
    stream.add_argument(
        "--resume-from",
        metavar="OUT",
        help="go on with OUT, which an earlier run left incomplete (OUT.state means the same); FILE and options are as "
        "they were",
    )
    stream.add_argument(
        "--encoding", metavar="NAME", help="of FILE, such as gb18030 (default: found out; UTF-8 unless it cannot be)"
    )
    stream.add_argument(
        "--rate", type=_positive, metavar="N", help="send N characters a second, like a language model that writes"
    )
    say = commands.add_parser(
        "say", parents=parents, help="speak the text given as argument", epilog=_EXIT_CODES, formatter_class=raw
    )
    say.add_argument("text", metavar="TEXT", nargs="+", help="what to say")
    voices = commands.add_parser(
        "voices",
        parents=[server],
        help="list the server's voices and their licenses; have it learn one, or forget it",
        epilog=_VOICES_EXIT_CODES,
        formatter_class=raw,
    )
    voices.add_argument("--json", action="store_true", help="print the server's answer as it is")
    add_voice_actions(voices)
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments; `given` has the names of those that were said, by whatever value."""
    args = build_parser().parse_args(argv)
    parser = build_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for action in commands.choices[args.command]._actions:
        action.default = argparse.SUPPRESS
    args.given = frozenset(vars(parser.parse_args(argv)))
    return args


class _Parser(argparse.ArgumentParser):
    """One that tells a mistake in one line, as all errors are told. Those of commands are of this class, too."""

    def error(self, message: str) -> NoReturn:
        """Ends with the code for wrong arguments."""
        told = " ".join(message.removeprefix("argument ").replace(": must be ", " must be ", 1).split())
        self.exit(ExitCode.USAGE, f"error: {told} (see {self.prog} --help)\n")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that takes longer than `--help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"cosystream {version('cosystream')}")
        parser.exit()


def add_voice_actions(voices: argparse.ArgumentParser) -> None:
    """What `voices` does besides listing. Options may stand before the action or behind it."""
    shared = server_options(default=argparse.SUPPRESS)
    shared.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print the server's answer as it is"
    )
    actions = voices.add_subparsers(dest="action", metavar="ACTION", help="list is what happens without one")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        raw = argparse.RawDescriptionHelpFormatter
        return actions.add_parser(name, parents=[shared], help=text, epilog=_VOICES_EXIT_CODES, formatter_class=raw)

    action("list", "list the server's voices and their licenses")
    add = action("add", "have the server learn a voice from a recording")
    add.add_argument("--wav", metavar="FILE", required=True, help="the recording: 3 to 30 s of one speaker")
    add.add_argument("--text", default="", help="what is said in it, word for word")
    add.add_argument("--name", default="", help="of the new voice (default: its id)")
    add.add_argument(
        "--consent",
        action="store_true",
        help="state that the speaker agrees that this voice is made and used; without it nothing is sent",
    )
    remove = action("remove", "delete a voice that the server has learnt")
    remove.add_argument("voice", metavar="ID", help="see `voices`")


def server_options(default: object = None) -> "_Parser":
    """Which server it is. `default`: in place of what the environment says."""
    options = _Parser(add_help=False)
    group = options.add_argument_group("server")
    group.add_argument(
        "--url",
        default=default or os.environ.get(URL_VARIABLE) or DEFAULT_URL,
        help=f"where the server is (default: ${URL_VARIABLE} or {DEFAULT_URL})",
    )
    group.add_argument(
        "--api-key",
        default=default or os.environ.get(KEY_VARIABLE) or None,
        metavar="KEY",
        help=f"default: ${KEY_VARIABLE}, which other users of this machine cannot see",
    )
    group.add_argument(
        "--tls-ca",
        default=default,
        metavar="FILE",
        help="trust the certificates in it (PEM), such as the server's own, in place of the system's",
    )
    return options


def _speech_options() -> "_Parser":
    options = _Parser(add_help=False)
    speech = options.add_argument_group("speech")
    speech.add_argument("--voice", metavar="ID", help="see `voices` (default: the server's)")
    speech.add_argument("--language", choices=("auto", "zh", "en"), default="auto", help="of numbers and the like")
    speech.add_argument("--speed", type=_number, default=1.0, metavar="X", help="0.5 to 2.0")
    speech.add_argument("--pitch", type=_number, default=1.0, metavar="X", help="0.5 to 2.0")
    speech.add_argument("--volume", type=_number, default=1.0, metavar="X", help="0.0 to 2.0")
    speech.add_argument("--mode", choices=("auto", "stream", "block"), default="auto", help="how audio is sent")
    speech.add_argument(
        "--instruct",
        default="",
        metavar="TEXT",
        help='how to speak, in words, such as "whisper"; for voices that follow it',
    )
    speech.add_argument(
        "--seed", type=_whole, default=0, metavar="N", help="of voices that use chance: another N, another rendering"
    )
    audio = options.add_argument_group("audio on the wire")
    audio.add_argument(
        "--format", choices=("pcm", "opus", "auto"), help="default: opus for .opus and .ogg, otherwise pcm"
    )
    audio.add_argument("--sample-rate", type=_whole, default=24_000, metavar="HZ", help="default: 24000")
    audio.add_argument(
        "--bitrate", type=_whole, metavar="BIT/S", help="of Opus (default: 32000, less where the line is bad)"
    )
    audio.add_argument(
        "--no-resume", action="store_true", help="end when the connection is lost, instead of coming back to it"
    )
    audio.add_argument(
        "--busy-wait",
        type=_seconds,
        default=DEFAULT_BUSY_WAIT_S,
        metavar="S",
        help=f"ask a server that is full or still starting again for S seconds (default: {DEFAULT_BUSY_WAIT_S:g})",
    )
    output = options.add_argument_group("output")
    output.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="a .wav, .opus, .ogg, .flac, .pcm or .raw file, or - for standard output; without -o and --play "
        "a new .wav named after FILE (speech.wav for other text) in this folder",
    )
    output.add_argument(
        "--container", choices=("wav", "ogg", "flac", "raw"), help="where the name of OUT does not say it"
    )
    output.add_argument("--play", action="store_true", help="play it (needs PortAudio and: pip install -e '.[play]')")
    output.add_argument("--captions", metavar="FILE", help="write subtitles with word times: .vtt or .srt")
    output.add_argument("--stats", metavar="FILE", help="write measurements as JSON")
    progress = output.add_mutually_exclusive_group()
    progress.add_argument("--progress", action="store_true", help="show progress even if stderr is no terminal")
    progress.add_argument("--quiet", action="store_true", help="only errors")
    return options


def _read(text: str, kind: Callable[[str], float], allowed: str, is_allowed: Callable[[float], bool]) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = float("nan")
    if not is_allowed(value):
        raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!r}")
    return value


def _number(text: str) -> float:
    return _read(text, float, "a number", lambda value: value == value)  # all but NaN; ranges are checked later


def _whole(text: str) -> int:
    return int(_read(text, int, "a whole number", lambda value: value == value))


def _seconds(text: str) -> float:
    return _read(text, float, "a number of seconds from 0 on", lambda value: 0 <= value < float("inf"))


def _positive(text: str) -> float:
    return _read(text, float, "a number above 0", lambda value: 0 < value < float("inf"))
