"""What the audio is like, measured: starts, pauses, loudness, joins, clipping, speed, pitch, volume."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.quality import report
from tests.quality.acoustics import (
    Floats,
    active_level,
    curvature,
    longest_clipped_run,
    longest_pause_s,
    median_pitch,
    onset_s,
    speech_s,
)
from tests.quality.listening import RATE, Speech, speak
from tests.quality.sentences import ALL, CHINESE, ENGLISH, MIXED

Say = Callable[[str], Speech]

START_MS = 60  # speech begins so soon after the first sample
START_DBFS = -50  # a word's weak beginning, such as h or f, is quieter than the rest of speech
CLAUSE_PAUSE_S = (0.150, 0.450)
SENTENCE_PAUSE_S = (0.300, 0.800)
BALANCE_DB = 2.0  # between the voices
SPEED_TOLERANCE = 0.12
LEAST_BEND = 0.001  # of full scale, about -60 dBFS: less cannot be heard
CHINESE_TEXT = "小猫在窗台上睡觉，小狗在门口看家。昨天下午，我们去河边钓鱼；今天早上，大家一起包饺子。"
ENGLISH_TEXT = (
    "The cat slept on the shelf, and the dog watched the door. Yesterday, we went fishing; today, we bake bread. "
    "It was late, but nobody wanted to go home."
)
MIXED_TEXT = "我喜欢music和movie，也喜欢football。We love 北京 and 上海 very much."


def sine(frequency: float, amplitude: float, seconds: float = 1.0) -> Floats:
    result: Floats = amplitude * np.sin(2 * np.pi * frequency * np.arange(round(RATE * seconds)) / RATE)
    return result


def test_the_measurements_measure() -> None:
    """On signals with known answers."""
    quiet = np.zeros(RATE // 4)
    signal = np.concatenate([quiet, sine(220, 0.1), quiet, sine(220, 0.1), quiet])
    assert onset_s(signal, RATE) == pytest.approx(0.25, abs=0.006)
    assert onset_s(quiet, RATE) == float("inf")
    assert longest_pause_s(signal[RATE // 2 : -RATE], RATE) == pytest.approx(0.25, abs=0.011)
    assert speech_s(signal, RATE) == pytest.approx(2.25, abs=0.011)
    assert active_level(signal, RATE) == pytest.approx(-23.0, abs=0.2)
    harmonics = sum(sine(180 * k, 0.1 / k) for k in (1, 2, 3, 4))
    assert median_pitch(np.asarray(harmonics), RATE) == pytest.approx(180, rel=0.02)
    assert click(signal, RATE) < 1
    step = signal.copy()
    step[RATE * 5 // 8 :] += 0.01  # in the middle of a pause
    assert click(step, RATE * 5 // 8) > 5
    assert click(signal + 0.01, 0) > 5  # begins with a step
    assert longest_clipped_run(np.array([0, 32_767, 32_767, 32_767, 5], np.int16)) == 3


@pytest.mark.parametrize("sentences", [CHINESE, ENGLISH, MIXED], ids=["zh", "en", "mixed"])
def test_speech_starts_at_once(sentences: tuple[object, ...], say: Say) -> None:
    chosen = [s for s in ALL if s in sentences][:10]
    starts = {s.text: 1000 * onset_s(say(s.text).floats, RATE, START_DBFS) for s in chosen}
    found = report.distribution([*starts.values()])
    report.say(f"Speech starts, {chosen[0].kind} (ms after the first sample): {found}")
    late = {text: ms for text, ms in starts.items() if ms > START_MS}
    assert not late


def test_the_two_voices_are_equally_loud(say: Say) -> None:
    found = {}
    for name, sentences in (("zh", CHINESE[:10]), ("en", ENGLISH[:10])):
        joined = np.concatenate([say(s.text).floats for s in sentences])
        found[name] = active_level(joined, RATE)
    report.say(f"Active level: zh {found['zh']:.1f} dBFS, en {found['en']:.1f} dBFS (at most {BALANCE_DB:g} dB apart)")
    assert abs(found["zh"] - found["en"]) <= BALANCE_DB


@pytest.mark.parametrize("text", [CHINESE_TEXT, ENGLISH_TEXT], ids=["zh", "en"])
def test_pauses_are_natural(text: str, say: Say) -> None:
    """Strict where a segment ends. Inside a segment the voice phrases a comma by itself, often without a pause."""
    speech = say(text)
    ends = {len(text[: segment.end].rstrip()) for segment in speech.segments}
    rows = []
    for mark in re.finditer(r"[，；。,;.](?=\s*\w)", text):
        before = next(w for w in reversed(speech.words) if w.end <= mark.start())
        after = next(w for w in speech.words if w.start >= mark.end())
        first, end = (before.first_sample + before.end_sample) // 2, (after.first_sample + after.end_sample) // 2
        pause = longest_pause_s(speech.floats[first:end], RATE)
        at_end = mark.end() in ends
        low, high = SENTENCE_PAUSE_S if mark.group() in "。." else CLAUSE_PAUSE_S
        natural = (low if at_end else 0) <= pause <= high
        rows.append((before.text + mark.group() + after.text, f"{1000 * pause:.0f}", at_end, natural))
    report.table("Pauses", ("where", "ms", "segment's end", "natural"), rows)
    assert sum(at_end for *_, at_end, _ in rows) >= 3
    assert all(natural for *_, natural in rows), rows


@pytest.mark.parametrize("text", [CHINESE_TEXT, ENGLISH_TEXT, MIXED_TEXT], ids=["zh", "en", "mixed"])
def test_joins_do_not_click(text: str, say: Say) -> None:
    """Where segments or voices meet, the curve bends no more than around it."""
    speech = say(text)
    joins = [segment.first_sample for segment in speech.segments]
    for before, after in zip(speech.words, speech.words[1:], strict=False):
        if before.text.isascii() != after.text.isascii():
            joins.append(before.end_sample)
    joins.append(len(speech.pcm))
    assert len(joins) >= 4
    found = [click(speech.floats, at) for at in joins]
    report.say(f"Bends at {len(joins)} joins, of what is usual around them: at most {max(found):.2f}")
    assert max(found) <= 1


def click(samples: Floats, at: int) -> float:
    """The sharpest bend within 2 ms of a place, relative to the sharp ones (1 of 100) in the 20 ms on either side."""
    bends = np.pad(curvature(np.pad(samples, 2)), RATE // 50)
    near, wide = RATE * 2 // 1000, RATE // 50
    centre = at + wide
    around = np.concatenate([bends[centre - wide : centre - near], bends[centre + near : centre + wide]])
    return float(bends[centre - near : centre + near].max() / max(LEAST_BEND, np.quantile(around, 0.99)))


def test_the_edges_are_silent(say: Say) -> None:
    for text in (CHINESE_TEXT, ENGLISH_TEXT, MIXED_TEXT):
        samples = say(text).floats
        assert abs(samples[0]) < 0.001
        assert abs(samples[-1]) < 0.001


@pytest.mark.parametrize("volume", [1.0, 2.0])
def test_nothing_clips(volume: float, server_url: str) -> None:
    for text in ("你好！太好了！" + CHINESE_TEXT, "Stop! What a surprise! " + ENGLISH_TEXT):
        speech = speak(server_url, text, volume=volume)
        assert np.abs(speech.floats).max() > 0.2
        assert longest_clipped_run(speech.pcm) < 3


@pytest.mark.parametrize("text", [CHINESE_TEXT, ENGLISH_TEXT, MIXED_TEXT], ids=["zh", "en", "mixed"])
def test_speed_changes_the_duration(text: str, server_url: str, say: Say) -> None:
    usual = say(text).seconds
    found = {speed: speed * speak(server_url, text, speed=speed).seconds / usual for speed in (0.5, 0.75, 1.5, 2.0)}
    report.say("Duration x speed, of the usual duration: " + ", ".join(f"{s:g}: {r:.2f}" for s, r in found.items()))
    assert all(abs(ratio - 1) <= SPEED_TOLERANCE for ratio in found.values()), found


@pytest.mark.parametrize("text", [CHINESE_TEXT, ENGLISH_TEXT], ids=["zh", "en"])
def test_pitch_changes_the_fundamental_frequency(text: str, server_url: str, say: Say) -> None:
    usual = median_pitch(say(text).floats, RATE)
    found = {pitch: median_pitch(speak(server_url, text, pitch=pitch).floats, RATE) / usual for pitch in (0.8, 1.2)}
    report.say(f"Pitch: {usual:.0f} Hz; " + ", ".join(f"asked {p:g}, got {r:.2f}" for p, r in found.items()))
    assert all(abs(ratio / pitch - 1) < 0.08 for pitch, ratio in found.items()), found


def test_volume_changes_the_level(server_url: str, say: Say) -> None:
    for text in (CHINESE_TEXT, ENGLISH_TEXT):
        usual = say(text).floats
        half = speak(server_url, text, volume=0.5).floats
        assert len(half) == len(usual)
        assert np.abs(half - usual / 2).max() < 2 / 32_768 + 0.05 * (np.abs(usual).max() > 0.89)
