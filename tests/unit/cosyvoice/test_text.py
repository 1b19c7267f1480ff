"""What the language model reads: of the server's words, of a voice and of an instruction."""

import numpy as np
import pytest

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.reading import BODY_FOLDER
from server.engines.cosyvoice.text.marks import markup
from server.engines.cosyvoice.text.prompts import MOST_INSTRUCT, prompt_of, recorded_text
from server.engines.cosyvoice.text.tokenizer import TextTokenizer
from server.engines.cosyvoice.text.wording import TextPiece, estimate_tokens, text_of, wording
from server.engines.cosyvoice.voice.data import VoiceData
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause, Language
from tests.support.cosyvoice import tiny_folder

START = 100  # of the segment in its utterance


def pieces_of(
    text: str, language: Language = "zh", boundary: Boundary = Boundary.SENTENCE, version: ModelVersion = 3
) -> tuple[TextPiece, ...]:
    cut = Cut(START, START + len(text), text, boundary, CutCause.END, language)
    return wording(normalise(cut, markup=markup(version)), boundary)


@pytest.mark.parametrize(
    ("text", "language", "read"),
    [
        ("你好，世界！", "zh", "你好，世界！"),
        ("温度是3.5度；真的？", "zh", "温度是三点五度；真的？"),
        ("苹果、梨：都好……", "zh", "苹果、梨：都好…"),
        ("他——来了", "zh", "他，来了。"),
        ("Hello, world — it's 3pm...", "en", "Hello, world, it's three P M..."),
        ("The U.S. team won", "en", "The U S team won."),
        ("我用Python 3写code。", "zh", "我用Python三写code."),
        ("OK，好 very good", "zh", "OK,好very good."),
        ("他突然[laughter]停下来[breath]", "zh", "他突然[laughter]停下来[breath]。"),
        ("是<strong>勇气</strong>与<strong>智慧</strong>", "zh", "是<strong>勇气</strong>与<strong>智慧</strong>。"),
        ("I was <strong>very</strong> glad [sigh] then", "en", "I was <strong>very</strong> glad[sigh] then."),
        ("对报道[j][ǐ]予好评", "zh", "对报道[j][ǐ]予好评。"),
        ("Say [HH][AH0][L][OW1] now", "en", "Say [HH][AH0][L][OW1] now."),
        ("[breath][h][ǎo]的", "zh", "[breath][h][ǎo]的。"),
        ("[laughter]", "zh", "[laughter]。"),
        ("……", "zh", ""),
        ("<strong></strong>", "zh", ""),
    ],
)
def test_wording(text: str, language: Language, read: str) -> None:
    assert text_of(pieces_of(text, language)) == read


@pytest.mark.parametrize(
    ("text", "boundary", "end"),
    [
        ("我们走", Boundary.WORD, "走"),
        ("我们走，", Boundary.WORD, "，"),
        ("我们走", Boundary.CLAUSE, "，"),
        ("我们走；", Boundary.CLAUSE, "；"),
        ("我们走", Boundary.SENTENCE, "。"),
        ("我们走？", Boundary.SENTENCE, "？"),
        ("我们走，", Boundary.PARAGRAPH, "。"),
        ("let us go:", Boundary.PARAGRAPH, "."),
        ("let us go", Boundary.CLAUSE, ","),
        ("let us go…", Boundary.SENTENCE, "..."),
    ],
)
def test_the_end_says_what_ends_the_segment(text: str, boundary: Boundary, end: str) -> None:
    pieces = pieces_of(text, "zh" if "我" in text else "en", boundary)
    assert pieces[-1].text == end


def test_each_piece_knows_where_it_was_written() -> None:
    text = "约12.5%的[h][ǎo] people say"
    pieces = pieces_of(text)
    for piece in pieces:
        written = text[piece.start - START : piece.end - START]
        if piece.text.strip() in ("约", "的", "[h][ǎo]", "people", "say"):
            assert written == piece.text.strip()
        elif piece.spoken:
            assert written == "12.5%"
    assert [piece.text for piece in pieces if not piece.spoken] == ["."]
    assert (pieces[-1].start, pieces[-1].end) == (START + len(text), START + len(text))
    assert [piece.start for piece in pieces] == sorted(piece.start for piece in pieces)


