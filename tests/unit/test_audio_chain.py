"""From engine samples to PCM: lengths, independence of the cutting, limiter, volume, fades."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.limits import SAMPLE_RATES_OPUS, SAMPLE_RATES_PCM
from server.audio.chain import SegmentChain, soft_limit

RATES = sorted({*SAMPLE_RATES_PCM, *SAMPLE_RATES_OPUS})
Floats = npt.NDArray[np.float32]


def noise(samples: int, seed: int = 3, scale: float = 0.2) -> Floats:
    return (scale * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


def tone(sample_rate: int, hertz: float, samples: int, amplitude: float = 0.5) -> Floats:
    return (amplitude * np.sin(2 * np.pi * hertz * np.arange(samples) / sample_rate)).astype(np.float32)


def whole(chain: SegmentChain, samples: Floats) -> npt.NDArray[np.int16]:
    return np.frombuffer(chain.process(samples, last=True), "<i2")


def in_pieces(chain: SegmentChain, samples: Floats, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cuts), len(samples)]
    pcm = b"".join(chain.process(samples[a:b]) for a, b in itertools.pairwise(edges))
    return pcm + chain.process(np.zeros(0, np.float32), last=True)


@pytest.mark.parametrize("output_rate", RATES)
@pytest.mark.parametrize("engine_rate", [16_000, 22_050, 24_000, 48_000])
def test_every_rate_is_exact_in_length_and_in_place(engine_rate: int, output_rate: int) -> None:
    samples = engine_rate // 4 + 13
    chain = SegmentChain(engine_rate, output_rate)
    pcm = whole(chain, tone(engine_rate, 700, samples))
    assert len(pcm) == chain.scale(samples) == int(samples * output_rate / engine_rate + 0.5)
    inner = slice(output_rate // 50, -output_rate // 50)
    expected = 32768 * tone(output_rate, 700, len(pcm)).astype(float)
    error = (pcm - expected)[inner]
    assert np.abs(error).max() <= 1.5  # steps of 16 bits: rounding and a trace of filter ripple


@pytest.mark.parametrize("output_rate", RATES)
@pytest.mark.parametrize("samples", [0, 1, 2, 47, 48, 49, 100, 479])
def test_short_segments(samples: int, output_rate: int) -> None:
    chain = SegmentChain(24_000, output_rate)
    assert len(whole(chain, noise(samples))) == chain.scale(samples)


@given(
    samples=st.integers(0, 4000),
    cuts=st.lists(st.integers(0, 4000), max_size=10),
    rates=st.sampled_from([(24_000, rate) for rate in RATES] + [(22_050, 24_000), (44_100, 8_000), (8_000, 44_100)]),
    volume=st.sampled_from([0.3, 1.0, 2.0]),
)
@settings(max_examples=150, deadline=None)
def test_samples_do_not_depend_on_how_they_come(
    samples: int, cuts: list[int], rates: tuple[int, int], volume: float
) -> None:
    sound = noise(samples, seed=samples, scale=0.4)
    expected = SegmentChain(*rates, volume).process(sound, last=True)
    assert in_pieces(SegmentChain(*rates, volume), sound, [min(cut, samples) for cut in cuts]) == expected


@given(
    samples=st.integers(0, 3000),
    start=st.integers(0, 6500),
    from_the_end=st.booleans(),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
    rates=st.sampled_from([(24_000, rate) for rate in RATES] + [(22_050, 24_000), (44_100, 8_000), (8_000, 44_100)]),
    volume=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
)
@settings(max_examples=300, deadline=None)
def test_a_chain_that_begins_late_gives_exactly_the_rest(
    samples: int, start: int, from_the_end: bool, cuts: list[int], rates: tuple[int, int], volume: float
) -> None:
    sound = noise(samples, seed=samples, scale=0.4)
    expected = SegmentChain(*rates, volume).process(sound, last=True)
    if from_the_end:
        start = max(0, len(expected) // 2 - start % 300)
    chain = SegmentChain(*rates, volume, start)
    rest = sound[chain.first_input :]
    assert in_pieces(chain, rest, [min(cut, len(rest)) for cut in cuts]) == expected[2 * start :]


@pytest.mark.parametrize("rate", RATES)
def test_the_first_and_the_last_samples_as_starts(rate: int) -> None:
    sound = noise(2000)
    expected = SegmentChain(24_000, rate).process(sound, last=True)
    total = len(expected) // 2
    for start in (*range(130), *range(total - 130, total + 130)):
        chain = SegmentChain(24_000, rate, start=start)
        assert chain.process(sound[chain.first_input :], last=True) == expected[2 * start :]


@pytest.mark.parametrize("rate", RATES)
def test_a_late_start_needs_little_of_what_came_before(rate: int) -> None:
    start = 5 * rate + 7
    first_input = SegmentChain(24_000, rate, start=start).first_input
    before = start * 24_000 / rate - first_input
    assert 0 <= before <= (0 if rate == 24_000 else 0.0075 * 24_000)


@pytest.mark.parametrize("piece", [1, 37, 240])
def test_steady_pieces_equal_the_whole(piece: int) -> None:
    sound = noise(5000)
    expected = SegmentChain(24_000, 22_050).process(sound, last=True)
    assert in_pieces(SegmentChain(24_000, 22_050), sound, list(range(piece, 5000, piece))) == expected


@pytest.mark.parametrize(
    ("output_rate", "milliseconds"), [(48_000, 5), (24_000, 2), (22_050, 5), (16_000, 6), (8_000, 10)]
)
def test_the_first_chunk_comes_out_at_once(output_rate: int, milliseconds: int) -> None:
    """Of a 50 ms chunk all but a few milliseconds; see the figures in `server.audio.resample`."""
    pcm = SegmentChain(24_000, output_rate).process(noise(1200))
    assert len(pcm) / 2 >= output_rate * (50 - milliseconds) / 1000


def test_a_segment_is_not_touched_by_the_one_before() -> None:
    """The engine's buffer is neither kept nor changed."""
    sound = noise(2400)
    before = sound.copy()
    chain = SegmentChain(24_000, 24_000)
    first = chain.process(sound)
    assert np.array_equal(sound, before)
    sound[:] = 1
    rest = chain.process(np.zeros(0, np.float32), last=True)
    assert first + rest == SegmentChain(24_000, 24_000).process(before, last=True)


