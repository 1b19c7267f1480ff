"""How this engine counts the text of a segment. Apart from the engine, because a gateway whose engines run in worker
processes counts, too, and loads no model for it.
"""

import re
from typing import Final

from server.text.characters import HANZI_CLASS

MAX_TOKENS: Final = 40

_LETTER: Final = rf"[^\W_{HANZI_CLASS}]"
_TOKEN: Final = re.compile(rf"[{HANZI_CLASS}]|{_LETTER}+(?:['’-]{_LETTER}+)*")


def count_tokens(text: str) -> int:
    """A Hanzi or a word counts one; marks count nothing."""
    return sum(1 for _ in _TOKEN.finditer(text))
