"""What one of several processes may have of the bounds that a user set for the whole server."""

import math
from dataclasses import replace
from typing import Final

from server.settings import Settings

COUNTS: Final = (
    "engine_threads",
    "max_sessions",
    "resume_budget_mb",
    "audio_cache_mb",
    "sessions_per_principal",
    "session_burst",
    "quota_chars",
)
RATES: Final = ("max_streams", "session_rate", "quota_audio_s")


def share_of(settings: Settings, gateways: int) -> Settings:
    """The settings of one gateway of so many: whole numbers are divided and rounded up, others divided.

    A 0 stays what it means: no bound, or one that is measured.
    """
    counts = {name: math.ceil(getattr(settings, name) / gateways) for name in COUNTS}
    rates = {name: getattr(settings, name) / gateways for name in RATES}
    return replace(settings, **counts, **rates)
