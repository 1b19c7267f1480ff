"""What lies in deploy/ fits the program: bounds, names of settings, paths, and what strangers must not reach."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from protocol.limits import IDLE_HEARTBEAT_S, RESUME_ATTEMPT_S
from server.app import Server
from server.cluster.workers.pool import LEARN_PATIENCE_S
from server.gateway.http_connection import KEEP_ALIVE_S, MAX_BODY_BYTES, MAX_UPLOAD_BYTES, VOICES_PATH
from server.gateways.supervisor import STOP_GRACE_S
from server.open_files import needed_files
from server.running import STOP_S
from server.setting_sources import load
from server.settings import Settings
from tests.support.programs import find_program

LONGEST_STOP_S = max(STOP_S, 2 * STOP_GRACE_S)  # of one process, of several gateways
ROOT = Path(__file__).parents[2]
NGINX = (ROOT / "deploy" / "nginx" / "cosystream.conf").read_text(encoding="utf-8")
UNIT = ROOT / "deploy" / "systemd" / "cosystream.service"
COMPOSE = (ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8")


VOICES = "".join(re.findall(r"location = /v1/voices \{[^}]*\}", NGINX))


def directive(name: str, text: str = NGINX.replace(VOICES, "")) -> str:
    """The one value of a directive of nginx, for all paths but that of recordings."""
    (value,) = re.findall(rf"^\s*{name}\s+([^;]+);", text, re.MULTILINE)
    return str(value).strip()


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)\s*(s|min|)", text).groups()  # type: ignore[union-attr]  # it fails the test
    return float(number) * (60 if unit == "min" else 1)


# ---- nginx ----


def test_nginx_outlasts_the_heartbeat_and_lets_go_of_connections_first() -> None:
    for name in ("proxy_read_timeout", "proxy_send_timeout", "send_timeout"):
        assert seconds(directive(name)) > 3 * IDLE_HEARTBEAT_S
    assert seconds(directive("keepalive_timeout")) < KEEP_ALIVE_S
    assert directive("proxy_buffering") == "off"
    assert directive("client_max_body_size") == directive("client_body_buffer_size") == f"{MAX_BODY_BYTES >> 20}m"


def test_nginx_lets_recordings_through_and_waits_for_their_voices() -> None:
    size = f"{MAX_UPLOAD_BYTES >> 20}m"
    assert VOICES.startswith(f"location = {VOICES_PATH} ")
    assert directive("client_max_body_size", VOICES) == directive("client_body_buffer_size", VOICES) == size
    assert seconds(directive("proxy_read_timeout", VOICES)) > LEARN_PATIENCE_S
    assert "proxy_pass http://cosystream;" in VOICES


def test_nginx_leaves_room_for_clients_that_come_back() -> None:
    rate = re.search(r"rate=(\d+)r/s", NGINX)
    burst = re.search(r"burst=(\d+) nodelay", NGINX)
    assert rate is not None
    assert burst is not None
    assert int(rate[1]) >= 10 * (1 / RESUME_ATTEMPT_S)  # ten clients of one address, during all of a long outage
    assert int(burst[1]) >= 100  # a hundred at once, after a restart


async def test_nginx_lets_out_what_is_for_clients_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    apps: list[Starlette] = []

    async def take_the_app(_: Settings, *, app: Starlette, **__: object) -> None:
        apps.append(app)
        raise OSError("it need not listen")

    monkeypatch.setattr("server.app.start_listener", take_the_app)
    server = Server(Settings(engine="tone"))
    with pytest.raises(OSError, match="need not"):
        await server.start()
    await server.stop()
    (app,) = apps
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    outside = {path for path in paths if path == "/" or path.startswith(("/v1/", "/web/"))}
    assert outside >= {"/v1/stream", "/v1/speak", "/v1/voices", "/v1/tokens", "/", "/web/{name}"}
    # Whoever adds a route for clients has to let it out, and whoever adds another one has to know that it stays inside.
    assert paths - outside == {"/healthz", "/readyz", "/metrics", "/status", "/status.json"}
    locations = re.findall(r"location ([^{]+) \{", NGINX)
    assert locations == ["/v1/", "= /v1/voices", "= /", "/web/", "/", "@too_many", "@too_big", "@nobody"]


# ---- systemd ----


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    """The values of each name in [Service]."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_service_starts_the_program_with_settings_that_hold(unit: dict[str, list[str]]) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert Path(unit["ExecStart"][0]).name in scripts
    settings = load([], environment(unit))
    assert settings.warnings == ()  # every name is one of a setting
    assert settings.hosts == ("127.0.0.1",)
    folder = f"/var/lib/{unit['StateDirectory'][0]}/"
    assert settings.store.startswith(f"file:{folder}")
    assert environment(unit)["COSYSTREAM_MODEL_DIR"].startswith(folder)
    assert settings.dead_letters.startswith(folder)


def environment(unit: dict[str, list[str]]) -> dict[str, str]:
    pairs = [pair for line in unit["Environment"] for pair in line.split()]
    return dict(pair.split("=", 1) for pair in pairs)


def test_the_service_may_take_the_time_and_the_files_it_needs(unit: dict[str, list[str]]) -> None:
    settings = load([], environment(unit))
    assert seconds(unit["TimeoutStopSec"][0]) > settings.drain_timeout_s + LONGEST_STOP_S
    assert int(unit["LimitNOFILE"][0]) > needed_files(settings)
    assert f"{needed_files(settings):,}" in UNIT.read_text(encoding="utf-8")
    assert unit["Type"] == ["notify"]
    assert unit["KillMode"] == ["mixed"]  # workers and gateways are the first process's to end


@pytest.mark.programs("systemd-analyze")
def test_the_service_is_valid_and_shut_in(tmp_path: Path, unit: dict[str, list[str]]) -> None:
    copy = tmp_path / "cosystream.service"
    copy.write_text(UNIT.read_text(encoding="utf-8").replace(unit["ExecStart"][0], "/bin/true"), encoding="utf-8")
    analyze = find_program("systemd-analyze")
    assert analyze is not None

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([analyze, *arguments, str(copy)], check=False, capture_output=True, text=True)

    verified = run("verify")
    assert (verified.returncode, verified.stderr) == (0, "")
    exposed = run("security", "--offline=true", "--no-pager", "--threshold=20")  # 2.0 of 10
    assert exposed.returncode == 0, exposed.stdout


# ---- compose ----


def test_the_two_servers_of_the_compose_file_are_those_that_nginx_asks() -> None:
    ports = re.findall(r'COSYSTREAM_PORT: "(\d+)"', COMPOSE)
    values: dict[str, Any] = dict(re.findall(r'(COSYSTREAM_\w+): "?([^"\s]+)', COMPOSE))
    assert load([], values).warnings == ()
    second = re.sub("# server 127", "server 127", NGINX)  # as the command of its container does
    assert re.findall(r"^ *server 127\.0\.0\.1:(\d+) ", second, re.MULTILINE) == ports
    grace = re.search(r"stop_grace_period: (\S+)", COMPOSE)
    assert grace is not None
    assert seconds(grace[1]) > float(values["COSYSTREAM_DRAIN_TIMEOUT_S"]) + LONGEST_STOP_S
    store = values["COSYSTREAM_STORE"].removeprefix("file:")
    mounted = re.search(r'volumes: \["sessions:([^"]+)"\]', COMPOSE)
    assert mounted is not None
    assert store.startswith(f"{mounted[1]}/")
    assert mounted[1] in (ROOT / "Dockerfile").read_text(encoding="utf-8")
