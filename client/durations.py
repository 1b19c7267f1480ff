"""Times to wait, as people say them. Pure."""

from math import ceil


def in_words(seconds: float) -> str:
    """A time to wait, rounded up, as people say it: `2.5 s`, `4 min 10 s`, `3 h 11 min`."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(ceil(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(ceil(seconds / 60), 60)
    return f"{hours} h {minutes} min"
