"""Short-lived tokens: what is in them, who can make them, and when they are good for nothing."""

import re
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode, ProtocolError
from server.__main__ import main
from server.gateway.auth import KeysError, Principal, Principals, bearer_token, hash_key, read_secret, write_secret
from server.gateway.origins import is_from
from server.gateway.tokens import (
    MAX_TOKEN_CHARS,
    USES,
    Asked,
    Grant,
    TokenError,
    check,
    make,
    offered_tokens,
    parse_request,
)
from server.setting_sources import load
from server.settings import SettingsError

SECRET = bytes(range(32))
NOW = 1_700_000_000
GRANT = Grant("ann", ("speak",), NOW + 300, "https://a.example")
LONGEST = Grant("a" * 64, USES, 2**53, "https://" + "a" * 292)


@pytest.mark.parametrize("grant", [GRANT, replace(GRANT, origin=None, scope=USES), LONGEST])
def test_what_goes_in_comes_out(grant: Grant) -> None:
    token = make(SECRET, grant)
    assert check(SECRET, token, NOW) == grant
    assert re.fullmatch(r"cosyt_1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{43}", token)  # all of it may be in a subprotocol
    assert len(token) <= MAX_TOKEN_CHARS


def test_the_format_stays_what_it_is() -> None:
    """Servers of different releases may share a secret."""
    assert make(SECRET, Grant("ann", ("speak",), 1)) == (
        "cosyt_1.eyJwcmluY2lwYWwiOiJhbm4iLCJzY29wZSI6WyJzcGVhayJdLCJleHBpcmVzX2F0IjoxfQ."
        "_wjkT_K8FyIM5dStOm_Bu0lg129CgSLRV715nlEvH1g"
    )


def test_it_ends_at_its_second() -> None:
    token = make(SECRET, GRANT)
    assert check(SECRET, token, GRANT.expires_at - 0.001) == GRANT
    with pytest.raises(TokenError, match="expired") as caught:
        check(SECRET, token, GRANT.expires_at)
    assert not caught.value.forbidden


def forged(**changes: Any) -> str:
    """A token whose claims were changed afterwards."""
    head, claims, signature = make(SECRET, GRANT).split(".")
    changed = orjson.loads(urlsafe_b64decode(claims + "==")) | changes
    return ".".join((head, urlsafe_b64encode(orjson.dumps(changed)).decode().rstrip("="), signature))


WHOLE = make(SECRET, GRANT)
BAD = {
    "nothing": "",
    "a key": "cosy_0123456789",
    "no parts": "cosyt_1",
    "no claims": "cosyt_1." + WHOLE.rpartition(".")[2],
    "no signature": WHOLE.rpartition(".")[0],
    "an empty signature": WHOLE.rpartition(".")[0] + ".",
    "padding": WHOLE + "=",
    "white space": WHOLE + " ",
    "cut": WHOLE[:-1],
    "another version": WHOLE.replace("cosyt_1", "cosyt_2"),
    "another principal": forged(principal="bob"),
    "more time": forged(expires_at=NOW + 3600),
    "another secret": make(bytes(32), GRANT),
    "not ASCII": "cosyt_1.é." + WHOLE.rpartition(".")[2],
    "a lone surrogate": "cosyt_1.\udc80." + WHOLE.rpartition(".")[2],
    "far too long": "cosyt_1." + "a" * 10_000_000,
}


@pytest.mark.parametrize("what", BAD)
def test_nobody_else_makes_one(what: str) -> None:
    with pytest.raises(TokenError, match="invalid") as caught:
        check(SECRET, BAD[what], NOW)
    assert not caught.value.forbidden


@given(st.integers(0, len(WHOLE) - 1), st.characters(codec="ascii"))
def test_no_character_may_change(at: int, other: str) -> None:
    changed = WHOLE[:at] + other + WHOLE[at + 1 :]
    if changed != WHOLE:
        with pytest.raises(TokenError, match="invalid"):
            check(SECRET, changed, NOW)


