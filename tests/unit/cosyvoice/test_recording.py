"""Recordings: what is taken of them, and one clear line for each that is of no use."""

import io

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from server.engines.cosyvoice.voice.recording import RATES, Recording, checked, read_recording

Floats = npt.NDArray[np.float32]


def speech(seconds: float, rate: int = 24_000, level: float = 0.3) -> Floats:
    """A buzz in syllables, four a second."""
    time = np.arange(round(seconds * rate)) / rate
    buzz = sum(np.sin(2 * np.pi * 140 * n * time) / n for n in range(1, 8))
    return (level * buzz * (0.55 + 0.45 * np.sin(2 * np.pi * 4 * time))).astype(np.float32)


def silence(seconds: float, rate: int = 24_000) -> Floats:
    return np.zeros(round(seconds * rate), np.float32)


def file_of(samples: Floats, rate: int = 24_000, kind: str = "WAV", subtype: str = "PCM_16") -> bytes:
    target = io.BytesIO()
    soundfile.write(target, samples, rate, format=kind, subtype=subtype)
    return target.getvalue()


@pytest.mark.parametrize("rate", RATES)
def test_every_rate_that_is_allowed_can_be_read_and_changed(rate: int) -> None:
    recording = read_recording(file_of(speech(3.2, rate), rate, "FLAC"))
    assert recording.rate == rate
    assert recording.seconds == pytest.approx(3.2, abs=0.03)
    for wanted in (16_000, 24_000):
        assert len(recording.at(wanted)) == pytest.approx(recording.seconds * wanted, abs=1)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_channels_are_mixed_and_a_constant_is_taken_off(subtype: str) -> None:
    left, right = speech(3.5), 0.5 * speech(3.5)
    recording = read_recording(file_of(np.stack([left, right], axis=1) + np.float32(0.05), subtype=subtype))
    expected = (left + right) / 2
    expected -= expected.mean()
    assert np.abs(recording.samples - expected[: len(recording.samples)]).max() < 1e-4
    assert recording.samples.dtype == np.float32


def test_silence_at_the_ends_does_not_count_and_goes() -> None:
    recording = read_recording(file_of(np.concatenate([silence(14), speech(20), silence(15)])))
    assert 20.3 < recording.seconds < 20.45
    quiet = round(0.15 * recording.rate)
    assert np.abs(recording.samples[:quiet]).max() < 0.01 < np.abs(recording.samples[: 3 * quiet]).max()


def test_pauses_within_stay() -> None:
    parts = [speech(1.5), silence(1.0), speech(1.5)]
    assert read_recording(file_of(np.concatenate(parts))).seconds == pytest.approx(4.0, abs=0.03)


def _long(seconds: int, rate: int, channels: int) -> bytes:
    """A FLAC of nothing, which takes little room however long it is."""
    target = io.BytesIO()
    with soundfile.SoundFile(target, "w", rate, channels, "PCM_16", format="FLAC") as file:
        for _ in range(seconds):
            file.write(np.zeros((rate, channels), np.int16))
    return target.getvalue()


def _told_frames(flac: bytes, frames: int) -> bytes:
    """With another number of them in its header; 0: unknown."""
    head = int.from_bytes(flac[18:26], "big") >> 36 << 36
    return flac[:18] + (head | frames).to_bytes(8, "big") + flac[26:]


