"""docs/engines.md names the voices and options there are, and its example can be used as it stands."""

import re
import tomllib
from pathlib import Path

from server.engines.embedded.catalog import ALL_VOICES
from server.engines.embedded.options import parse_options

TEXT = (Path(__file__).parents[2] / "docs" / "engines.md").read_text("utf-8")


def _first_cells(heading: str) -> list[str]:
    """The code in the first column of the table whose head begins with `heading`."""
    table = TEXT[TEXT.index(f"| {heading} |") :].split("\n\n")[0]
    return re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)


def test_every_voice_is_described() -> None:
    assert _first_cells("voice") == [voice.id for voice in ALL_VOICES]


def test_every_option_is_described_and_the_example_works() -> None:
    examples = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)]
    options = next(example["engine_options"] for example in examples if "engine_options" in example)
    parsed = parse_options(options, {"HOME": "/home/someone"})
    assert sorted(_first_cells("option")) == sorted(type(parsed).__dataclass_fields__)
    assert parsed.voices == tuple(voice.id for voice in ALL_VOICES)