@given(st.text(max_size=200) | st.text(alphabet="cosyt_1.AZaz09-", max_size=200).map("cosyt_1.".__add__))
def test_whatever_comes_is_answered(text: str) -> None:
    with pytest.raises(TokenError):
        check(SECRET, text, NOW)


def test_scope() -> None:
    for scope, wanted, good in (
        (("speak",), ("speak",), True),
        (("speak",), ("voices", "speak"), True),
        (("voices",), ("speak",), False),
        (USES, ("voices",), True),
        (USES, (), False),
    ):
        grant = replace(GRANT, scope=scope)  # type: ignore[arg-type]  # mypy sees a tuple of any text
        if good:
            grant.require(wanted)  # type: ignore[arg-type]
        else:
            with pytest.raises(TokenError, match=f"scope is {', '.join(scope)}") as caught:
                grant.require(wanted)  # type: ignore[arg-type]
            assert caught.value.forbidden


def test_tokens_among_subprotocols() -> None:
    assert offered_tokens(["cosystream.v1, cosystream.token.abc"]) == ["abc"]
    assert offered_tokens(["cosystream.v1", " cosystream.token.a\t,cosystream.token.b"]) == ["a", "b"]
    assert offered_tokens(["cosystream.token."]) == [""]
    assert offered_tokens(["cosystream.v1, Cosystream.Token.abc", "cosystream.tokens.x", ""]) == []


# ---- asking for one ----


def test_what_can_be_asked_for() -> None:
    for nothing in (b"", b" \n", b"{}", b'{"origin": null}'):
        assert parse_request(nothing) == Asked(300, ("speak",), None)
    body = {"ttl_s": 10, "scope": ["voices", "speak", "voices"], "origin": "HTTPS://App.example:443/"}
    assert parse_request(orjson.dumps(body)) == Asked(10, ("speak", "voices"), "https://app.example")
    assert parse_request(b'{"ttl_s": 3600}').ttl_s == 3600
    assert parse_request(b'{"origin": "http://[::1]:8080"}').origin == "http://[::1]:8080"


NO_TTL: tuple[Any, ...] = (9, 3601, 60.0, "60", True, None, -1, 2**63, [60])
NO_SCOPE: tuple[Any, ...] = ([], "speak", ["all"], [1], [["speak"]], [{}], None, {})
NO_ORIGIN: tuple[Any, ...] = (
    "*", "null", "", "app.example", "https://", "https://a/b", "https://a,https://b", "https://*.a", 1, [],
    ["https://a"], "https://" + "a" * 293, "javascript://x", "file://a", "httpx://a",
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        *(("ttl_s", value, "10 to 3600") for value in NO_TTL),
        *(("scope", value, "speak, voices") for value in NO_SCOPE),
        *(("origin", value, "http[s]://name") for value in NO_ORIGIN),
        ("orign", "https://a", "ttl_s, scope, origin"),
        ("x" * 4000, 1, "ttl_s"),
    ],
)
def test_what_cannot_is_named(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_request(orjson.dumps({field: value}))
    assert (caught.value.code, caught.value.field) == (ErrorCode.BAD_MESSAGE, field[:40])
    assert allowed in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'"x"', b"1", b"\xff", b'{"ttl_s": NaN}', b"[" * 4000])
