"""The engine `cosyvoice` on a CPU, with weights by chance: against upstream's own driver, and against itself.

`python -m bench.cosyvoice --upstream DIR` compares it with a checkout of FunAudioLLM/CosyVoice, in the same process
with the same weights; without that, with our own modules driven one request after the other and without any cache.
Models without training never end by themselves, so both sides are told how many codes to draw.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench._common import Report
from server.engines.cosyvoice.starting import share_cores

SCENES: Final = ("speed", "chunks", "prefix", "churn")
CODES: Final = 100  # of an utterance: four seconds


def main() -> int:
    """The exit status is 1 when a figure misses what is asked, 2 when upstream cannot be used; 0 without torch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--scene", nargs="+", choices=SCENES, default=SCENES, metavar="NAME", help=", ".join(SCENES))
    parser.add_argument("--version", nargs="+", type=int, choices=(2, 3), default=(2, 3), help="(default: both)")
    parser.add_argument("--upstream", type=Path, metavar="DIR", help="a checkout of FunAudioLLM/CosyVoice")
    parser.add_argument("--matcha", type=Path, metavar="DIR", help="of Matcha-TTS, where the checkout lacks it")
    parser.add_argument("--threads", type=int, default=0, help="of torch (default: its own choice)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one round, short utterances")
    args = parser.parse_args()
    if find_spec("torch") is None:
        print("bench.cosyvoice: not run, it needs the extra: pip install -e '.[cosyvoice]' -c constraints.txt")
        return 0
    share_cores()  # as the engine does it
    import torch

    from bench._cosyvoice_scenes import CHURN, chunks, churn, make, prefix, speed
    from bench._upstream import NotUsable

    if args.threads:
        torch.set_num_threads(args.threads)
    report = Report("cosyvoice")
    rounds = 1 if args.quick else args.rounds
    for version in args.version:
        if {"speed", "chunks", "prefix"} & set(args.scene):
            try:
                speaker, upstream = make(version, args.upstream, args.matcha)
            except NotUsable as error:
                print(error, file=sys.stderr)
                return 2
            if "speed" in args.scene:
                speed(report, speaker, upstream, rounds=rounds, codes=CODES // 2 if args.quick else CODES)
            if "chunks" in args.scene:
                chunks(report, speaker, rounds=rounds)
            if "prefix" in args.scene:
                prefix(report, speaker, rounds=rounds)
            del speaker, upstream
        if "churn" in args.scene:
            churn(report, version, utterances=CHURN // 10 if args.quick else CHURN)
    if args.upstream is None and "speed" in args.scene:
        report.note(
            "There was no --upstream: compared with our own modules, one request after the other, each chunk computed"
            " anew from the voice's first code on. The goals are set against upstream, so nothing is asked here."
        )
    return report.finish(args.json)


if __name__ == "__main__":
    sys.exit(main())
