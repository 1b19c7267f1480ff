"""Error codes and close reasons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ERRORS, CloseCode, ErrorCode, ProtocolError, close_reason
from protocol.limits import MAX_CLOSE_REASON_BYTES

# RFC 6455, section 7.4.1, and the registry of WebSocket close codes; 1005, 1006 and 1015 never go over the wire.
SENDABLE = {1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014}
IDLE_IN_CHINESE = (
    "会话因长时间没有收到任何消息而关闭：请在等待期间每隔一段时间发送一次心跳消息，或者重新建立连接后继续。"
)


def test_every_code_has_its_meaning() -> None:
    assert set(ERRORS) == set(ErrorCode)
    for kind in ERRORS.values():
        assert kind.meaning
        assert not kind.meaning.endswith(".")


def test_every_error_closes_with_a_code_that_may_be_sent() -> None:
    assert {int(code) for code in CloseCode} <= SENDABLE
    for code, kind in ERRORS.items():
        assert kind.close in SENDABLE, code
        assert kind.close != CloseCode.NORMAL, code


def test_only_what_may_go_better_next_time_is_retryable() -> None:
    retryable = {code for code, kind in ERRORS.items() if kind.retryable}
    assert retryable == {
        ErrorCode.OPEN_TIMEOUT,
        ErrorCode.IDLE_TIMEOUT,
        ErrorCode.CLIENT_STALLED,
        ErrorCode.ENGINE_FAILED,
        ErrorCode.INTERNAL,
    }


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_knows_how_it_behaves(code: ErrorCode) -> None:
    error = ProtocolError(code, "what was wrong", "open.speed")
    assert error.kind is ERRORS[code]
    assert str(error) == error.message == "what was wrong"
    assert error.field == "open.speed"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("busy", "busy"),
        ("x" * 123, "x" * 123),
        ("x" * 124, "x" * 120 + "…"),
        ("会" * 41, "会" * 41),
        ("会" * 42, "会" * 40 + "…"),
        ("a" + "会" * 41, "a" + "会" * 39 + "…"),
        ("ab" + "👋" * 31, "ab" + "👋" * 29 + "…"),
    ],
)
def test_a_reason_ends_between_characters(text: str, kept: str) -> None:
    assert close_reason(text) == kept


def test_a_long_chinese_reason_fits_a_close_frame() -> None:
    assert len(IDLE_IN_CHINESE.encode()) > MAX_CLOSE_REASON_BYTES
    kept = close_reason(IDLE_IN_CHINESE)
    assert len(kept.encode()) <= MAX_CLOSE_REASON_BYTES == 125 - 2
    assert kept.endswith("…")
    assert IDLE_IN_CHINESE.startswith(kept.removesuffix("…"))


@given(st.text(max_size=200) | st.text(st.characters(codec="utf-8", min_codepoint=0x4E00), max_size=80))
def test_any_reason_is_short_and_whole(text: str) -> None:
    kept = close_reason(text)
    assert len(kept.encode()) <= MAX_CLOSE_REASON_BYTES
    assert kept == text or (kept.endswith("…") and text.startswith(kept[:-1]))
    if kept != text:
        assert len(kept.encode()) > MAX_CLOSE_REASON_BYTES - 4


def test_half_a_character_in_a_reason_does_no_harm() -> None:
    assert close_reason("a\ud800b") == "a?b"
