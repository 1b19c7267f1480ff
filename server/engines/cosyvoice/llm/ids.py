"""What the language model reads, as numbers: text tokens are themselves, row `c` of the table of codes is `-1 - c`."""

from collections.abc import Iterable
from typing import Final

from server.engines.cosyvoice.config import LlmConfig

END_OF_PROMPT: Final = 151_646  # the text token that version 3 must find behind its instructions


def code_id(code: int) -> int:
    """A speech code as an input id."""
    return -1 - code


def start_id(config: LlmConfig) -> int:
    """The mark that everything begins with. Version 2 has it in a table of its own, which we put below the codes."""
    return code_id(config.rows if config.version == 2 else config.codes)


def task_id(config: LlmConfig) -> int:
    """The mark between text and codes."""
    return code_id(config.rows + 1 if config.version == 2 else config.codes + 2)


def needs_end_of_prompt(config: LlmConfig) -> bool:
    """Whether texts must contain `END_OF_PROMPT`: in version 3, unless the vocabulary is a toy that lacks it."""
    return config.version == 3 and config.vocab > END_OF_PROMPT


def check_ids(what: str, ids: Iterable[int], limit: int) -> None:
    """Raises ValueError, which names `what`, unless all are from 0 to below `limit`."""
    for found in ids:
        if not 0 <= found < limit:
            raise ValueError(f"{what}: {found} is not from 0 to {limit - 1}")
