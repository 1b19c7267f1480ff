"""Many sessions on few cores: first audio, underruns, throughput, what is turned away, and what one costs the others.

Sessions write like a language model (30 characters a second, a token at a time), half of them Chinese, half English,
about ten seconds each, and listen in real time: playing starts with 120 ms of audio, as our own client does. They have
processes of their own, and share the machine with the server. First audio counts from the character that makes the
first cut certain. Because machines differ, the engine alone is measured beside it, in the same run.

`python -m bench.load` plays every scene (7 minutes); `--only closed --sessions 8,12` a part. `--compare stream,block`
measures the memory of both modes. `--picture` draws docs/load.svg from what these two measured last.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench import _load_picture as drawing
from bench._common import RESULTS, Report, server_process
from bench._load_leaving import leaving
from bench._load_memory import compare
from bench._load_plain import beside_the_plain_server
from bench._load_scenes import Stage, beside_a_long_text, closed, collecting, open_loop, warm_up
from server.engines import registry

SESSIONS: Final = (1, 4, 8, 12, 16)
CLOSED_S: Final = {1: 45.0, 4: 45.0}
CLOSED_USUAL_S: Final = 25.0
STREAMS: Final = 100
CELLS: Final = RESULTS / "load_cells.json"
QUICK_SCALE: Final = 0.2
QUICK_LOOSE: Final = 5.0


SCENES: Final = ("closed", "open", "collect", "long", "leave", "plain")


def closed_loops(stage: Stage, sessions: tuple[int, ...]) -> None:
    """Each number of sessions, and what the picture needs of them."""
    cells = [closed(stage, each, CLOSED_S.get(each, CLOSED_USUAL_S)) for each in sessions]
    RESULTS.mkdir(parents=True, exist_ok=True)
    CELLS.write_text(json.dumps([asdict(cell) for cell in cells], indent=2) + "\n", encoding="utf-8")


def play(name: str, stage: Stage, args: argparse.Namespace) -> None:
    """One of SCENES."""
    match name:
        case "closed":
            closed_loops(stage, args.sessions or SESSIONS)
        case "open":
            open_loop(stage, 40.0, args.capacity)
        case "collect":
            collecting(stage, 8.0)
        case "long":
            beside_a_long_text(stage, 30.0)
        case "leave":
            leaving(stage)
        case "plain":
            beside_the_plain_server(stage, 72.0)


def load(args: argparse.Namespace) -> int:
    """The scenes that are asked for."""
    report = Report("load")
    engine = registry.create("embedded", {})
    engine.warm_up()
    with server_process("--engine", "embedded", *args.server) as server:
        stage = Stage(server, engine, report, scale=args.scale, seed=args.seed)
        if args.quick:
            stage.scale, stage.loose = QUICK_SCALE * args.scale, QUICK_LOOSE
        warm_up(stage)
        for name in args.only or SCENES:
            play(name, stage, args)
    engine.close()
    path: Path | None = args.json
    return report.finish(path)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--only", type=_scenes, default=(), metavar="NAMES", help=f"of {', '.join(SCENES)}")
    parser.add_argument(
        "--sessions", type=_numbers, default=(), metavar="N,N", help="of the closed loop; or how many streams"
    )
    parser.add_argument("--capacity", type=float, default=0.0, help="sessions that are 1 x (default: as measured)")
    parser.add_argument("--scale", type=float, default=1.0, help="length of every scene (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the chance in arrivals and pauses (default: 1)")
    parser.add_argument("--server", type=str.split, default=[], metavar="'OPTIONS'", help="options of the server")
    parser.add_argument("--quick", action="store_true", help="20 s of the closed and the open loop, with wide limits")
    parser.add_argument("--compare", type=_names, metavar="MODES", help="memory of these modes, with the engine tone")
    parser.add_argument("--picture", action="store_true", help="draw docs/load.svg (and load.png) again")
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _scenes(text: str) -> tuple[str, ...]:
    if unknown := set(_names(text)) - set(SCENES):
        raise argparse.ArgumentTypeError(f"no such scene: {', '.join(unknown)}")
    return _names(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    args = arguments()
    if args.compare:
        return compare(args.compare, (args.sessions or (STREAMS,))[0], 40.0 * args.scale)
    if args.picture:
        print(f"drawn: {', '.join(drawing.draw(CELLS))}")
        return 0
    if args.quick:
        args.only = args.only or ("closed", "open")
        args.sessions = args.sessions or (8,)
    return load(args)


if __name__ == "__main__":
    sys.exit(main())
