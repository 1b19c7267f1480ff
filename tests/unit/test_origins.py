"""Which pages may use the server, by the headers `Origin` and `Host` of what their browser sends."""

import pytest

from server.gateway.origins import Origins
from server.setting_sources import load
from server.settings import Settings, SettingsError

LOCAL = Origins(local_only=True)


def origins(text: str) -> Origins:
    return Origins.of(load(["--allow-origins", text], {}))


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "127.0.0.1:8765"),
        (None, "localhost"),
        (None, "LOCALHOST.:1"),
        (None, "[::1]:8765"),
        (None, "app.localhost:8765"),
        (None, None),
        ("http://127.0.0.1:8765", "127.0.0.1:8765"),
        ("http://localhost", "localhost"),
        ("http://localhost", "localhost:80"),
        ("https://localhost:443", "localhost"),
        ("HTTP://LocalHost:8765", "localhost:8765"),
        ("http://[::1]:8765", "[::1]:8765"),
    ],
)
def test_programs_and_own_pages_pass(origin: str | None, host: str | None) -> None:
    assert LOCAL.problem([origin] if origin else [], [host] if host else []) == ""


@pytest.mark.parametrize(
    ("origin", "host", "word"),
    [
        ("https://evil.example", "127.0.0.1:8765", "evil.example"),
        ("http://127.0.0.1:8766", "127.0.0.1:8765", "8766"),
        ("http://localhost", "localhost:8765", "localhost"),
        ("null", "127.0.0.1:8765", "null"),
        ("", "127.0.0.1:8765", "pages"),
        ("http://127.0.0.1:99999", "127.0.0.1:8765", "99999"),
        ("http://[", "127.0.0.1:8765", "pages"),
        ("http://evil.example:8765", "evil.example:8765", "host"),  # its name points here now
        (None, "evil.example", "host"),
        (None, "127.0.0.1.evil.example", "host"),
        (None, "localhost.evil.example", "host"),
        (None, "[", "host"),
        (None, "", "host"),
    ],
)
def test_other_pages_do_not(origin: str | None, host: str, word: str) -> None:
    assert word in LOCAL.problem([] if origin is None else [origin], [host])


def test_two_of_a_header_are_none() -> None:
    assert LOCAL.problem(["http://localhost", "http://localhost"], ["localhost"])
    assert LOCAL.problem([], ["localhost", "localhost"])


def test_a_server_that_others_reach_may_have_any_name() -> None:
    public = Origins.of(Settings(host="0.0.0.0", insecure=True))
    assert public.problem(["https://speech.example"], ["speech.example"]) == ""
    assert public.problem(["https://evil.example"], ["speech.example"])


def test_with_keys_the_name_does_not_matter() -> None:
    keys = Origins.of(load(["--keys", __file__], {}))
    assert keys.problem([], ["speech.example"]) == ""


def test_allowed_pages_and_the_names_they_stand_for() -> None:
    some = origins("https://App.example/, http://a.example:80,null")
    assert some.problem(["https://app.example"], ["127.0.0.1:8765"]) == ""
    assert some.problem(["http://a.example"], ["127.0.0.1:8765"]) == ""
    assert some.problem(["null"], ["127.0.0.1:8765"]) == ""
    assert some.problem(["https://app.example"], ["app.example"]) == ""  # behind a proxy that passes the name on
    assert some.problem(["http://app.example"], ["127.0.0.1:8765"])
    assert some.problem(["https://sub.app.example"], ["127.0.0.1:8765"])
    assert some.problem([], ["evil.example"])


def test_everybody() -> None:
    assert origins("*").problem(["https://evil.example"], ["evil.example"]) == ""


@pytest.mark.parametrize(
    "text", ["example.com", "https://", "https://a/b", "https://a b", "https://a,,https://b", "*.a"]
)
def test_what_is_no_origin(text: str) -> None:
    with pytest.raises(SettingsError, match="allow-origins"):
        load(["--allow-origins", text], {})
