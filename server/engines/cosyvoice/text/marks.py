"""The marks that the models know besides text, in the order of their ids. Pure."""

from typing import Final

from server.engines.cosyvoice.config import ModelVersion

END_OF_TEXT: Final = "<|endoftext|>"
END_OF_PROMPT: Final = "<|endofprompt|>"
_CHAT: Final = (END_OF_TEXT, "<|im_start|>", "<|im_end|>", END_OF_PROMPT)

TAGS: Final = (
    "[breath] <strong> </strong> [noise] [laughter] [cough] [clucking] [accent] [quick_breath] <laughter> </laughter>"
    " [hissing] [sigh] [vocalized-noise] [lipsmack] [mn]"
).split()
"""What a writer may put into a text for either version."""

_PHONES: Final = (
    "AA* AE* AH* AO* AW* AY* B CH D DH EH* ER* EY* F G HH IH* IY* JH K L M N NG OW* OY* P R S SH T TH UH* UW* V W Y Z"
    " ZH"
).split()
"""ARPAbet; a star stands for the vowel without stress and with stress 0, 1 and 2."""

_PINYIN: Final = (
    "a ai an ang ao b c ch d e ei en eng f g h i ian in ing iu ià iàn iàng iào iá ián iáng iáo iè ié iòng ióng iù iú iā"
    " iān iāng iāo iē iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ j k l m n o ong ou p q r s sh t u uang ue un uo uà uài uàn"
    " uàng uá uái uán uáng uè ué uì uí uò uó uā uāi uān uāng uē uě uī uō uǎ uǎi uǎn uǎng uǐ uǒ vè w x y z zh à ài àn"
    " àng ào á ái án áng áo è èi èn èng èr é éi én éng ér ì ìn ìng í ín íng ò òng òu ó óng óu ù ùn ú ún ā āi ān āng āo"
    " ē ēi ēn ēng ě ěi ěn ěng ěr ī īn īng ō ōng ōu ū ūn ǎ ǎi ǎn ǎng ǎo ǐ ǐn ǐng ǒ ǒng ǒu ǔ ǔn ǘ ǚ ǜ"
).split()
"""Initials and finals, the tone on the vowel."""


def _phones() -> list[str]:
    stressed = ("", "0", "1", "2")
    return [phone.rstrip("*") + mark for phone in _PHONES for mark in (stressed if phone[-1] == "*" else ("",))]


SOUNDS: Final = tuple(f"[{sound}]" for sound in (*_phones(), *_PINYIN))
"""What version 3 reads besides: sounds written one by one, `[h][ǎo]` or `[HH][AH0]`."""


def marks_in_order(version: ModelVersion) -> tuple[str, ...]:
    """All that were added to the vocabulary, those of Qwen's chats first. The ids follow on each other."""
    return (*_CHAT, *TAGS) if version == 2 else (*_CHAT, *TAGS, "<|endofsystem|>", *SOUNDS)


def markup(version: ModelVersion) -> frozenset[str]:
    """What a writer may put into a text. None of them is a `<|...|>`, which steer the model."""
    return frozenset(TAGS if version == 2 else (*TAGS, *SOUNDS))
