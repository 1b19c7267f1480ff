"""The certificate that a server makes itself: who is named in it, how long it stays, and that all share the one."""

import asyncio
import hashlib
import ipaddress
import socket
import ssl
import stat
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.gateway import own_names, self_signed
from server.gateway.binding import Address
from server.gateway.own_names import ALWAYS, MOST_PAGES, interface_addresses, names_of, pages_elsewhere
from server.gateway.self_signed import KEY_FILE, SHARED_FILE, VALID, Certificate, certified, keep, make, parse
from server.setting_sources import load
from server.settings import Settings, SettingsError
from tests.support.raw_http import TLS

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SAID = ["speech.example", "192.0.2.1"]


def kept(folder: Path, names: Sequence[str] = SAID, now: datetime = NOW) -> Certificate:
    return keep(folder / "tls", names, now)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_what_browsers_take() -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    made = make([*SAID, "::1"], NOW)
    found = x509.load_pem_x509_certificate(made.shared)
    key = found.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert (made.begins, made.ends) == (NOW - timedelta(hours=1), NOW - timedelta(hours=1) + VALID)
    assert made.ends - made.begins < timedelta(days=398)
    assert made.names == ("speech.example", "192.0.2.1", "::1")
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert [each.dotted_string for each in found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value] == [
        "1.3.6.1.5.5.7.3.1"
    ]
    assert bytes.fromhex(made.fingerprint.replace(":", "")) == ssl_digest(made.shared)
    assert b"PRIVATE" not in made.shared


def ssl_digest(pem: bytes) -> bytes:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).digest()


def test_it_stays_while_it_serves(tmp_path: Path) -> None:
    first = kept(tmp_path)
    assert kept(tmp_path) == first
    assert kept(tmp_path, SAID[:1], NOW + timedelta(days=300)) == first
    assert mode(tmp_path / "tls") == 0o700
    assert mode(tmp_path / "tls" / KEY_FILE) == 0o600
    assert (tmp_path / "tls" / SHARED_FILE).read_bytes() == first.shared
    assert sorted(path.name for path in (tmp_path / "tls").iterdir()) == [SHARED_FILE, "lock", KEY_FILE]


def test_it_is_made_again_in_time_and_for_new_names(tmp_path: Path) -> None:
    first = kept(tmp_path)
    second = kept(tmp_path, now=NOW + VALID - timedelta(days=20))
    assert second.fingerprint != first.fingerprint
    third = kept(tmp_path, ["other.example"], second.begins + timedelta(days=1))
    assert third.fingerprint != second.fingerprint
    assert third.names == ("other.example", "speech.example", "192.0.2.1")
    assert kept(tmp_path, now=third.begins + timedelta(days=1)) == third  # two servers do not take turns with theirs
    before = kept(tmp_path, now=NOW - timedelta(days=5))  # the clock was wrong
    assert before.begins < NOW - timedelta(days=5)


def test_the_names_of_before_are_bounded(tmp_path: Path) -> None:
    kept(tmp_path, [f"1-{each}.example" for each in range(60)])
    made = kept(tmp_path, [f"2-{each}.example" for each in range(60)])
    assert len(made.names) == 100
    assert set(made.names) >= {f"2-{each}.example" for each in range(60)}


@pytest.mark.parametrize("damage", ["cut", "empty", "other key", "other file"])
def test_a_damaged_one_is_made_again(tmp_path: Path, damage: str) -> None:
    first = kept(tmp_path)
    path = tmp_path / "tls" / KEY_FILE
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "empty": b"",
            "other key": make(SAID, NOW).pem.partition(b"-----BEGIN CERT")[0] + first.shared,
            "other file": (TLS / "certificate.pem").read_bytes(),
        }[damage]
    )
    again = kept(tmp_path)
    assert again.fingerprint != first.fingerprint
    assert parse(path.read_bytes()) == again


def test_all_who_start_at_once_have_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_slowly(names: Sequence[str], now: datetime) -> Certificate:
        time.sleep(0.05)
        return make(names, now)

    monkeypatch.setattr(self_signed, "make", make_slowly)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: kept(tmp_path), range(8)))
    assert len({each.fingerprint for each in found}) == 1


def test_one_that_only_can_be_read_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert kept(tmp_path) == first
    with pytest.raises(OSError, match="Read-only"):
        kept(tmp_path, ["other.example"])


def settings_of(*arguments: str) -> Settings:
    return load(["--tls-self-signed", *arguments], {})


