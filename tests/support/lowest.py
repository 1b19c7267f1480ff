"""Make a virtual environment with the oldest direct dependencies that pyproject.toml allows.

`python tests/support/lowest.py DIR`, then run the tests with the Python in DIR. The test tools keep their pins:
only what a user could have installed is old.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lower_bounds(requirements: list[str]) -> dict[str, str]:
    """Each requirement's name and the version after its `>=`.

    Raises ValueError when one has no lower bound: then nothing says what was tested.
    """
    bounds = {}
    for requirement in requirements:
        match = re.match(r"([A-Za-z0-9._-]+)>=([0-9.]+)", requirement)
        if match is None:
            raise ValueError(f"{requirement!r} has no lower bound")
        bounds[match[1].lower()] = match[2]
    return bounds


def main() -> None:
    """Make the environment named on the command line and install into it."""
    folder = Path(sys.argv[1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = lower_bounds(project["dependencies"])
    tools = [re.split(r"[>=<;]", requirement)[0] for requirement in project["optional-dependencies"]["dev"]]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split("\n") if "==" in line)
    wanted = [f"{name}=={version}" for name, version in bounds.items()]
    wanted += [f"{name}=={pins[name]}" for name in [*tools, "setuptools"]]
    python = str(folder / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(wanted))
        requirements.flush()
        subprocess.run([*install, "--requirement", requirements.name], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], check=True)


if __name__ == "__main__":
    main()