def test_tags_are_no_words_and_sounds_are() -> None:
    spoken = {piece.text: piece.spoken for piece in pieces_of("[breath][h][ǎo]<strong>的</strong>")}
    assert spoken == {
        "[breath]": False, "[h][ǎo]": True, "<strong>": False, "的": True, "</strong>": False, "。": False,
    }  # fmt: skip


def test_version_2_reads_sounds_as_ordinary_text() -> None:
    assert text_of(pieces_of("[HH]", version=2)) == "HH."
    assert text_of(pieces_of("[HH]", version=3)) == "[HH]."


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("你好", 2), ("Hi, you", 3), ("international", 3), ("2025", 4)])
def test_token_estimate(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@pytest.fixture(scope="module", params=[2, 3])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    version: ModelVersion = request.param
    return TextTokenizer(tiny_folder(tmp_path_factory.mktemp("model"), version) / BODY_FOLDER, version)


def voice(text: str = "", codes: int = 2) -> VoiceData:
    return VoiceData(text, tuple(range(codes)), np.zeros((2 * codes, 80), np.float32), np.ones(192, np.float32))


SYSTEM = {2: "", 3: "You are a helpful assistant.<|endofprompt|>"}
ASKED = {2: "说快点<|endofprompt|>", 3: "You are a helpful assistant. 说快点<|endofprompt|>"}


def test_a_voice_with_its_text_goes_on_from_it(tokenizer: TextTokenizer) -> None:
    prompt = prompt_of(voice("希望你好。"), "", tokenizer)
    assert tokenizer.decode(prompt.text) == SYSTEM[tokenizer.version] + "希望你好。"
    assert prompt.codes == (0, 1)


@pytest.mark.parametrize("made", [voice(), voice(codes=0)], ids=["without a text", "trained in"])
def test_a_voice_without_text_leaves_the_model_free(tokenizer: TextTokenizer, made: VoiceData) -> None:
    prompt = prompt_of(made, "  ", tokenizer)
    assert tokenizer.decode(prompt.text) == SYSTEM[tokenizer.version]
    assert prompt.codes == ()


@pytest.mark.parametrize(
    "instruct", ["说快点", " 说快点<|endofprompt|>", "You are a helpful assistant. 说快点<|endofprompt|>"]
)
def test_an_instruction_stands_in_place_of_the_recording(tokenizer: TextTokenizer, instruct: str) -> None:
    for made in (voice("希望你好。"), voice()):
        prompt = prompt_of(made, instruct, tokenizer)
        assert tokenizer.decode(prompt.text) == ASKED[tokenizer.version]
        assert prompt.text.count(tokenizer.end_of_prompt) == 1
        assert prompt.codes == ()


def test_an_instruction_ends_no_prompt_of_its_own(tokenizer: TextTokenizer) -> None:
    prompt = prompt_of(voice("好"), "快<|endofprompt|>慢<|im_end|>", tokenizer)
    assert prompt.text.index(tokenizer.end_of_prompt) == len(prompt.text) - 1
    assert max(prompt.text) == tokenizer.end_of_prompt


@pytest.mark.parametrize(
    ("made", "instruct", "message"),
    [
        (voice(codes=0), "快", "instruct: this voice is a trained speaker, which follows none; voices of"),
        (voice("好"), "快 " * MOST_INSTRUCT, "instruct: has"),
    ],
)
def test_what_cannot_be_done_is_said(tokenizer: TextTokenizer, made: VoiceData, instruct: str, message: str) -> None:
    with pytest.raises(ValueError) as failure:
        prompt_of(made, instruct, tokenizer)
    assert str(failure.value).startswith(message)
    assert "\n" not in str(failure.value)


def test_the_text_of_a_kept_prompt_comes_back(tokenizer: TextTokenizer) -> None:
    ids = prompt_of(voice("希望[breath]你好。"), "", tokenizer).text
    assert recorded_text(ids, tokenizer) == "希望[breath]你好。"
