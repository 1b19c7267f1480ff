"""The engine `cosyvoice` at its full size on a GPU, with weights by chance: first chunks and audio a second.

`python -m bench.cosyvoice_gpu`; where torch finds no CUDA device it says so and measures nothing. The engine is called
directly. Sessions ask for their utterances a little apart from each other, so that they join a batch that runs.
"""

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench._common import Report, percentile

if TYPE_CHECKING:
    from bench._cosyvoice_model import Speaker

SESSIONS: Final = (1, 4, 16)
FIRST_MS: Final = {1: 150.0, 16: 200.0}
CODES: Final = 125  # five seconds
APART_S: Final = 0.02
_TYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}  # as torch calls them


def main() -> int:
    """The exit status is 1 when a figure misses what is asked; 0 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--version", nargs="+", type=int, choices=(2, 3), default=(2, 3), help="(default: both)")
    parser.add_argument("--precision", choices=tuple(_TYPES), default="bf16", help="(default: bf16)")
    parser.add_argument("--rounds", type=int, default=8, help="how often each crowd speaks (default: 8)")
    parser.add_argument("--seconds", type=float, default=100.0, help="at most for each crowd (default: 100)")
    args = parser.parse_args()
    if find_spec("torch") is None:
        print("bench.cosyvoice_gpu: not run, it needs the extra: pip install -e '.[cosyvoice]' -c constraints.txt")
        return 0
    import torch

    if not torch.cuda.is_available():
        print("bench.cosyvoice_gpu: not run, torch finds no CUDA device here")
        return 0
    from bench._cosyvoice_model import sizes

    report = Report("cosyvoice_gpu")
    report.note(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.precision}; {CODES / 25:g} s each")
    for version in args.version:
        begun = time.perf_counter()
        speaker = _on_gpu(version, args.precision)
        report.note(f"{sizes(speaker.loaded.model)}; ready after {time.perf_counter() - begun:.0f} s")
        for sessions in SESSIONS:
            _measure(report, speaker, sessions, args.rounds, args.seconds)
        report.add("  memory of the device, peak", torch.cuda.max_memory_allocated() / 2**20, "MiB")
        del speaker
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return report.finish(args.json)


def _on_gpu(version: int, precision: str) -> "Speaker":
    """Types as `loading.load` has them: the vocoder is always float32."""
    import torch

    from bench._cosyvoice_model import make_speaker, tame
    from server.engines.cosyvoice.synthetic import full, random_model
    from server.engines.cosyvoice.vocoder.streaming import Vocoder

    dtype: torch.dtype = getattr(torch, _TYPES[precision])
    device = torch.device("cuda")
    model = tame(random_model(full(3 if version == 3 else 2)))
    model.lm.to(device, dtype)
    model.flow.to(device, dtype)
    model.vocoder.network.to(device)
    moved = type(model)(model.config, model.lm, model.flow, Vocoder(model.vocoder.network))
    return make_speaker(moved, batch=max(SESSIONS), device=device)


def _measure(report: Report, speaker: "Speaker", sessions: int, rounds: int, most_s: float) -> None:
    from bench._cosyvoice_speed import speak

    for number in range(2):  # kernels are chosen, and what is kept of the voice is made
        speak(speaker, sessions, CODES, number, apart_s=APART_S)
    firsts, rates = [], []
    until = time.perf_counter() + most_s
    for number in range(rounds):
        begun = time.perf_counter()
        spoken = speak(speaker, sessions, CODES, sessions * number, apart_s=APART_S)
        rates.append(sum(each.audio_s for each in spoken) / (time.perf_counter() - begun))
        firsts += [1000 * each.first_s for each in spoken]
        if time.perf_counter() > until:
            break
    name = f"CosyVoice {speaker.config.version}, {sessions} session{'s' * (sessions > 1)}"
    report.spread(f"{name}: first chunk", firsts, "ms", FIRST_MS.get(sessions))
    report.add("  audio", percentile(rates, 0.5), "s a second")


if __name__ == "__main__":
    sys.exit(main())
