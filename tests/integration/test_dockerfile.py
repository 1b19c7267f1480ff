"""The Dockerfile, carried out without Docker: its install steps work, it stays small, the server in it is healthy."""

import fnmatch
import re
import socket
import subprocess
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.dockerfile import Build, parse

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
BASE_IMAGE_MB = 130  # python:3.12-slim on amd64, unpacked
LIBOPUS_MB = 1
LIMIT_MB = 900
READY_TIMEOUT_S = 60.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The image with both voices; on the way the voices of the default image are looked at."""
    base_python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    made = Build(DOCKERFILE, tmp_path_factory.mktemp("image"), base_python)
    made.run("voices-no")
    assert voice_folders(made) == {"en-hibari"}
    made.run(ACCEPT_BAKER_NONCOMMERCIAL="yes")
    return made


def voice_folders(made: Build) -> set[str]:
    return {path.name for path in (made.root / "opt/voices/embedded").iterdir() if not path.name.startswith(".")}


@contextmanager
def running(made: Build, **environment: str) -> Iterator[dict[str, str]]:
    """The image's own entry point in the image's environment, on loopback; yields that environment once it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    settings = {**made.environment, "COSYSTREAM_HOST": "127.0.0.1", "COSYSTREAM_PORT": port, "HOME": "/nonexistent"}
    settings |= environment
    server = subprocess.Popen(
        made.command("ENTRYPOINT"),
        cwd=made.root,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(READY_TIMEOUT_S, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        seen = []
        for line in server.stdout:
            seen.append(line)
            if "ready" in line and port in line:
                break
        else:
            pytest.fail("the server ended before it was ready:\n" + "".join(seen))
        yield settings
    finally:
        watchdog.cancel()
        server.terminate()
        server.communicate(timeout=20)
    assert server.returncode == 0


def test_the_image_is_small(image: Build, record_property: Callable[[str, object], None]) -> None:
    added = image.size_mb()
    record_property("core and voices, MB", round(added))
    assert 100 < added < LIMIT_MB - BASE_IMAGE_MB - LIBOPUS_MB


def test_the_image_has_everything_but_what_only_building_needed(image: Build) -> None:
    python = image.root / "opt/cosystream/bin/python"
    listing = "import importlib.metadata as m; print(*(d.name.lower() for d in m.distributions()))"
    command = [str(python), "-c", listing]
    installed = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert {"cosystream", "onnxruntime", "websockets"} <= installed
    assert not installed & {"av", "onnx", "tflite", "pip", "pytest"}
    packages = next((image.root / "opt/cosystream/lib").glob("python3*")) / "site-packages"
    for folder in ("protocol", "server", "client"):
        source = {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts}
        assert source <= {str(p.relative_to(packages)) for p in (packages / folder).rglob("*.py")}
        assert (packages / folder / "py.typed").exists()
    data = {p.relative_to(ROOT) for pattern in ("protocol/vectors/*.json", "demo_web/*.*") for p in ROOT.glob(pattern)}
    assert all((packages / path).exists() for path in data)


def test_nothing_but_libopus_needs_root(image: Build) -> None:
    assert len(image.left_out) == 1
    assert re.findall(r"install .*?(lib\w+)", image.left_out[0]) == ["libopus0"]


@pytest.mark.parametrize("chinese", [True, False])
def test_the_server_in_the_image_is_healthy(image: Build, tmp_path: Path, chinese: bool) -> None:
    """Without the Chinese voice too: as in the default image, it is left out and nothing tries to build it."""
    voices = tmp_path / "voices" / "embedded"
    voices.mkdir(parents=True)
    for name in ("en-hibari", *(["zh-baker"] if chinese else [])):
        (voices / name).symlink_to(image.root / "opt/voices/embedded" / name)
    state = tmp_path / "state"  # in the image /var/lib, where it may write to `cosystream`
    with running(image, COSYSTREAM_MODEL_DIR=str(voices.parent), XDG_STATE_HOME=str(state)) as environment:
        health = subprocess.run(image.command("HEALTHCHECK"), env=environment, check=False, capture_output=True)
        assert health.returncode == 0, health.stderr
        url = f"ws://127.0.0.1:{environment['COSYSTREAM_PORT']}"
        with urllib.request.urlopen(url.replace("ws", "http") + "/", timeout=10) as page:
            assert page.read() == (ROOT / "demo_web" / "index.html").read_bytes()
        command = ["cosystream", "voices", "--url", url]
        listed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert (state / "cosystream" / "dead-letters").is_dir()
    assert "en-hibari" in listed
    assert any(line.startswith("zh-baker") for line in listed.splitlines()) is chinese
    away = subprocess.run(image.command("HEALTHCHECK"), env=environment, check=False, capture_output=True)
    assert away.returncode != 0


def test_the_image_is_not_run_by_root_and_listens_where_it_says() -> None:
    build = list(parse(DOCKERFILE.read_text(encoding="utf-8")))
    user = next(item.text for item in reversed(build) if item.keyword == "USER")
    assert int(user.split(":")[0]) > 0
    port = next(item.text for item in build if item.keyword == "EXPOSE")
    assert any(f"COSYSTREAM_PORT={port}" in item.text for item in build if item.keyword == "ENV")


def test_cosyvoice_is_a_choice(tmp_path: Path) -> None:
    """With it the image has what the extra names, and the voices are built upon either."""
    made = Build(DOCKERFILE, tmp_path / "image", Path(sys.executable))
    stages = {stage.name: stage for stage in made.stages}
    assert stages["equipped"].base == "cosyvoice-${COSYVOICE}"
    assert stages["cosyvoice-no"].instructions == []
    assert {stages[name].base for name in ("voices-no", "voices-yes")} == {"equipped"}
    (installing,) = stages["cosyvoice-yes"].instructions
    listing, _, install = installing.text.partition(" > cosyvoice.txt && ")
    assert "--requirement cosyvoice.txt" in install
    path = {"PATH": f"{tmp_path}/image/tools:/usr/bin:/bin"}  # where `python` is
    command = ["/bin/sh", "-c", listing]
    listed = subprocess.run(command, cwd=ROOT, env=path, check=True, capture_output=True, text=True).stdout
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert listed.split() == extras["cosyvoice"]


def test_dead_letters_go_to_the_one_place_that_can_be_written() -> None:
    build = list(parse(DOCKERFILE.read_text(encoding="utf-8")))
    (state,) = [item.text.partition("=")[2] for item in build if item.text.startswith("XDG_STATE_HOME=")]
    assert any(f"install -d -o 10001 -g 10001 -m 0700 {state}/cosystream" in item.text for item in build)


def test_the_build_context_holds_what_is_copied() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    copies = [item.text for item in parse(DOCKERFILE.read_text(encoding="utf-8")) if item.keyword == "COPY"]
    sources = [word for text in copies if "--from" not in text for word in text.split()[:-1]]
    assert sources
    assert all(any(fnmatch.fnmatch(source, pattern) for pattern in allowed) for source in sources)
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# a\nFROM x AS y\n\nRUN a \\\n # inside\n && b\n", [("FROM", "x AS y", 2), ("RUN", "a && b", 4)]),
        ("ENV A=1 \\\n    B=2", [("ENV", "A=1 B=2", 1)]),
    ],
)
def test_reading_a_dockerfile(text: str, expected: list[tuple[str, str, int]]) -> None:
    read = [(item.keyword, re.sub(r"\s+", " ", item.text), item.line) for item in parse(text)]
    assert read == expected


def test_what_is_not_understood_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: ADD"):
        list(parse("FROM x\nADD a b"))
