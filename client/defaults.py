"""What holds where a user says nothing. Loads nothing: `--help` needs it too."""

from typing import Final

DEFAULT_URL: Final = "ws://127.0.0.1:8765"
