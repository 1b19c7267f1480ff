"""Long texts: memory, CPU time, block mode, the audio cache, failing segments, joins.

`python -m bench.longtext` plays every scene (about ten minutes), `--scene memory` a part. `--quick` plays all of them
on a small scale: there nothing fails only because the machine is busy. `--picture` draws docs/longtext.svg from the
curves of the last run.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from bench import _longtext_picture as drawing
from bench._common import Report
from bench._longtext_failing import failing
from bench._longtext_joins import listen
from bench._longtext_memory import memory
from bench._longtext_speed import audio_cache, block_mode

SCENES: Final = ("memory", "block", "cache", "failing", "joins")
QUICK_SHARE: Final = 0.05


def play(name: str, report: Report, *, quick: bool) -> None:
    """One of SCENES."""
    share = QUICK_SHARE if quick else 1.0
    match name:
        case "memory":
            memory(report, share, strict=not quick)
        case "block":
            block_mode(report, pairs=1 if quick else 5, strict=not quick)
        case "cache":
            audio_cache(report, rounds=1 if quick else 2, share=0.3 if quick else 1.0, strict=not quick)
        case "failing":
            failing(report, share)
        case "joins":
            listen(report, share=0.2 if quick else 1.0)


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--scene", nargs="+", choices=SCENES, default=SCENES, metavar="NAME", help=", ".join(SCENES))
    parser.add_argument("--quick", action="store_true", help="a twentieth of everything")
    parser.add_argument("--picture", action="store_true", help="draw docs/longtext.svg again")
    args = parser.parse_args()
    if args.picture:
        print(f"drawn: {', '.join(drawing.draw())}")
        return 0
    report = Report("longtext")
    for name in args.scene:
        play(name, report, quick=args.quick)
    return report.finish(args.json)


if __name__ == "__main__":
    sys.exit(main())