def test_sixteen_bit_samples_pass_unchanged() -> None:
    original = np.random.default_rng(1).integers(-29_000, 29_000, 5000, dtype=np.int16)
    pcm = whole(SegmentChain(24_000, 24_000), original.astype(np.float32) / np.float32(32768))
    assert np.array_equal(pcm[48:-48], original[48:-48])


@pytest.mark.parametrize("output_rate", RATES)
def test_edges_begin_and_end_in_silence(output_rate: int) -> None:
    """A constant would click at both ends; it rises and falls within 2 ms, in small steps."""
    pcm = whole(SegmentChain(24_000, output_rate), np.full(4800, 0.5, np.float32)).astype(int)
    fade = round(output_rate * 0.002)
    assert abs(pcm[0]) < 0.02 * 16384
    assert abs(pcm[-1]) < 0.02 * 16384
    assert np.abs(pcm[2 * fade : -2 * fade] - 16384).max() <= 164  # the filter rings at the constant's own edges
    assert np.abs(np.diff(pcm)).max() < 16384 * 2 / fade


@pytest.mark.parametrize("volume", [0.0, 0.5, 1.0, 1.7])
def test_volume_is_a_factor(volume: float) -> None:
    sound = tone(24_000, 440, 4800, 0.4)
    pcm = whole(SegmentChain(24_000, 24_000, volume), sound)
    assert np.abs(pcm - 32768 * volume * sound.astype(float))[48:-48].max() <= 0.51


def test_silence_stays_silence() -> None:
    assert not whole(SegmentChain(24_000, 44_100, 2.0), np.zeros(5000, np.float32)).any()


@pytest.mark.parametrize("output_rate", RATES)
def test_loud_sound_never_clips_or_wraps(output_rate: int) -> None:
    square = np.asarray(np.sign(tone(24_000, 300, 4800)), np.float32)
    pcm = whole(SegmentChain(24_000, output_rate, 2.0), square).astype(int)
    assert 32_000 < np.abs(pcm).max() <= 32_767
    steps = np.abs(np.diff(pcm))
    assert steps.max() <= 2 * 32_767
    high = pcm > 30_000
    assert np.mean(high) > 0.35  # half the time at the top: nothing has wrapped to the other sign
    assert np.mean(pcm < -30_000) > 0.35


def test_limiter() -> None:
    levels = np.concatenate([np.linspace(-4, 4, 8001), [100, 1000]]).astype(np.float32)
    limited = soft_limit(levels)
    quiet = np.abs(levels) <= 10 ** (-1 / 20)
    assert np.array_equal(limited[quiet], levels[quiet])
    assert np.all(np.diff(limited[:8001].astype(float)) > -1e-7), "louder in, louder out"
    assert np.abs(limited).max() <= 32767 / 32768
    assert np.allclose(limited[:8001], -limited[:8001][::-1])
    slopes = np.diff(limited[:8001].astype(float)) / 0.001
    assert np.abs(np.diff(slopes)).max() < 0.05, "no corner at the knee"


@given(st.integers(0, 200_000), st.sampled_from(RATES), st.sampled_from(RATES))
def test_positions_scale_to_the_nearest(sample: int, engine_rate: int, output_rate: int) -> None:
    chain = SegmentChain(engine_rate, output_rate)
    scaled = chain.scale(sample)
    assert abs(scaled * engine_rate - sample * output_rate) * 2 <= engine_rate
    assert chain.scale(sample + 1) >= scaled
    if engine_rate == output_rate:
        assert scaled == sample


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_samples_that_cannot_be_sound_are_refused(bad: float) -> None:
    sound = noise(100)
    sound[50] = bad
    with pytest.raises(ValueError, match="within"):
        SegmentChain(24_000, 16_000).process(sound)


def test_misuse_is_refused() -> None:
    for rates in ((0, 24_000), (24_000, -1)):
        with pytest.raises(ValueError, match="positive"):
            SegmentChain(*rates)
    for volume in (-0.1, 2.1, float("nan")):
        with pytest.raises(ValueError, match="volume"):
            SegmentChain(24_000, 24_000, volume)
    with pytest.raises(ValueError, match="no sample -1"):
        SegmentChain(24_000, 24_000, start=-1)
    chain = SegmentChain(24_000, 24_000)
    with pytest.raises(ValueError, match="float64"):
        chain.process(np.zeros(10))  # type: ignore[arg-type]  # the mistake tested
    with pytest.raises(ValueError, match="shape"):
        chain.process(np.zeros((10, 1), np.float32))
    chain.process(noise(10), last=True)
    with pytest.raises(ValueError, match="ended"):
        chain.process(noise(10))
