"""The tokenizer against transformers' on the same files, and its marks."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.sections import ModelError
from server.engines.cosyvoice.text.marks import END_OF_PROMPT, SOUNDS, TAGS, marks_in_order
from server.engines.cosyvoice.text.tokenizer import TextTokenizer

TEXTS = [
    "Hello there, it's the 3rd time.",
    "你好，世界！今天天气很好。",
    "a [breath]他<strong>很</strong>好 [laughter]",
    "报道[j][ǐ]予 [HH][AH0] [h]",
    "e\u0301\u00e9 \U0001f600 \n\n  两个  空格 ",
    "",
]
VERSIONS: list[ModelVersion] = [2, 3]
EMPTY = {"vocab.json": "{}", "merges.txt": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small vocabulary, learnt from a few words as Qwen's was from many."""
    folder = tmp_path_factory.mktemp("body")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text for text in TEXTS for _ in range(4)], trainer)
    tokenizer.model.save(str(folder))
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return folder


@pytest.mark.parametrize("version", VERSIONS)
def test_ids_are_those_of_transformers(folder: Path, version: ModelVersion) -> None:
    from transformers import AutoTokenizer  # here, as it takes a second to import

    reference: Any = AutoTokenizer.from_pretrained(str(folder))
    ends = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    reference.add_special_tokens({**ends, "additional_special_tokens": list(marks_in_order(version)[1:])})
    ours = TextTokenizer(folder, version)
    for text in TEXTS:
        assert list(ours.encode(text)) == reference([text])["input_ids"][0], text
    assert ours.end_of_prompt == reference.convert_tokens_to_ids(END_OF_PROMPT)
    assert ours.largest_id == len(reference) - 1
    whole = folder.parent / f"whole{version}"
    reference.save_pretrained(str(whole))  # as one tokenizer.json, with the marks in it
    again = TextTokenizer(whole, version)
    assert [again.encode(text) for text in TEXTS] == [ours.encode(text) for text in TEXTS]
    assert again.end_of_prompt == ours.end_of_prompt


@pytest.mark.parametrize(("version", "count", "digest"), [(2, 20, "9b6b0f8663045662"), (3, 281, "36d639d3ebbba97b")])
def test_marks_are_in_the_order_of_the_official_models(version: ModelVersion, count: int, digest: str) -> None:
    marks = marks_in_order(version)
    assert len(marks) == len(set(marks)) == count
    assert hashlib.sha256("\n".join(marks).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_marks_follow_the_vocabulary(folder: Path, version: ModelVersion) -> None:
    words = len(json.loads((folder / "vocab.json").read_text()))
    tokenizer = TextTokenizer(folder, version)
    assert tokenizer.end_of_prompt == words + 3
    assert tokenizer.encode("[breath]") == (words + 4,)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_text_becomes_a_mark_that_steers_the_model(folder: Path, version: ModelVersion) -> None:
    tokenizer = TextTokenizer(folder, version)
    for mark in marks_in_order(version):
        ids = tokenizer.encode(f"a{mark}b")
        steers = mark.startswith("<|")
        assert (len(ids) == 3) == (not steers), mark
        assert (max(ids) >= tokenizer.end_of_prompt - 3) == (not steers), mark
        assert tokenizer.decode(ids) == f"a{mark}b"


def test_version_2_reads_tags_but_no_sounds(folder: Path) -> None:
    two, three = TextTokenizer(folder, 2), TextTokenizer(folder, 3)
    assert all(len(two.encode(tag)) == len(three.encode(tag)) == 1 for tag in TAGS)
    assert all(len(two.encode(sound)) > 1 and len(three.encode(sound)) == 1 for sound in SOUNDS)


def test_a_mark_among_words_is_one_id_and_nothing_is_lost(folder: Path) -> None:
    tokenizer = TextTokenizer(folder, 2)
    text = "你好[laughter] there, 世é"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    (mark,) = tokenizer.encode("[laughter]")
    assert ids == (*tokenizer.encode("你好"), mark, *tokenizer.encode(" there, 世é"))


def test_another_vocabulary_has_another_fingerprint(folder: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    same = TextTokenizer(tmp_path, 2).fingerprint
    assert same == TextTokenizer(folder, 2).fingerprint != TextTokenizer(folder, 3).fingerprint
    merges = (tmp_path / "merges.txt").read_text().splitlines()
    (tmp_path / "merges.txt").write_text("\n".join([*merges[:-2], merges[-1], merges[-2]]) + "\n")
    assert TextTokenizer(tmp_path, 2).fingerprint != same


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.999])
def test_merges_that_do_not_make_the_whole_vocabulary_are_refused(folder: Path, tmp_path: Path, kept: float) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text())
    of_several = sum(len(each) > 1 for each in vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps({**vocabulary, "<|im_end|>": len(vocabulary)}))
    merges = (folder / "merges.txt").read_text()
    (tmp_path / "merges.txt").write_text(merges)
    TextTokenizer(tmp_path, 2)  # a mark needs no merges
    lines = merges.splitlines(keepends=True)
    (tmp_path / "merges.txt").write_text("".join(lines[: int(len(lines) * kept)]))
    with pytest.raises(ModelError, match=rf"^\S*merges\.txt: its merges lead to \d+ of .* {of_several} entries .*\?$"):
        TextTokenizer(tmp_path, 2)


def test_a_tokenizer_in_one_file_needs_all_its_merges_too(folder: Path, tmp_path: Path) -> None:
    whole = tmp_path / "tokenizer.json"
    Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))).save(str(whole))
    TextTokenizer(tmp_path, 2)
    content = json.loads(whole.read_text())
    content["model"]["merges"] = content["model"]["merges"][:-1]
    whole.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"tokenizer\.json: its merges lead to "):
        TextTokenizer(tmp_path, 2)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "neither tokenizer.json nor vocab.json is there"),
        ({"vocab.json": "{}"}, "neither tokenizer.json nor merges.txt is there"),
        ({"tokenizer.json": "{"}, "no tokenizer: "),
        ({"vocab.json": "[1", "merges.txt": ""}, "no tokenizer: "),
        ({**EMPTY, "tokenizer_config.json": "nothing"}, "no tokenizer: "),
        ({**EMPTY, "tokenizer_config.json": '{"added_tokens_decoder": {"x": {}}}'}, "no tokenizer: "),
    ],
)
def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelError) as failure:
        TextTokenizer(tmp_path, 2)
    assert str(tmp_path) in str(failure.value)
    assert expected in str(failure.value)
    assert "\n" not in str(failure.value)
