"""The caches' order, bounds and counts: keys, the LRU and its segmented form, engines' context."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cache.context import GIB, ContextStore, default_blocks
from server.cache.counts import CacheSize, CacheUse
from server.cache.keys import BUCKET_TOKENS, KEPT_BYTES, BlockKey
from server.cache.lru import Entry, Lru
from server.cache.segmented import REMEMBERED_PER, SegmentedLru
from server.engines import loading, registry
from server.engines.base import ContextCache, UsesContextCache
from server.engines.context_cache import EngineContextCache
from server.engines.tone import ToneEngine


def key(name: object = "a", **fields: Any) -> BlockKey:
    return BlockKey(**{"fingerprint": "f", "voice": "v", "parameters": (1.0, "x"), "tokens": (str(name),), **fields})


# ---- keys ----


def test_a_bucket_is_the_same_for_texts_that_begin_alike_and_a_key_is_not() -> None:
    start = tuple(map(str, range(BUCKET_TOKENS)))
    one, other = key(tokens=(*start, "yes")), key(tokens=(*start, "no"))
    assert one.bucket == other.bucket
    assert hash(one) == hash(other)
    assert one != other
    assert {one: 1, other: 2} == {other: 2, one: 1}
    assert one.bucket != key(tokens=start[1:]).bucket


def test_context_is_compared_and_in_no_bucket() -> None:
    one, other = key(context=("before",)), key(context=("else",))
    assert one.bucket == other.bucket
    assert one != other


@pytest.mark.parametrize(
    "fields",
    [
        {"fingerprint": "f2"},
        {"voice": "w"},
        {"parameters": (1.5, "x")},
        {"parameters": (1.0, "x", "")},
        {"tokens": ("a", "")},
        {"fingerprint": "", "voice": "fv"},
        {"voice": "v'1.0", "parameters": ("x",)},
    ],
)
def test_everything_is_in_the_bucket_and_nothing_runs_into_the_next(fields: dict[str, Any]) -> None:
    assert key(**fields) != key()
    assert key(**fields).bucket != key().bucket


def test_lone_surrogates_have_a_key() -> None:
    assert key("\ud83d") != key("\udc00")


def test_the_size_of_a_key_grows_with_its_texts() -> None:
    assert key().size > KEPT_BYTES
    assert key("a" * 1_000).size - key("a").size == 999
    assert key(context=("b" * 500,)).size - key().size > 500


# ---- LRU ----

KEYS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS, st.integers(0, 12)),
        st.tuples(st.just("find"), KEYS, st.just(0)),
        st.tuples(st.just("remove"), KEYS, st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 30), st.none() | st.integers(0, 4))
def test_an_lru_is_what_its_model_is(
    steps: list[tuple[str, int, int]], max_bytes: int, max_entries: int | None
) -> None:
    lru: Lru[int] = Lru(max_bytes, max_entries)
    model: list[tuple[int, int, int]] = []  # key, value, size; the one wanted longest ago first
    for value, (what, name, size) in enumerate(steps):
        had = next((each for each in model if each[0] == name), None)
        if what == "add":
            gone = lru.add(Entry(key(name), value, size))
            model = [each for each in model if each[0] != name]
            expected = []
            if size > max_bytes or max_entries == 0:
                expected = [(name, value, size)]
            else:
                model.append((name, value, size))
                while sum(each[2] for each in model) > max_bytes or len(model) > (max_entries or 1_000):
                    expected.append(model.pop(0))
            assert [(entry.key, entry.value, entry.size) for entry in gone] == [
                (key(each[0]), each[1], each[2]) for each in expected
            ]
        elif what == "find":
            entry = lru.find(key(name))
            assert (entry.value if entry else None) == (had[1] if had else None)
            if had:
                model.remove(had)
                model.append(had)
        else:
            entry = lru.remove(key(name))
            assert (entry.size if entry else None) == (had[2] if had else None)
            model = [each for each in model if each is not had]
        assert lru.bytes == sum(each[2] for each in model) <= max_bytes
        assert len(lru) == len(model)
        assert max_entries is None or len(lru) <= max_entries


# ---- segmented LRU ----


class Model:
    """Two lists, the entry wanted longest ago first, and the names of those that went."""

    def __init__(self, max_bytes: int) -> None:
        self.newcomers: list[tuple[int, int]] = []  # name, size
        self.protected: list[tuple[int, int]] = []
        self.gone: list[int] = []
        self.bounds = max_bytes // 4, max_bytes - max_bytes // 4
        self.most_gone = max_bytes // REMEMBERED_PER
        self.evictions = 0

    def find(self, name: int) -> bool:
        for part in (self.newcomers, self.protected):
            for entry in part:
                if entry[0] == name:
                    part.remove(entry)
                    self.protect(entry)
                    return True
        return False

    def add(self, name: int, size: int) -> None:
        if size > self.bounds[0]:
            return
        if any(entry[0] == name for entry in self.protected):
            self.find(name)
            return
        self.newcomers = [entry for entry in self.newcomers if entry[0] != name]
        if name in self.gone:
            self.gone.remove(name)
            self.protect((name, size))
        else:
            self.try_out((name, size))

    def protect(self, entry: tuple[int, int]) -> None:
        self.protected.append(entry)
        demoted = []
        while sum(size for _, size in self.protected) > self.bounds[1]:
            demoted.append(self.protected.pop(0))
        for each in demoted:
            self.try_out(each)

    def try_out(self, entry: tuple[int, int]) -> None:
        self.newcomers.append(entry)
        while sum(size for _, size in self.newcomers) > self.bounds[0]:
            name, _ = self.newcomers.pop(0)
            self.evictions += 1
            self.gone = [*(each for each in self.gone if each != name), name][-self.most_gone or len(self.gone) + 1 :]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 12_000)), max_size=80),
    st.integers(0, 5 * REMEMBERED_PER),
)
def test_a_segmented_lru_is_what_its_model_is(steps: list[tuple[bool, int, int]], max_bytes: int) -> None:
    cache: SegmentedLru[int] = SegmentedLru(max_bytes)
    model = Model(max_bytes)
    hits = misses = 0
    for adds, name, size in steps:
        if adds:
            cache.add(key(name), name, size)
            model.add(name, size)
        else:
            found = cache.find(key(name))
            assert (found is not None) == model.find(name)
            assert found in (None, name)
            hits += found is not None
            misses += found is None
        kept = model.newcomers + model.protected
        assert cache.size == CacheSize(len(kept), sum(size for _, size in kept))
        assert cache.size.bytes <= max_bytes
        assert cache.use == CacheUse(hits, misses, model.evictions)


def read_book(cache: SegmentedLru[str], sentences: int, size: int = 1_000) -> None:
    for number in range(sentences):
        name = key(f"sentence {number}")
        assert cache.find(name) is None
        cache.add(name, "book", size)


def test_a_long_book_read_once_pushes_out_nothing_that_repeats() -> None:
    cache: SegmentedLru[str] = SegmentedLru(40_000)
    for name in range(20):
        cache.add(key(name), "announcement", 1_000)
        assert cache.find(key(name))
    read_book(cache, 10_000)
    assert all(cache.find(key(name)) for name in range(20))
    assert cache.size.bytes == 30_000  # twenty announcements, and as many sentences as may be on probation


def test_what_is_said_once_gets_a_quarter() -> None:
    cache: SegmentedLru[str] = SegmentedLru(40_000)
    read_book(cache, 1_000)
    assert cache.size == CacheSize(10, 10_000)
    assert cache.largest == 10_000
    cache.add(key("x"), "too large", 10_001)
    assert cache.find(key("x")) is None


def test_what_comes_again_too_late_is_protected_the_next_time() -> None:
    """On a server with many readers the quarter is full within seconds."""
    cache: SegmentedLru[str] = SegmentedLru(10 * REMEMBERED_PER)
    cache.add(key("again"), "announcement", 1_000)
    for number in range(25):
        cache.add(key(number), "book", 1_000)
    assert cache.find(key("again")) is None
    cache.add(key("again"), "announcement", 1_000)
    for number in range(1_000):
        cache.add(key(f"more {number}"), "book", 1_000)
    assert cache.find(key("again")) == "announcement"


# ---- context of engines ----


@pytest.mark.parametrize(
    ("gib", "blocks"),
    [(0, 20), (4, 20), (8, 20), (8.1, 21), (12, 28), (16, 35), (20, 43), (23.7, 50), (24, 50), (80, 50)],
)
def test_blocks_by_the_memory_of_the_device(gib: float, blocks: int) -> None:
    assert default_blocks(round(gib * GIB)) == blocks


def test_blocks_never_shrink_with_more_memory() -> None:
    numbers = [default_blocks(gib * GIB // 4) for gib in range(200)]
    assert numbers == sorted(numbers)


def test_a_store_counts_and_is_bounded_in_blocks_and_bytes() -> None:
    store = ContextStore(3, 10_000)
    for name in range(5):
        store.put(key(name), name, 100)
    assert [store.get(key(name)) for name in range(5)] == [None, None, 2, 3, 4]
    assert store.use == CacheUse(hits=3, misses=2, evictions=2)
    assert store.size.entries == 3
    store.put(key("large"), "large", 9_000)
    assert store.get(key("large")) == "large"
    assert store.size == CacheSize(1, 9_000 + key("large").size)
    store.put(key("larger"), "larger", 10_000)
    assert store.get(key("larger")) is None
    assert store.get(key("large")) == "large"


def test_what_grew_too_large_is_not_found_in_its_old_form() -> None:
    store = ContextStore(3, 10_000)
    store.put(key(), "old", 10)
    store.put(key(), "new", 20_000)
    assert store.get(key()) is None
    assert store.size == CacheSize()


class Contextual(ToneEngine):
    """An engine that uses what it is given as it is made."""

    cache: ContextCache | None = None
    warm = False

    def use_context_cache(self, cache: ContextCache) -> None:
        assert not self.warm
        self.cache = cache

    def warm_up(self) -> None:
        self.warm = True


def start(monkeypatch: pytest.MonkeyPatch, cache: EngineContextCache, device_memory: int = 0) -> Contextual:
    engine = Contextual()
    assert isinstance(engine, UsesContextCache)
    object.__setattr__(engine.capabilities, "device_memory", device_memory)
    monkeypatch.setattr(registry, "create", lambda name, options: engine)
    assert loading.start_engine("mine", {}, cache) is engine
    return engine


def keep(cache: ContextCache, names: Sequence[object], size: int = 10) -> None:
    for name in names:
        cache.put(key(name), name, size)


@pytest.mark.parametrize(("blocks", "gib", "kept"), [(0, 0, 20), (0, 24, 50), (7, 24, 7)])
def test_an_engine_gets_a_cache_as_large_as_its_device_allows(
    monkeypatch: pytest.MonkeyPatch, blocks: int, gib: int, kept: int
) -> None:
    cache = EngineContextCache(blocks)
    engine = start(monkeypatch, cache, gib * GIB)
    assert engine.cache is cache
    keep(cache, range(60))
    assert cache.size().entries == kept


def test_no_cache_is_given_where_nothing_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(monkeypatch, EngineContextCache(megabytes=0)).cache is None


def test_use_is_told_once() -> None:
    cache = EngineContextCache(2)
    keep(cache, range(3))
    assert cache.get(key(2)) == 2
    assert cache.get(key(0)) is None
    assert cache.take_use() == CacheUse(hits=1, misses=1, evictions=1)
    assert cache.take_use() == CacheUse()
    cache.get(key(1))
    assert cache.take_use() == CacheUse(hits=1)


def test_several_threads_share_a_cache() -> None:
    cache = EngineContextCache(10, 1)

    def work(number: int) -> None:
        for name in range(2_000):
            cache.put(key(name % 30 + number), name, 50_000)
            cache.get(key(name % 7))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.size().entries <= 10
    assert cache.size().bytes <= 2**20
    use = cache.take_use()
    assert use.hits + use.misses == 8_000
