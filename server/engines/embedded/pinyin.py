"""Take a pinyin syllable apart into the initial and final that the Chinese voice was trained on.

The voice spells finals in full and by sound, as in the International Phonetic Alphabet rather than in pinyin's short
forms: "liu" is l + iou, "gui" is g + uei, "jun" is j + vn (v for the umlaut), "zhi" is zh + iii, "zi" is z + ii, and a
syllable without a consonant begins with "^".
"""

NO_INITIAL = "^"

_INITIALS = ("zh", "ch", "sh", "b", "p", "m", "f", "d", "t", "n", "l", "g", "k", "h", "j", "q", "x", "r", "z", "c", "s")
_SHORTENED = {"iu": "iou", "ui": "uei", "un": "uen"}
_GLIDE_Y = {"i": "i", "in": "in", "ing": "ing", "u": "v", "ue": "ve", "uan": "van", "un": "vn", "o": "o"}
_GLIDE_W = {"u": "u"}
_NASAL_ONLY = {"m": "en", "n": "en", "ng": "en", "hm": "en", "hng": "en"}  # interjections; the nearest sound


def split_syllable(syllable: str) -> tuple[str, str]:
    """Initial and final, without tone, of a pinyin syllable in lower case with "v" for the umlaut.

    >>> split_syllable("yuan"), split_syllable("shi"), split_syllable("er")
    (('^', 'van'), ('sh', 'iii'), ('^', 'er'))
    """
    if syllable in _NASAL_ONLY:
        return NO_INITIAL, _NASAL_ONLY[syllable]
    if syllable.startswith("y"):
        rest = syllable[1:]
        final = _GLIDE_Y.get(rest) or "i" + rest
        return NO_INITIAL, _SHORTENED.get(final, final)
    if syllable.startswith("w"):
        rest = syllable[1:]
        final = _GLIDE_W.get(rest) or "u" + rest
        return NO_INITIAL, _SHORTENED.get(final, final)
    initial = next((i for i in _INITIALS if syllable.startswith(i)), "")
    final = syllable[len(initial) :].replace("ü", "v").replace("ê", "ei")
    if not initial:
        return NO_INITIAL, final
    if final == "i" and initial in ("zh", "ch", "sh", "r"):
        return initial, "iii"
    if final == "i" and initial in ("z", "c", "s"):
        return initial, "ii"
    if initial in ("j", "q", "x") and final.startswith("u"):
        return initial, "v" + final[1:]
    if initial in ("n", "l") and final == "ue":
        return initial, "ve"
    return initial, _SHORTENED.get(final, final)
