"""Programs of the system that users may not have. Tests that need one are marked `@pytest.mark.programs("nginx")`."""

import os
import shutil

_DAEMONS = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # where ordinary users' PATH does not lead


def find_program(name: str) -> str | None:
    """Its path; None where it is not installed."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_DAEMONS]))
