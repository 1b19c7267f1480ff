"""The library example in README.md works as it stands."""

import re
from pathlib import Path

import pytest

from tests.support.server import running_server

TEXT = (Path(__file__).parents[2] / "README.md").read_text()


async def test_the_library_example(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 1
    code, calls = re.subn(r"\nasyncio\.run\(main\(\)\)\n", "\n", blocks[0])
    assert calls == 1
    async with running_server() as url:
        names: dict[str, object] = {}
        exec(code.replace("ws://127.0.0.1:8765", url), names)
        await names["main"]()  # type: ignore[operator]  # the example's coroutine function
    lines = re.findall(r"^(\d+) (\d+)$", capsys.readouterr().out, re.MULTILINE)
    assert lines[0][0] == "0"
    assert sum(int(size) for _, size in lines) > 48_000


def test_every_linked_page_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (Path(__file__).parents[2] / target).exists(), target


def test_no_figure_is_left_to_fill_in() -> None:
    assert not re.findall(r"@[A-Z_0-9]+@|TODO|TBD", TEXT)
