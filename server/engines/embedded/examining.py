"""What `python -m server doctor` looks at for this engine: whether its voices are built, and room to build them."""

from collections.abc import Mapping
from typing import Any, Final

from server.engines.embedded.catalog import ALL_VOICES
from server.engines.embedded.options import parse_options
from server.engines.examining import Examination, check_disk, free_memory, gigabytes
from server.engines.model_cache import read_entry

BUILD_BYTES: Final = 500_000_000  # of a package, what is in it, and the voices
MEMORY_BYTES: Final = 400_000_000  # of a server with both voices


def examine(given: Mapping[str, Any], found: Examination) -> None:
    """Raises ValueError for options that are wrong."""
    options = parse_options(given)
    missing = []
    for voice in ALL_VOICES:
        if options.voices is None or voice.id in options.voices:
            built = read_entry(options.model_dir / "embedded" / voice.id, {}) is not None
            found.fact(f"voice {voice.id}", "is built" if built else "is built at the first start")
            missing += [] if built else [voice.id]
    if missing:
        check_disk(found, BUILD_BYTES, options.model_dir, f"building {', '.join(missing)}")
        found.advice.append("python -m server.engines.embedded build makes the voices before the first start")
    if 0 < (free := free_memory()) < MEMORY_BYTES:
        found.problems.append(f"memory: {gigabytes(MEMORY_BYTES)} are needed, and {gigabytes(free)} are free")