def test_a_recording_that_is_too_long_by_its_own_header_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _long(61, 16_000, 2)

    def read(*_: object, **__: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(soundfile.SoundFile, "read", read)
    with pytest.raises(ValueError, match="longer than 60 s; 3 to 30 s are allowed"):
        read_recording(data)
    with pytest.raises(ValueError, match="longer than 60 s; 3 to 30 s are allowed"):
        read_recording(_told_frames(data, (1 << 36) - 1))


def test_a_header_that_tells_no_length_or_a_shorter_one_does_no_harm() -> None:
    data = _long(70, 16_000, 1)
    with pytest.raises(ValueError, match="longer than 60 s; 3 to 30 s are allowed"):
        read_recording(_told_frames(data, 0))
    with pytest.raises(ValueError, match="silent or too quiet"):
        read_recording(_told_frames(data, 16_000 * 5))
    short = _told_frames(file_of(speech(4), kind="FLAC"), 0)
    with pytest.raises(ValueError, match="no whole WAV or FLAC file"):  # the library cannot find its end
        read_recording(short)


@pytest.mark.parametrize(("rate", "channels"), [(192_000, 5), (192_000, 8), (16_000, 9), (16_000, 200)])
def test_too_many_channels_are_refused(rate: int, channels: int) -> None:
    kind = "FLAC" if channels <= 8 else "WAV"
    data = file_of(np.zeros((rate // 10, channels), np.float32), rate, kind)
    with pytest.raises(ValueError, match=rf"has {channels} channels of {rate:,} .* at most 8 channels, and 768,000"):
        read_recording(data)


CLIPPED = np.clip(4 * speech(4), -1, 1)
ALLOWED_RATES = ", ".join(f"{rate:,}" for rate in RATES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the recording is no whole WAV or FLAC file"),
        (b"ID3 or whatever it may be" * 400, "the recording is no whole WAV or FLAC file"),
        (file_of(speech(4), kind="FLAC")[:20_000], "the recording is no whole WAV or FLAC file"),
        (
            file_of(speech(4), kind="OGG", subtype="VORBIS"),
            "the recording is of the kind OGG; allowed are WAV and FLAC",
        ),
        (file_of(speech(4, 8000), 8000), f"the recording has 8,000 samples a second; allowed are {ALLOWED_RATES}"),
        (file_of(speech(4), 23_999), f"the recording has 23,999 samples a second; allowed are {ALLOWED_RATES}"),
        (file_of(speech(1)), "the recording has 1.0 s of speech; 3 to 30 s are allowed"),
        (file_of(speech(4))[:40_000], "the recording has 0.8 s of speech; 3 to 30 s are allowed"),
        (file_of(np.concatenate([silence(4), speech(1)])), "the recording has 1.2 s of speech; 3 to 30 s are allowed"),
        (file_of(silence(0)), "the recording has 0.0 s of speech; 3 to 30 s are allowed"),
        (file_of(speech(31)), "the recording has 31.0 s of speech; 3 to 30 s are allowed"),
        (file_of(speech(61)), "the recording is longer than 60 s; 3 to 30 s are allowed"),
        (
            file_of(silence(5)),
            "the recording is silent or too quiet: its loudest part is at -120 dBFS; at least -40 is needed",
        ),
        (
            file_of(0.002 * speech(5)),
            "the recording is silent or too quiet: its loudest part is at -66 dBFS; at least -40 is needed",
        ),
        (
            file_of(np.concatenate([speech(0.5), silence(3), speech(0.5)])),
            "the recording is almost all silence: 1.0 s of it are not; at least 1.5 s must be speech",
        ),
        (file_of(CLIPPED), "the recording is clipped: "),
        (file_of(np.stack([CLIPPED, 0 * CLIPPED], axis=1)), "the recording is clipped: "),
        (file_of(0.6 * CLIPPED), "the recording is clipped: "),  # and made quieter afterwards
        (file_of(np.where(np.arange(96_000) == 9, np.nan, speech(4)), subtype="FLOAT"), "the recording holds numbers"),
    ],
    ids=lambda value: value[14:40] if isinstance(value, str) else "",
)
def test_a_recording_of_no_use_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(ValueError) as failure:
        read_recording(data)
    assert str(failure.value).startswith(message)
    assert "\n" not in str(failure.value)


def test_quiet_speech_is_speech() -> None:
    assert read_recording(file_of(0.07 * speech(4))).seconds == pytest.approx(4.0, abs=0.03)


def test_speech_near_full_scale_is_not_clipped() -> None:
    loud = speech(4)
    loud *= 0.99 / np.abs(loud).max()
    assert read_recording(file_of(loud)).seconds > 3.9
    tone = (0.95 * np.sin(2 * np.pi * 50 * np.arange(192_000) / 48_000)).astype(np.float32)
    assert read_recording(file_of(tone, 48_000)).seconds > 3.9


def test_many_channels_of_a_long_file_are_never_held_at_once() -> None:
    """A header may promise anything: reading goes second by second, and stops."""
    header = bytearray(file_of(np.zeros((10, 2), np.float32)))
    header[40:44] = header[4:8] = (0xFFFFFFF0).to_bytes(4, "little")
    with pytest.raises(ValueError, match="speech"):
        read_recording(bytes(header))


def test_samples_may_come_without_a_file() -> None:
    recording = checked(speech(4), 24_000)
    assert isinstance(recording, Recording)
    assert recording.at(24_000) is recording.samples
