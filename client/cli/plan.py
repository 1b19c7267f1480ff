"""From arguments to a plan: what to speak, where the audio goes, in which format. All mistakes are found here."""

import argparse
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from client.cli.going_on import go_on
from client.cli.state import State, state_name
from client.errors import UsageError
from client.sinks import CONTAINERS, Container
from protocol import limits
from protocol.client_messages import AudioFormat, Mode

CAPTION_KINDS: Final[dict[str, Literal["vtt", "srt"]]] = {".vtt": "vtt", ".srt": "srt"}
STDOUT: Final = Path("-")


@dataclass(frozen=True, slots=True)
class Plan:
    """What `speak` does. `output` None: no file. `text` None: read `source`. `mode`: of the session; a file that is
    made of a file is wanted soon as a whole, so block mode makes it unless another one was asked for.
    """

    source: str
    text: str | None
    rate: float | None
    output: Path | None
    container: Container
    play: bool
    captions: Path | None
    stats: Path | None
    format: AudioFormat
    fallback: Path  # the file to write when there is no device to play on
    state: State | None  # to go on from
    keeps_state: bool
    mode: Mode

    @property
    def caption_kind(self) -> Literal["vtt", "srt"]:
        """By the name of the file."""
        assert self.captions is not None
        return CAPTION_KINDS[self.captions.suffix.lower()]


def make_plan(args: argparse.Namespace, *, stdout_is_terminal: bool | None = None) -> Plan:
    """Raises UsageError."""
    state = None
    if getattr(args, "resume_from", None) is not None:
        state = go_on(args)
    elif args.command == "stream" and args.file is None:
        raise UsageError("name a FILE to speak, - for standard input, or --resume-from an earlier run")
    _check_ranges(args)
    text = " ".join(args.text) if args.command == "say" else None
    source = "-" if text is not None else str(args.file)
    fallback = default_output(source)
    output = Path(args.output) if args.output else None
    if output is None and not args.play:
        output = fallback
    container = args.container or CONTAINERS.get(output.suffix.lower() if output else ".wav")
    if container is None:
        if output is None or output == STDOUT or is_special(output):
            container = "ogg" if args.format == "opus" else "wav"
        else:
            raise UsageError(f"-o {output}: name it .wav, .opus, .ogg, .flac, .pcm or .raw, or say --container")
    if container == "ogg":
        if args.format not in (None, "opus"):
            raise UsageError(f"an Ogg file holds Opus: leave out --format {args.format}, or write .wav")
        if args.play:
            raise UsageError("--play together with an Opus file is not supported: write a .wav")
    if output == STDOUT and (sys.stdout.isatty() if stdout_is_terminal is None else stdout_is_terminal):
        raise UsageError("standard output is a terminal: pipe it to a player, or name a file with -o")
    format_: AudioFormat = args.format or ("opus" if container == "ogg" else "pcm")
    rates = limits.SAMPLE_RATES_OPUS if format_ == "opus" else limits.SAMPLE_RATES_PCM
    if args.sample_rate not in rates:
        raise UsageError(
            f"--sample-rate must be one of {', '.join(map(str, rates))} for {format_}, not {args.sample_rate}"
        )
    captions = Path(args.captions) if args.captions else None
    if captions is not None and captions.suffix.lower() not in CAPTION_KINDS:
        raise UsageError(f"--captions {captions}: name it .vtt or .srt")
    stats = Path(args.stats) if args.stats else None
    for path in (output, captions, stats):
        if path is not None and path != STDOUT:
            _check_folder(path)
    is_file = output is not None and output != STDOUT and not is_special(output)
    keeps_state = text is None and is_file and not args.play and not (source != "-" and is_special(Path(source)))
    keeps_state = keeps_state and all(_is_text(path) for path in (Path(source), captions))
    rate = getattr(args, "rate", None)
    whole = keeps_state and source != "-" and rate is None
    return Plan(
        source=source,
        text=text,
        rate=rate,
        output=output,
        container=container,
        play=args.play,
        captions=captions,
        stats=stats,
        format=format_,
        fallback=fallback,
        state=state,
        keeps_state=keeps_state,
        mode="block" if whole and args.mode == "auto" else args.mode,
    )


def default_output(source: str) -> Path:
    """A name that is free: FILE's own with .wav, in this folder."""
    stem = "speech" if source == "-" else Path(source).stem or "speech"
    path, number = Path(f"{stem}.wav"), 1
    while path.exists() or state_name(path).exists():
        number += 1
        path = Path(f"{stem}-{number}.wav")
    return path


def _check_ranges(args: argparse.Namespace) -> None:
    if len(args.instruct) > limits.MAX_INSTRUCT_CHARS:
        most = limits.MAX_INSTRUCT_CHARS
        raise UsageError(f"--instruct must have at most {most:,} characters, not {len(args.instruct):,}")
    if not 0 <= args.seed <= limits.U32:
        raise UsageError(f"--seed must be from 0 to {limits.U32}, not {args.seed}")
    for name, (low, high) in (
        ("speed", limits.SPEED),
        ("pitch", limits.PITCH),
        ("volume", limits.VOLUME),
        ("bitrate", limits.BITRATE),
    ):
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            given = value if isinstance(value, int) else f"{value:g}"  # a whole number may be too large for a float
            raise UsageError(f"--{name} must be from {low:g} to {high:g}, not {given}")


def _check_folder(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a directory: name a file")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} to write {path.name} into")
    if not os.access(path.parent, os.W_OK) and not is_special(path):
        raise UsageError(f"no permission to write into {path.parent.absolute()}")


def _is_text(path: Path | None) -> bool:
    """Whether a state can hold its name: names may be any bytes."""
    try:
        return path is None or bool(str(path.absolute()).encode())
    except UnicodeEncodeError:
        return False


def is_special(path: Path) -> bool:
    """Whether it names a pipe or a device, which cannot be renamed or patched."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
