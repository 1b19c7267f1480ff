"""What the benchmark of this engine measures with: tiny models, and no figures."""

from pathlib import Path

import pytest
import torch

from bench._common import Report
from bench._cosyvoice_model import Speaker, make_speaker, tame
from bench._cosyvoice_scenes import churn, make
from bench._cosyvoice_speed import speak, speak_uncached
from bench._upstream import NotUsable
from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.synthetic import random_model, tiny

CODE_S = 0.04


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # as the engines of the other tests have it: tiny models gain nothing from more


@pytest.fixture(scope="module")
def speaker(version: ModelVersion) -> Speaker:
    return make_speaker(tame(random_model(tiny(version))), batch=4)


def test_every_utterance_has_the_length_that_was_asked_for(speaker: Speaker) -> None:
    for spoken in [*speak(speaker, 3, codes=40), speak_uncached(speaker, codes=40)]:
        assert spoken.audio_s == pytest.approx(40 * CODE_S)
        assert len(spoken.times) == len(spoken.lengths) > 1
        assert spoken.times == sorted(spoken.times)
        assert sum(spoken.costs) == pytest.approx(spoken.times[-1])


def test_chunks_have_the_lengths_that_were_asked_for(speaker: Speaker) -> None:
    (spoken,) = speak(speaker, 1, codes=79, chunk_ms=(1000,))
    held_back = 24_000 - spoken.lengths[0]
    assert spoken.lengths == [24_000 - held_back, 24_000, 24_000, 4 * 960 + held_back]


def test_standing_in_line_counts(speaker: Speaker) -> None:
    assert speak_uncached(speaker, codes=5, before_s=3.0).first_s > 3.0


def test_what_is_cancelled_leaves_its_slot(version: ModelVersion) -> None:
    report = Report("cosyvoice")
    churn(report, version, utterances=12)
    figures = {figure.name.strip(): figure for figure in report.figures}
    assert figures["slots of the language model that stay taken"].value == 0


def test_a_folder_that_is_no_checkout_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench._cosyvoice_scenes.mid", tiny)
    with pytest.raises(NotUsable, match=r"^--upstream: .* has no folder cosyvoice$"):
        make(2, tmp_path, None)
