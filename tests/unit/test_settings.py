"""Settings: four sources, every fault at once, and the table that the documentation shows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from server.setting_sources import argument_parser, load
from server.settings import GROUPS, OPTIONS, Settings, SettingsError, is_loopback, markdown_table

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"


def problems(argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(argv, environ or {})
    return caught.value.problems


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "server.toml"


def test_defaults() -> None:
    settings = load([], {})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.engine) == ("127.0.0.1", 8765, "embedded")
    assert settings.engine_threads >= 1
    assert settings.keys is None


def test_the_command_line_wins_over_the_environment_which_wins_over_the_file(toml: Path) -> None:
    toml.write_text(
        'port = 1\nmax_sessions = 2\nengine = "from file"\ninsecure = true\n[engine_options]\na = 1\nb = 1\n'
    )
    environ = {
        "COSYSTREAM_CONFIG": str(toml),
        "COSYSTREAM_PORT": "3",
        "COSYSTREAM_MAX_SESSIONS": "4",
        "COSYSTREAM_ENGINE_OPTIONS": "b=2; c=2",
    }
    argv = ["--port", "5", "--engine-option", "c=3", "--engine-option", "d=[3, 4]", "--insecure=no"]
    settings = load(argv, environ)
    assert (settings.port, settings.max_sessions, settings.engine) == (5, 4, "from file")
    assert settings.engine_options == {"a": 1, "b": 2, "c": 3, "d": [3, 4]}
    assert settings.insecure is False
    other = toml.with_name("other.toml")
    other.write_text("port = 7\n")
    assert load(["--config", str(other)], {"COSYSTREAM_CONFIG": str(toml)}).port == 7


def test_every_kind_of_value(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("")
    settings = load(
        [
            "--host",
            "[::1], localhost",
            "--log-format",
            "JSON",
            "--head-timeout-s",
            "2.5",
            "--keys",
            str(keys),
            "--insecure",
        ],
        {"COSYSTREAM_ENGINE_OPTIONS": '{"text": "a;b=c"}', "COSYSTREAM_DEFAULT_VOICE": " zh "},
    )
    assert settings.hosts == ("::1", "localhost")
    assert (settings.log_format, settings.head_timeout_s, settings.keys) == ("json", 2.5, keys)
    assert (settings.insecure, settings.default_voice) == (True, "zh")
    assert settings.engine_options == {"text": "a;b=c"}


def test_an_option_of_the_engine_is_json_or_else_text() -> None:
    given = ["threads=4", "exact=true", "name=zh-1", "path=/a b/c", "empty=", 'quoted="7"', "none=null"]
    settings = load([piece for each in given for piece in ("--engine-option", each)], {})
    assert settings.engine_options == {
        "threads": 4,
        "exact": True,
        "name": "zh-1",
        "path": "/a b/c",
        "empty": "",
        "quoted": "7",
        "none": None,
    }


def test_all_faults_are_told_at_once(toml: Path) -> None:
    toml.write_text('prot = 1\nmax_sessions = "many"\nidle_timeout_s = true\n')
    found = problems(
        ["--config", str(toml), "--port", "65536", "--hots", "::", "--engine-option", "novalue"],
        {"COSYSTREAM_LOG_LEVEL": "loud", "COSYSTREAM_INSECURE": "perhaps", "COSYSTREAM_KEYS": "/no/such/file"},
    )
    assert [line for line in found if not re.match(r"[^ ]+toml: |environment: |command line: ", line)] == []
    text = "\n".join(found)
    assert f"{toml}: prot is no setting; did you mean port?" in text
    assert f"{toml}: max_sessions = 'many'; allowed is a whole number from 1 to 100000" in text
    assert f"{toml}: idle_timeout_s = True; allowed is a number from 1 to 86400" in text
    assert "environment: COSYSTREAM_LOG_LEVEL = 'loud'; allowed is one of debug, info, warning, error" in text
    assert "environment: COSYSTREAM_INSECURE = 'perhaps'; allowed is true or false" in text
    assert "environment: COSYSTREAM_KEYS = '/no/such/file' (No such file or directory)" in text
    assert "command line: --port = '65536'; allowed is a whole number from 0 to 65535" in text
    assert "command line: --hots is not understood; did you mean --host?" in text
    assert "command line: --engine-option = 'novalue'" in text
    assert all("\n" not in line for line in found)


@pytest.mark.parametrize("value", ["", "abc", "1.5", "1e3", "-1", "65536", "9" * 30, "0x10", "True"])
def test_ports_that_are_none(value: str) -> None:
    (line,) = problems(["--port", value])
    assert "allowed is a whole number from 0 to 65535" in line


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "", "1,5", "ten"])
def test_times_that_are_none(value: str) -> None:
    (line,) = problems([f"--drain-timeout-s={value}"])
    assert "allowed is a number from 0 to 600" in line


@pytest.mark.parametrize("value", ["", ",", "a,,b", "a b", "http://a/"])
def test_hosts_that_are_none(value: str) -> None:
    assert "allowed is an address or a name" in problems(["--insecure", "--host", value])[0]


@pytest.mark.parametrize("value", ["", "a,b", "0,-1", "0,,1", "0 1", "GPU", "cuda:0"])
def test_devices_that_are_none(value: str) -> None:
    assert "allowed is numbers or UUIDs" in problems(["--workers", "2", f"--worker-devices={value}"])[0]


@pytest.mark.parametrize("value", ["0", "0, 1,10", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-4f0a/1/0"])
def test_devices(value: str) -> None:
    assert load(["--workers", "2", "--worker-devices", value], {}).worker_devices == value.replace(" ", "")


def test_a_missing_value_does_not_hide_other_faults() -> None:
    text = "\n".join(problems(["--port"], {"COSYSTREAM_MAX_SESSIONS": "0"}))
    assert "command line: argument --port: expected one argument" in text
    assert "COSYSTREAM_MAX_SESSIONS" in text


def test_files_that_are_no_settings(toml: Path) -> None:
    assert "cannot be read: No such file" in problems(["--config", str(toml)])[0]
    toml.write_text("port = \n")
    assert "is not TOML" in problems(["--config", str(toml)])[0]
    toml.write_bytes(b"\xff\xfe")
    assert "is not TOML" in problems(["--config", str(toml)])[0]
    toml.write_text("[server]\nport = 1\n")
    assert "server is no setting" in problems(["--config", str(toml)])[0]


def test_variables_with_our_prefix_that_are_no_settings() -> None:
    settings = load([], {"COSYSTREAM_MAX_SESIONS": "3", "COSYSTREAM_SERVICE_PORT_HTTP": "8765", "OTHER": "x"})
    assert settings.warnings == (
        "environment: COSYSTREAM_MAX_SESIONS is no setting; did you mean COSYSTREAM_MAX_SESSIONS?",
    )
    for known in ("COSYSTREAM_MODEL_DIR", "COSYSTREAM_URL", "COSYSTREAM_API_KEY", "COSYSTREAM_PORT_8765_TCP_ADDR"):
        assert load([], {known: "x"}).warnings == ()


def test_an_empty_variable_is_not_set() -> None:
    assert load([], {"COSYSTREAM_PORT": "", "COSYSTREAM_KEYS": " ", "COSYSTREAM_CONFIG": ""}) == Settings()


def test_the_port_that_kubernetes_sets_is_explained() -> None:
    assert "enableServiceLinks" in problems([], {"COSYSTREAM_PORT": "tcp://10.0.0.1:8765"})[0]


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.2", "example.com", "127.0.0.1,0.0.0.0", "::ffff:10.0.0.1"]
)
def test_a_public_address_needs_keys(host: str, tmp_path: Path) -> None:
    (line,) = problems(["--host", host])
    assert "--keys" in line
    assert "--insecure" in line
    assert load(["--host", host, "--insecure"], {}).host == host
    keys = tmp_path / "keys"
    keys.write_text("")
    assert load(["--host", host, "--keys", str(keys)], {}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST", "::ffff:127.0.0.1"])
def test_loopback_addresses_need_none(host: str) -> None:
    assert is_loopback(host)
    assert load(["--host", host], {}).host == host


def test_certificate_and_key_go_together(tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.write_text("")
    assert "tls_key is missing" in problems(["--tls-cert", str(file)])[0]
    assert "tls_cert is missing" in problems(["--tls-key", str(file)])[0]


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(["--help"], {})
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        assert option.flag in text
        assert option.help in text.replace("%%", "%")


def test_every_field_is_a_setting_and_every_setting_is_documented() -> None:
    named = [option.name for option in OPTIONS]
    assert sorted(named) == sorted(each.name for each in fields(Settings) if each.name != "warnings")
    assert list(dict.fromkeys(option.group for option in OPTIONS)) == list(GROUPS)  # each at one place, none is empty
    assert all(f"\n{group}:\n" in argument_parser().format_help() for group in GROUPS)
    table = markdown_table()
    for option in OPTIONS:
        assert option.help
        assert f"| `{option.flag}` | `{option.env}` |" in table
    if DOCS.exists():
        missing = [line for line in table.splitlines() if line not in DOCS.read_text("utf-8")]
        assert not missing, "docs/operations.md: renew the table with `python -m server settings --markdown`"


def test_syncing_nothing_is_odd() -> None:
    assert any("journal_fsync" in each for each in load(["--journal-fsync"], {}).warnings)
    assert not load(["--journal-fsync", "--store", "file:x"], {}).warnings


def test_devices_without_workers_are_a_warning() -> None:
    assert any("worker_devices" in each for each in load(["--worker-devices", "0"], {}).warnings)
    assert not load(["--worker-devices", "0", "--workers", "1"], {}).warnings


def test_a_window_larger_than_a_block_is_refused() -> None:
    (problem,) = problems(["--block-tokens", "100"])
    assert problem == "block_window_tokens = 128 is more than block_tokens; allowed is up to 100"
    settings = load(["--block-tokens", "100", "--block-window-tokens", "100"], {})
    assert (settings.block_tokens, settings.block_window_tokens, settings.warnings) == (100, 100, ())


@pytest.mark.parametrize(("overlap", "warned"), [(0, True), (7, True), (8, False), (64, False)])
def test_an_overlap_below_8_warns(overlap: int, warned: bool) -> None:
    warnings = load(["--block-overlap-tokens", str(overlap)], {}).warnings
    text = f"block_overlap_tokens = {overlap}: below 8, prosody may break where a long sentence is cut into blocks"
    assert warnings == ((text,) if warned else ())


@pytest.mark.parametrize("argv", [["--model", "mine"], ["--engine-option", "model=mine"]])
def test_an_engine_without_models_names_the_one_that_has(argv: list[str]) -> None:
    told = "model = 'mine': the engine embedded takes no model; for CosyVoice add --engine cosyvoice"
    assert problems(argv) == [told]
    assert load([*argv, "--engine", "cosyvoice"], {}).engine_options == {"model": "mine"}
