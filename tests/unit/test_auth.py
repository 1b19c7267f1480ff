"""API keys: made once, kept as hashes, compared whole."""

import hashlib
import re
import stat
from pathlib import Path

import pytest

from server.gateway.auth import (
    ANONYMOUS,
    KeysError,
    Principal,
    Principals,
    add_key,
    bearer_key,
    hash_key,
    read_key_file,
    remove_keys,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.txt"


def test_a_key_is_stored_as_its_hash_for_the_owner_alone(file: Path) -> None:
    key = add_key(file, "ann")
    assert re.fullmatch(r"cosy_[A-Za-z0-9_-]{32}", key)  # 24 random bytes
    assert key not in file.read_text()
    assert hashlib.sha256(key.encode()).hexdigest() in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert add_key(file, "ann") != key
    assert [entry.name for entry in read_key_file(file)] == ["ann", "ann"]
    assert [path.name for path in file.parent.iterdir()] == ["keys.txt"]


def test_adding_and_removing_keep_everything_else(file: Path) -> None:
    file.write_text(f"# ours\n\nbob {hash_key('b')}  # a comment\nann {hash_key('a')}")
    key = add_key(file, "cem")
    assert remove_keys(file, "ann") == 1
    assert remove_keys(file, "nobody") == 0
    assert file.read_text() == f"# ours\n\nbob {hash_key('b')}  # a comment\ncem {hash_key(key)}\n"


def test_the_right_key_is_its_principal(file: Path) -> None:
    ann, second, bob = add_key(file, "ann"), add_key(file, "ann"), add_key(file, "bob")
    principals = Principals.load(file)
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert principals.authenticate(f"{scheme} {bob}") == Principal("bob")
    assert principals.authenticate(f"Bearer   {ann} ") == Principal("ann")
    assert principals.authenticate(None, second) == Principal("ann")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic KEY", "KEY", "Bearer KEYx", "Bearer KE", "Bearer é"]
)
def test_anything_else_is_refused(file: Path, header: str) -> None:
    key = add_key(file, "ann")
    principals = Principals.load(file)
    assert principals.authenticate(header.replace("KEY", key).replace("KE", key[:-1])) is None
    assert principals.refuses_handshake(header.replace("KEY", key).replace("KE", key[:-1]))


def test_the_header_counts_before_the_message(file: Path) -> None:
    key = add_key(file, "ann")
    principals = Principals.load(file)
    assert principals.authenticate("Bearer wrong", key) is None
    assert principals.authenticate(f"Bearer {key}", "wrong") == Principal("ann")
    for none in (None, "", "wrong", "\udc80"):
        assert principals.authenticate(None, none) is None
    assert not principals.refuses_handshake(None)  # a browser: the key may still come in a message
    assert not principals.refuses_handshake(f"Bearer {key}")


def test_the_hash_is_no_key(file: Path) -> None:
    add_key(file, "ann")
    assert Principals.load(file).authenticate(f"Bearer {read_key_file(file)[0].hash}") is None


def test_without_a_file_everybody_is_anonymous() -> None:
    principals = Principals.load(None)
    assert principals.authenticate(None) == ANONYMOUS
    assert principals.authenticate("Basic whatever", "any") == ANONYMOUS
    assert not principals.refuses_handshake("Bearer any")


def test_an_empty_file_lets_nobody_in(file: Path) -> None:
    file.write_text("# none yet\n")
    assert Principals.load(file).authenticate(None, "") is None


@pytest.mark.parametrize("line", ["ann", "ann abc", f"ann {hash_key('a')} more", f"a:n {hash_key('a')}", "cosy_secret"])
def test_bad_files_are_named_by_line_but_not_shown(file: Path, line: str) -> None:
    file.write_text(f"# comment\n{line}\n")
    for use in (Principals.load, read_key_file, lambda path: add_key(path, "x"), lambda path: remove_keys(path, "x")):
        with pytest.raises(KeysError, match="line 2") as caught:
            use(file)
        assert line not in str(caught.value).replace("keys add NAME", "")
    assert file.read_text() == f"# comment\n{line}\n"


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="cannot be read"):
        Principals.load(tmp_path / "none")
    with pytest.raises(KeysError, match="cannot be written"):
        add_key(tmp_path / "no" / "folder", "ann")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(KeysError, match="not text"):
        read_key_file(tmp_path / "binary")


@pytest.mark.parametrize("name", ["", "a b", "#a", "a\n", "ä", "-a", "a" * 65])
def test_names_that_are_none(file: Path, name: str) -> None:
    with pytest.raises(KeysError, match="no name for a key"):
        add_key(file, name)
    assert not file.exists()


def test_bearer_key() -> None:
    assert bearer_key("bEaReR  k ") == "k"
    assert bearer_key("Token k") is None
    assert bearer_key("") is None
