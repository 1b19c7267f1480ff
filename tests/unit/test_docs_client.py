"""docs/client.md names every option, exit code, measurement, error and public name of the client."""

import argparse
import inspect
import re
from pathlib import Path

import client
from client import errors
from client.cli.arguments import build_parser
from client.cli.exit_codes import MEANINGS
from client.cli.report import report
from client.shell import Session
from client.utterance import Utterance

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text(encoding="utf-8")


def commands() -> dict[str, argparse.ArgumentParser]:
    (choices,) = (
        action.choices for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    found = dict(choices)
    for name, parser in choices.items():
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= {f"{name} {inner}": each for inner, each in action.choices.items()}
    return found


def test_every_command_and_option_is_documented() -> None:
    for name, parser in commands().items():
        assert f"python -m client {name}" in TEXT
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help") or f"`{option}" in TEXT, f"{name} {option}"


def test_every_documented_option_exists() -> None:
    actions = [action for parser in commands().values() for action in parser._actions]
    options = {option for action in actions for option in action.option_strings}
    table = TEXT[TEXT.index("| option |") : TEXT.index("- **Text**")]
    for row in table.strip().splitlines()[2:]:
        for option in re.findall(r"`(--?[a-z-]+)", row.split("|")[1]):
            assert option in options


def test_every_exit_code_is_documented() -> None:
    for code, meaning in MEANINGS.items():
        assert f"| {code.value} | {meaning} |" in TEXT


def test_every_measurement_is_documented() -> None:
    source = inspect.getsource(report)
    names = set(re.findall(r'"([a-z_]+)": ', source))
    assert len(names) > 15
    for name in names:
        assert f"`{name}`" in TEXT


def test_every_error_is_documented() -> None:
    for name in client.__all__:
        kind = getattr(client, name)
        if inspect.isclass(kind) and issubclass(kind, errors.ClientError) and kind is not errors.ClientError:
            assert f"| `{name}` |" in TEXT


def test_every_public_method_is_documented() -> None:
    for kind, word in ((Session, "session"), (Utterance, "utterance")):
        for name, _ in inspect.getmembers(kind):
            if not name.startswith("_") and name != "cancel_now":
                assert f"{word}.{name}" in TEXT or f"`{name}" in TEXT, f"{word}.{name}"
    for name in inspect.signature(client.connect).parameters:
        assert name in TEXT[TEXT.index("| `connect(") :].splitlines()[0]


def test_the_example_is_the_one_in_the_package() -> None:
    assert client.__doc__ is not None
    assert 'async for audio in session.speak("你好, world."):' in client.__doc__
    assert 'async for audio in session.speak("你好, world."):' in TEXT
