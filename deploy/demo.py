"""`make demo`: a server, a client that streams text at the speed of a language model, and a file to listen to.

Starts a server on a free port, waits until it is ready, streams docs/sample.txt through `python -m client stream`,
writes demo.wav and demo.vtt, prints how soon the first audio came, and stops the server, also after an error or Ctrl-C.
"""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "docs" / "sample.txt"
AUDIO = ROOT / "demo.wav"
CAPTIONS = ROOT / "demo.vtt"
READY_TIMEOUT_S = 120.0  # includes building the voices if nothing built them before
STREAM_TIMEOUT_S = 120.0  # the sample takes about ten seconds to write
STOP_TIMEOUT_S = 10.0
CHARACTERS_PER_SECOND = 30  # a usual speed of a language model


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


def main() -> int:
    """Run the demo; the exit status is 0 when demo.wav was written."""
    try:
        with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "server.log") as url:
            stats = stream(url, Path(folder) / "stats.json")
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130
    print(f"\nFirst audio after {stats['ttfa_ms']:.0f} ms.")
    print(f"Wrote {AUDIO.name}: {stats['audio_s']:.1f} s of speech, and its captions {CAPTIONS.name}. Listen to it.")
    return 0


@contextlib.contextmanager
def server(log_path: Path) -> Iterator[str]:
    """A server with the embedded voices on a free port; yields its URL once it is ready, stops the server afterwards.

    Raises DemoError when it does not become ready.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "server", "--host", "127.0.0.1", "--port", str(port), "--engine", "embedded"]
    with log_path.open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            print(f"Starting a server on port {port} ...", flush=True)
            wait_until_ready(process, port, log_path)
            yield f"ws://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log_path: Path) -> None:
    """Return when /readyz answers 200. Raises DemoError with the end of the server's log if that does not happen."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if is_ready(port):
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    reason = "stopped" if process.poll() is not None else f"was not ready within {READY_TIMEOUT_S:.0f} s"
    raise DemoError(f"the server {reason}. The end of its log:\n{tail(log_path)}")


def is_ready(port: int) -> bool:
    """Whether /readyz answers 200; not while nothing listens or voices are still warming up."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:  # urllib's errors, HTTP statuses included, are of this kind
        return False


def tail(log_path: Path, lines: int = 15) -> str:
    """The last lines of a log file."""
    return "\n".join(log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def stream(url: str, stats_path: Path) -> dict[str, float]:
    """Stream the sample through the command-line client; returns its statistics. Raises DemoError when it fails."""
    print(f"Streaming {SAMPLE.relative_to(ROOT)} at {CHARACTERS_PER_SECOND} characters a second ...", flush=True)
    command = [sys.executable, "-m", "client", "stream", str(SAMPLE), "-o", str(AUDIO), "--url", url]
    command += ["--rate", str(CHARACTERS_PER_SECOND), "--captions", str(CAPTIONS), "--stats", str(stats_path)]
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