def test_what_is_no_object(body: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_request(body)
    assert caught.value.code == ErrorCode.BAD_JSON


# ---- whose they are ----


def at(time: float, secret: bytes = SECRET, **names: str) -> Principals:
    """Principals with these names, `NAME="key"`, at that time."""
    return Principals({hash_key(key): name for name, key in names.items()}, secret, now=lambda: time)


def test_a_token_is_its_principal() -> None:
    token, grant = at(NOW + 0.9, ann="a").make_token(Principal("ann"), Asked(60, ("speak",)))
    assert grant.expires_at == NOW + 60
    assert at(NOW + 59, ann="a", bob="b").of_token(token, ("speak",), []) == Principal("ann")
    for principals, reason in (
        (at(NOW + 60, ann="a"), "expired"),
        (at(NOW, bob="b"), "no key any more"),
        (at(NOW), "no key any more"),
        (at(NOW, bytes(32), ann="a"), "invalid"),
        (Principals(None, SECRET, now=lambda: NOW), "no key any more"),  # a token says who it is also to everybody
    ):
        with pytest.raises(TokenError, match=reason):
            principals.of_token(token, ("speak",), [])


def test_a_secret_by_chance_is_another_one_each_time() -> None:
    token, _ = Principals().make_token(Principal("anonymous"), Asked())
    with pytest.raises(TokenError, match="invalid"):
        Principals().of_token(token, ("speak",), [])


def test_a_token_for_pages_from_one_origin() -> None:
    principals = at(NOW, ann="a")
    token, _ = principals.make_token(Principal("ann"), Asked(origin="https://app.example"))
    principals.of_token(token, ("speak",), ["https://App.example"])
    principals.of_token(token, ("speak",), [], ["app.example"])  # reads from its own host
    for origins, hosts in (
        (["https://evil.example"], ["app.example"]),
        (["https://app.example", "https://app.example"], []),
        (["http://app.example"], []),
        (["null"], []),
        ([], []),
        ([], ["speech.example"]),
    ):
        with pytest.raises(TokenError, match=r"for pages from https://app\.example") as caught:
            principals.of_token(token, ("speak",), origins, hosts)
        assert caught.value.forbidden
        told = ("names no page", f"comes from {''.join(origins)}", "names several pages")[len(origins)]
        assert f"; this request {told}" in str(caught.value)


def test_a_token_is_no_key() -> None:
    principals = at(NOW, ann="a")
    token, _ = principals.make_token(Principal("ann"), Asked())
    assert principals.authenticate(f"Bearer {token}") is None
    assert principals.authenticate(None, token) is None
    assert bearer_token(f"bearer  {token} ") == token
    for header in (None, "Bearer cosy_key", f"Basic {token}", token, "Bearer"):
        assert bearer_token(header) is None


def test_a_page_is_told_by_origin_or_by_its_own_host() -> None:
    assert is_from("http://a:8080", ["http://A:8080"], ["b"])
    assert is_from("http://a:8080", [], ["a:8080"])
    assert not is_from("http://a:8080", [], ["a"])
    assert not is_from("http://a:8080", [""], ["a:8080"])
    assert not is_from("http://a:8080", [], ["a:8080", "a:8080"])


# ---- the secret ----


def test_a_secret_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(bytes(range(32)))
    assert read_secret(file) == bytes(range(32))  # every byte counts, the last ones, too
    file.write_bytes(b"x" * 4096)
    assert len(read_secret(file)) == 4096
    assert read_secret(None) != read_secret(None)
    assert len(read_secret(None)) == 32


def test_secrets_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for data, size in ((b"", "0 bytes"), (b"x" * 31, "31 bytes"), (b"x" * 4097, "more")):
        file.write_bytes(data)
        with pytest.raises(KeysError, match=rf"has {size}; allowed are 32 to 4096"):
            read_secret(file)
    with pytest.raises(KeysError, match="cannot be read"):
        read_secret(tmp_path)


def test_a_secret_in_place_of_its_file_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        load(["--token-secret", "hush" * 8], {"COSYSTREAM_TOKEN_SECRET": "hush" * 8})
    assert len(caught.value.problems) == 2
    assert "hush" not in str(caught.value)


def test_the_command_makes_one_and_keeps_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "secret"
    assert main(["keys", "secret", str(file)]) == 0
    told = capsys.readouterr()
    assert f"--token-secret {file}" in told.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = read_secret(file)
    assert made.decode().strip() not in told.out + told.err
    assert main(["keys", "secret", str(file)]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert read_secret(file) == made
    write_secret(tmp_path / "other")
    assert read_secret(tmp_path / "other") != made
