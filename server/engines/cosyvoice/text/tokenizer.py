"""Text to the ids that the language model reads: Qwen's byte-pair encoding, and the marks of either version.

Marks are found by us, never by the tokenizer: what a user writes cannot become one that steers the model.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.sections import ModelError, one_line
from server.engines.cosyvoice.text.marks import END_OF_PROMPT, marks_in_order, markup

_FILE: Final = "tokenizer.json"
_PARTS: Final = ("vocab.json", "merges.txt")
_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen parts text before it merges bytes."""


class TextTokenizer:
    """The tokenizer of one model folder. Safe to use from several threads."""

    def __init__(self, folder: Path, version: ModelVersion) -> None:
        """`folder`: the one of the Qwen model, with `tokenizer.json`, or `vocab.json` and `merges.txt`. Raises
        ModelError, one line that names the file, where one is missing or is none.
        """
        self.version: ModelVersion = version
        self.markup = markup(version)  # what a writer may put into a text
        marks = marks_in_order(version)
        self._tokenizer, files = _read(folder, frozenset(marks))
        self._tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
        self._tokenizer.encode_special_tokens = True  # "<|im_end|>" in a text is nothing but these characters
        self._ids = {mark: self._id(mark) for mark in marks}
        self._marks = {number: mark for mark, number in self._ids.items()}
        self._found = re.compile("(" + "|".join(map(re.escape, sorted(self.markup, key=len, reverse=True))) + ")")
        self.end_of_prompt = self._ids[END_OF_PROMPT]
        self.largest_id = max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        digest = hashlib.sha256(f"{version}".encode())
        for file in files:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        self.fingerprint = digest.hexdigest()[:32]

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of `text`, in which `markup` is read as such."""
        ids: list[int] = []
        for part in self._found.split(text):
            if part in self.markup:
                ids.append(self._ids[part])
            elif part:
                ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, marks included."""
        parts: list[str] = []
        for mark, run in itertools.groupby(ids, self._marks.get):
            if mark is None:
                parts.append(self._tokenizer.decode(list(run), skip_special_tokens=False))
            else:  # the tokenizer would take its letters for bytes
                parts.append(mark * len(list(run)))
        return "".join(parts)

    def _id(self, mark: str) -> int:
        number = self._tokenizer.token_to_id(mark)
        assert number is not None  # it was added
        return int(number)


def _read(folder: Path, marks: frozenset[str]) -> tuple[Tokenizer, list[Path]]:
    """The tokenizer without our marks, and the files that decide what it does."""
    whole = folder / _FILE
    try:
        if whole.is_file():
            tokenizer = Tokenizer.from_file(str(whole))
            model = json.loads(whole.read_text("utf-8"))["model"]
            pairs = (each.split(" ") if isinstance(each, str) else each for each in model["merges"])
            _check_merges(whole, model["vocab"], map("".join, pairs), marks | _added(tokenizer))
            return tokenizer, [whole]
        parts = [folder / name for name in _PARTS]
        missing = next((part.name for part in parts if not part.is_file()), None)
        if missing is not None:
            raise ModelError(f"{folder}: neither {_FILE} nor {missing} is there")
        tokenizer = _of_parts(*parts)
        config = folder / "tokenizer_config.json"
        if config.is_file():
            tokenizer.add_special_tokens(_own_marks(config))
            parts.append(config)
        lines = parts[1].read_text("utf-8").split("\n")
        made = ("".join(line.rstrip("\r").split(" ")) for line in lines if not line.startswith("#version"))
        _check_merges(parts[1], json.loads(parts[0].read_text("utf-8")), made, marks | _added(tokenizer))
        return tokenizer, parts
    except ModelError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise ModelError(f"{folder}: no tokenizer: {one_line(error)}") from error


def _added(tokenizer: Tokenizer) -> frozenset[str]:
    return frozenset(each.content for each in tokenizer.get_added_tokens_decoder().values())


def _check_merges(file: Path, vocabulary: Iterable[str], made: Iterable[str], marks: frozenset[str]) -> None:
    """That the merges lead to every entry of several symbols: else texts fall apart into bytes, and nobody is told.
    `marks` are found in another way; a hundredth may lack theirs, a file that was cut lacks more. Raises ModelError.
    """
    of_several = {each for each in vocabulary if len(each) > 1} - marks
    lacking = of_several.difference(made)
    if len(lacking) > len(of_several) // 100:
        raise ModelError(
            f"{file}: its merges lead to {len(of_several) - len(lacking):,} of the vocabulary's"
            f" {len(of_several):,} entries of several symbols, not to {min(lacking)[:40]!r}: is the file truncated?"
        )


def _of_parts(vocabulary: Path, merges: Path) -> Tokenizer:
    tokenizer = Tokenizer(BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _own_marks(config: Path) -> list[AddedToken]:
    """Those that the folder adds to the vocabulary itself, by id."""
    told: Any = json.loads(config.read_text("utf-8"))
    added = told.get("added_tokens_decoder") if isinstance(told, dict) else None
    if not isinstance(added, dict):
        return []
    by_id = sorted((int(number), token) for number, token in added.items() if isinstance(token, dict))
    return [AddedToken(str(token["content"]), special=True, normalized=False) for _, token in by_id]
