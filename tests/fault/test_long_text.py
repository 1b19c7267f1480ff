"""The memory of both ends does not grow with the text. `bench.longtext` does the same with a million characters."""

from bench._common import server_process
from bench._longtext_run import Spoken, speak
from bench._longtext_texts import english, longest_sentences, text_of
from protocol.limits import MAX_TEXT_CHARS

SHORT = 5_000
LONG = 60_000
FILL = 20_000
MIB = 1.25
"""Growth that is none. 55,000 characters more are 26 MiB of audio and 9,500 words, which take 2 MiB where each is kept
as what the server tells of it.
"""


def test_memory_does_not_grow_with_the_text() -> None:
    with server_process("--engine", "tone", "--fallback-engine", "none", "--dead-letters", "off") as server:

        def spoken(characters: int, seed: int) -> Spoken:
            return speak(server, text_of(characters, english, seed), "pcm", "--speed", "2")

        speak(server, longest_sentences(english), "pcm", "--speed", "2")
        spoken(FILL, 1)
        short, long = spoken(SHORT, 2), spoken(LONG, 3)
    assert LONG > 3 * MAX_TEXT_CHARS, "more than one message"
    assert long.audio_s > 10 * short.audio_s
    assert long.server_peak_mb - short.server_peak_mb < MIB
    assert long.client_peak_mb - short.client_peak_mb < MIB