async def test_a_server_gets_the_paths_and_the_log_the_fingerprint(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with certified(settings_of(), {"XDG_STATE_HOME": str(tmp_path)}) as settings:
            pass
    path = tmp_path / "cosystream" / "tls" / KEY_FILE
    assert (settings.tls_cert, settings.tls_key, settings.secure) == (path, path, True)
    (line,) = logs
    assert line["sha256"] == parse(path.read_bytes()).fingerprint
    assert line["file"] == str(path.with_name(SHARED_FILE))
    assert set(ALWAYS) <= set(line["names"].split(","))


async def test_where_nothing_can_be_kept_it_lasts_as_long_as_the_server(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with capture_logs() as logs:
        async with certified(settings_of(), {"XDG_STATE_HOME": str(blocked)}) as settings:
            assert settings.tls_cert is not None
            assert mode(settings.tls_cert) == 0o600
            assert mode(settings.tls_cert.parent) == 0o700
    assert not settings.tls_cert.parent.exists()
    assert [line["log_level"] for line in logs] == ["warning", "info"]
    assert "cannot be kept" in logs[0]["event"]


async def test_other_servers_have_none_and_load_nothing() -> None:
    settings = Settings()
    async with certified(settings) as same:
        assert same is settings
    code = "import sys, server.app, server.gateways.parent; sys.exit('cryptography' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=Path(__file__).parents[2])
    assert await process.wait() == 0


@pytest.mark.parametrize("option", ["--tls-cert", "--tls-key"])
def test_there_is_one_certificate_or_the_other(option: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_of(option, str(TLS / "certificate.pem"))
    assert any("leave tls_cert and tls_key out" in problem for problem in caught.value.problems)


def test_where_others_find_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["127.0.0.1", "192.0.2.7", "::1", "2001:db8::7", *(f"192.0.2.{last}" for last in range(8, 20))]
    monkeypatch.setattr(own_names, "interface_addresses", lambda: found)
    both = ("https://192.0.2.7:8765/", "https://[2001:db8::7]:8765/")
    assert pages_elsewhere(Address("::", 8765), secure=True)[:2] == both
    shown = pages_elsewhere(Address("0.0.0.0", 8765), secure=False)
    assert shown == tuple(f"http://192.0.2.{last}:8765/" for last in range(7, 7 + MOST_PAGES))
    for host in ("127.0.0.1", "192.0.2.7", "::1"):
        assert pages_elsewhere(Address(host, 8765), secure=True) == ()


def test_who_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Desk")
    monkeypatch.setattr(own_names, "interface_addresses", lambda: ["192.0.2.7", "2001:db8::7"])
    monkeypatch.setattr(own_names, "_addresses_of", lambda host: [host] if host[0].isdigit() else ["192.0.2.8"])
    machine = (*ALWAYS, "desk", "desk.local")
    assert names_of(Settings()) == machine
    assert names_of(Settings(host="0.0.0.0")) == names_of(Settings(host="::")) == (*machine, "192.0.2.7", "2001:db8::7")
    assert names_of(Settings(host="192.0.2.9,lan.example")) == (*machine, "192.0.2.9", "lan.example", "192.0.2.8")
    origins = "https://speech.example,http://[2001:db8::9]:3000,null,*"
    assert names_of(Settings(allow_origins=origins)) == (*machine, "speech.example", "2001:db8::9")
    monkeypatch.setattr(socket, "gethostname", lambda: "desk.corp.example")
    assert names_of(Settings()) == (*ALWAYS, "desk.corp.example", "desk")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fe80::1%eth0", ""),
        ("fe80::1", ""),
        ("2001:DB8::0:1%lo", "2001:db8::1"),
        ("Speech.Example.", "speech.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("a..b", ""),
        ("x" * 64 + ".example", ""),
        ("", ""),
    ],
)
def test_names_as_certificates_have_them(name: str, expected: str) -> None:
    assert own_names._checked(name) == expected
    if expected:
        assert make([expected], NOW).names == (expected,)


def test_addresses_of_interfaces_are_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = interface_addresses()
    for address in found:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
        assert not (ipaddress.ip_address(address).is_link_local and family == socket.AF_INET6)
    assert len(found) == len(set(found))
    monkeypatch.setattr(own_names, "_ROUTES", Path("/nonexistent"))
    monkeypatch.setattr(own_names, "_IPV6", Path("/nonexistent"))
    assert set(interface_addresses()) <= set(found)


def test_addresses_that_pass_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "20010db8000000000000000000000001 02 40 00 80     eth0",
        "20010db8000000000000000000000002 02 40 00 01     eth0",  # temporary
        "20010db8000000000000000000000003 02 40 00 20     eth0",  # deprecated
        "fe800000000000000000000000000001 02 40 20 80     eth0",
    ]
    table = tmp_path / "if_inet6"
    table.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(own_names, "_IPV6", table)
    assert [each for each in interface_addresses() if each.startswith("2001:db8:")] == ["2001:db8::1"]
    assert not any(each.startswith("fe80") for each in interface_addresses())


def test_openssl_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    """As strictly as Python 3.13 and later ask by default."""
    made = keep(tmp_path, ["localhost", "127.0.0.1"], datetime.now(UTC))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / KEY_FILE)
    client = ssl.create_default_context(cafile=str(tmp_path / SHARED_FILE))
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    for name in made.names:
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [
            client.wrap_bio(back, there, server_hostname=name),
            server.wrap_bio(there, back, server_side=True),
        ]
        for _ in range(3):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    pass
        assert ends[0].getpeercert()
