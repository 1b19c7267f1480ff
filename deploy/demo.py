"""`make demo`: a server, a client that streams text at the speed of a language model, and a file to listen to.

Starts a server on a free port, waits until it is ready, streams docs/sample.txt through `python -m client stream`,
writes demo.wav and demo.vtt, and stops the server, also after an error or Ctrl-C. The client itself says how long the
audio is and how soon it came.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.local_server import ROOT, ServerNotReady, local_server

SAMPLE = ROOT / "docs" / "sample.txt"
AUDIO = "demo.wav"  # beside the Makefile
CAPTIONS = "demo.vtt"
STREAM_TIMEOUT_S = 120.0  # the sample takes about ten seconds to write
CHARACTERS_PER_SECOND = 30  # a usual speed of a language model


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


def main() -> int:
    """Run the demo; the exit status is 0 when demo.wav was written."""
    try:
        print("Starting a server ...", flush=True)
        with tempfile.TemporaryDirectory() as folder, local_server("--engine", "embedded") as server:
            stats = stream(server.url, Path(folder) / "stats.json")
    except (DemoError, ServerNotReady) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130
    print(f"Gaps while it was spoken: {stats['stalls']:.0f}. Listen to {AUDIO}; its captions are in {CAPTIONS}.")
    return 0


def stream(url: str, stats_path: Path) -> dict[str, float]:
    """Stream the sample through the command-line client; returns its statistics. Raises DemoError when it fails."""
    print(f"Streaming {SAMPLE.relative_to(ROOT)} at {CHARACTERS_PER_SECOND} characters a second ...", flush=True)
    command = [sys.executable, "-m", "client", "stream", str(SAMPLE), "-o", AUDIO, "--url", url]
    command += ["--rate", str(CHARACTERS_PER_SECOND), "--captions", CAPTIONS, "--stats", str(stats_path)]
    try:
        status = subprocess.run(command, cwd=ROOT, check=False, timeout=STREAM_TIMEOUT_S).returncode
    except subprocess.TimeoutExpired as expired:
        raise DemoError(f"the client did not finish within {STREAM_TIMEOUT_S:.0f} s") from expired
    if status != 0:
        raise DemoError(f"the client ended with status {status}")
    stats: dict[str, float] = json.loads(stats_path.read_text(encoding="utf-8"))
    return stats


if __name__ == "__main__":
    sys.exit(main())
