"""What holds where a user says nothing. Loads nothing: `--help` needs it too."""

from typing import Final

DEFAULT_PORT: Final = 8765
DEFAULT_URL: Final = f"ws://127.0.0.1:{DEFAULT_PORT}"
DEFAULT_BUSY_WAIT_S: Final = 10.0  # of the command: what a server needs to start
