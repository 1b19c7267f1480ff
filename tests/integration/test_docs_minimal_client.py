"""The minimal client in docs/protocol.md is a complete program that works."""

import re
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import running_server

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
Speak = Callable[[str, str, str], Awaitable[None]]


def minimal_client() -> Speak:
    blocks = re.findall(r"```python minimal-client\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 1
    names: dict[str, Any] = {"__name__": "minimal_client"}
    exec(compile(blocks[0], "docs/protocol.md", "exec"), names)
    speak: Speak = names["speak"]
    return speak


@pytest.mark.parametrize("text", ["Hello, world.", "你好，世界。这是 a test。" * 20])
async def test_the_minimal_client_writes_the_whole_audio(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.wav"
    async with running_server(engine="tone") as url:
        await minimal_client()(url, text, str(path))
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert file.getnframes() >= 0.1 * 24_000 * len(text.split())
        assert any(file.readframes(24_000))


async def test_the_minimal_client_reports_an_error(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    async with running_server(engine="tone") as url:
        with pytest.raises(RuntimeError, match="bad_message"):
            await minimal_client()(url, "x" * 20_000, str(path))
    assert not path.exists()
