"""What the embedded engine's models made of a piece is kept and found again, and changes no sample."""

from typing import Any

import numpy as np
import pytest

from server.cache.keys import BlockKey
from server.engines.base import Chunk, RenderPlan, Samples, Segment, SegmentEnd, UsesContextCache
from server.engines.embedded import create
from server.engines.embedded.catalog import CHINESE, ENGLISH
from server.engines.embedded.engine import EmbeddedEngine
from server.engines.embedded.model import Model
from server.engines.embedded.reuse import Spectrum, Wave
from server.text.tokens import Boundary
from tests.integration.test_embedded_joins import TEXTS, segments_of, tokens_of

STREAM, BLOCK = RenderPlan("stream"), RenderPlan("block")


class Shelf:
    """A cache without bounds."""

    def __init__(self) -> None:
        self.kept: dict[BlockKey, tuple[object, int]] = {}
        self.hits = 0

    def get(self, key: BlockKey) -> object | None:
        found = self.kept.get(key)
        self.hits += found is not None
        return found[0] if found else None

    def put(self, key: BlockKey, value: object, size: int) -> None:
        assert key not in self.kept
        self.kept[key] = value, size


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that ran."""
    names: list[str] = []
    run = Model.run

    def noted(model: Model, inputs: Any) -> Any:
        names.append(model._name)
        return run(model, inputs)

    monkeypatch.setattr(Model, "run", noted)
    return names


@pytest.fixture(scope="module")
def plain() -> EmbeddedEngine:
    return create({})


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def keeping(shelf: Shelf) -> EmbeddedEngine:
    engine = create({})
    assert isinstance(engine, UsesContextCache)
    engine.use_context_cache(shelf)
    return engine


def _render(
    engine: EmbeddedEngine, segment: Segment, plan: RenderPlan = STREAM, seed: int = 3, start: int = 0
) -> Samples:
    job = engine.prepare(segment, plan, seed=seed, start_sample=start)
    parts = [np.zeros(0, np.float32)]
    while not isinstance(event := engine.step([job])[0], SegmentEnd):
        assert isinstance(event, Chunk), event
        parts.append(event.samples)
    return np.concatenate(parts)


def _acoustic(runs: list[str]) -> int:
    return sum(name.startswith(("acoustic", "hibari")) for name in runs)


def _segment(text: str, **changes: Any) -> Segment:
    return Segment(0, tokens_of(text), Boundary.SENTENCE, CHINESE.id, **changes)


@pytest.mark.parametrize("plan", [STREAM, BLOCK], ids=["stream", "block"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_hit_gives_the_same_samples_and_runs_no_acoustic_model(
    plain: EmbeddedEngine, keeping: EmbeddedEngine, runs: list[str], text: str, plan: RenderPlan
) -> None:
    for segment in segments_of(text)[:3]:
        expected = _render(plain, segment, plan)
        assert np.array_equal(_render(keeping, segment, plan), expected)
        ran = _acoustic(runs)
        assert ran >= 2
        assert np.array_equal(_render(keeping, segment, plan), expected)
        middle = len(expected) // 2
        assert np.array_equal(_render(keeping, segment, plan, start=middle), expected[middle:])
        assert _acoustic(runs) == ran


def test_the_other_mode_gets_what_is_its_own(plain: EmbeddedEngine, keeping: EmbeddedEngine) -> None:
    for text in ("今天天气很好。", "The weather is lovely today."):
        segment = _segment(text)
        assert np.array_equal(_render(keeping, segment, STREAM), _render(plain, segment, STREAM))
        assert np.array_equal(_render(keeping, segment, BLOCK), _render(plain, segment, BLOCK))


@pytest.mark.parametrize(("text", "before"), [("今天天气很好", "我们说"), ("the weather is lovely", "we say")])
def test_whatever_decides_the_samples_is_in_the_key(
    plain: EmbeddedEngine, keeping: EmbeddedEngine, shelf: Shelf, text: str, before: str
) -> None:
    tokens = tokens_of(text)
    variants = [
        Segment(0, tokens, Boundary.SENTENCE, CHINESE.id),
        Segment(0, tokens, Boundary.CLAUSE, CHINESE.id),
        Segment(0, tokens, Boundary.WORD, CHINESE.id),
        Segment(0, tokens, Boundary.SENTENCE, CHINESE.id, before=tokens_of(before)),
        Segment(0, tokens, Boundary.SENTENCE, CHINESE.id, speed=1.2),
        Segment(0, tokens, Boundary.SENTENCE, CHINESE.id, pitch=1.1),
        Segment(0, tokens[:-1], Boundary.SENTENCE, CHINESE.id),
        Segment(0, tokens[:-1], Boundary.SENTENCE, CHINESE.id, before=tokens[-1:]),
    ]
    for segment in variants:
        assert np.array_equal(_render(keeping, segment), _render(plain, segment))
    assert shelf.hits == 0
    paragraph = Segment(5, tokens, Boundary.PARAGRAPH, CHINESE.id)  # only its pause is another
    assert np.array_equal(_render(keeping, paragraph), _render(plain, paragraph))
    assert shelf.hits == 1
    assert np.array_equal(_render(keeping, variants[0], seed=9), _render(plain, variants[0], seed=9))
    assert shelf.hits == (2 if tokens[0].language == "zh" else 1)  # the seed is the English voice's alone


def test_what_is_kept_is_read_only_and_sized_exactly(keeping: EmbeddedEngine, shelf: Shelf) -> None:
    _render(keeping, _segment("今天天气很好。The weather is lovely today."))
    values = {key.voice: value for key, (value, _) in shelf.kept.items()}
    assert set(values) == {CHINESE.id, ENGLISH.id}
    for key, (value, size) in shelf.kept.items():
        assert key.fingerprint == keeping.capabilities.fingerprint
        if isinstance(value, Spectrum):
            assert size == value.mel.nbytes + value.durations.nbytes
            arrays: tuple[np.ndarray[Any, Any], ...] = (value.mel, value.durations)
        else:
            assert isinstance(value, Wave)
            assert size == value.samples.nbytes + 16 * len(value.word_spans)
            arrays = (value.samples,)
        for array in arrays:
            assert array.base is None  # it holds on to no other memory
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0


def test_a_piece_that_was_not_made_whole_is_not_kept(keeping: EmbeddedEngine, shelf: Shelf) -> None:
    """The English voice keeps its sound: there is none of what lies before a start, or after an end that came early."""
    segment = _segment("The weather is lovely today.")
    whole = len(_render(create({}), segment))
    _render(keeping, segment, start=whole // 2)
    job = keeping.prepare(segment, STREAM, seed=3)
    keeping.step([job])
    keeping.cancel(job)
    assert not shelf.kept
    _render(keeping, segment)
    assert len(shelf.kept) == 1
