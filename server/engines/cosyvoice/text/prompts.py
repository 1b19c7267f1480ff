"""What the language model reads before a text, of a voice and of an instruction, by the version's rules. Pure.

| | text before | codes before |
|---|---|---|
| a voice with its text (zero-shot) | the recording's text | the recording's codes |
| a voice without (cross-lingual) | - | - |
| an instruction | it, and the mark that ends a prompt | - |
| a trained speaker | - | - |

Version 3 always has a prompt: a sentence that its training began with, then the instruction if any, then that mark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from server.engines.cosyvoice.text.marks import END_OF_PROMPT
from server.engines.cosyvoice.text.tokenizer import TextTokenizer
from server.engines.cosyvoice.voice.data import VoiceData

SYSTEM: Final = "You are a helpful assistant."
MOST_INSTRUCT: Final = 200
"""Text tokens of an instruction."""


@dataclass(frozen=True, slots=True)
class SpokenPrompt:
    """The language model's input before the text: text tokens, and speech codes that it goes on from."""

    text: tuple[int, ...]
    codes: tuple[int, ...]


def prompt_of(voice: VoiceData, instruct: str, tokenizer: TextTokenizer) -> SpokenPrompt:
    """`instruct`: how to speak, in words; empty: as in the recording. Raises ValueError, one line, where that cannot be
    done.
    """
    instruct = _asked(instruct)
    if instruct and not voice.codes:
        raise ValueError("instruct: this voice is a trained speaker, which follows none; voices of recordings do")
    before: tuple[int, ...] = ()
    if tokenizer.version == 3:
        before = (*tokenizer.encode(f"{SYSTEM} {instruct}".rstrip()), tokenizer.end_of_prompt)
    elif instruct:
        before = (*tokenizer.encode(instruct), tokenizer.end_of_prompt)
    if instruct:
        if len(before) > MOST_INSTRUCT:
            raise ValueError(f"instruct: has {len(before)} text tokens; at most {MOST_INSTRUCT} are allowed")
        # The model would repeat the manner of the codes: upstream leaves them to the flow alone, too.
        return SpokenPrompt(before, ())
    if not voice.text:
        return SpokenPrompt(before, ())
    return SpokenPrompt((*before, *tokenizer.encode(voice.text)), voice.codes)


def recorded_text(ids: Sequence[int], tokenizer: TextTokenizer) -> str:
    """The text of a voice whose prompt was kept as text tokens: what stands behind the prompt's own mark."""
    return tokenizer.decode(ids).rpartition(END_OF_PROMPT)[2].strip()


def _asked(instruct: str) -> str:
    """Without what upstream's users write around it by hand."""
    asked = instruct.strip().removesuffix(END_OF_PROMPT).strip()
    return asked.removeprefix(SYSTEM).strip()
