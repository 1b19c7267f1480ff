"""docs/cosyvoice.md names the options and the rates of recordings there are, with what is allowed."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from server.engines.cosyvoice.options import OptionError, Options, parse_options
from server.engines.cosyvoice.voice.recording import RATES

TEXT = (Path(__file__).parents[3] / "docs" / "cosyvoice.md").read_text("utf-8")
ROWS = dict(
    re.findall(r"^\| `([a-z_]+)` \| ([^|]+) \| ", TEXT[TEXT.index("| option |") :].split("\n\n")[0], re.MULTILINE)
)


def test_every_option_is_described() -> None:
    assert list(ROWS) == [each.name for each in fields(Options)]


@pytest.mark.parametrize(("name", "allowed"), ROWS.items())
def test_what_is_allowed_is_taken_and_nothing_else(name: str, allowed: str) -> None:
    choices = re.findall(r"`([^`]+)`", allowed)
    least, _, most = allowed.partition(" to ")
    wrong = ["neither"] if choices else [int(least) - 1, int(most) + 1] if most else []
    for value in choices or ([int(least), int(most)] if most else []):
        parse_options({name: value})
    for value in wrong:
        with pytest.raises(OptionError, match=f"engine option {name} must be "):
            parse_options({name: value})
    assert wrong or allowed in ("a text", "a folder", "a folder or a name")


def test_every_rate_of_recordings_is_named() -> None:
    (row,) = re.findall(r"^\| rate \| (.*) samples a second \|$", TEXT, re.MULTILINE)
    assert [int(rate.replace(",", "")) for rate in re.split(r", | or ", row)] == list(RATES)
