"""One server and one recogniser for the whole suite; everything said and heard is kept."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tests.quality.listening import Speech, server_in_thread, speak
from tests.quality.recogniser import Recogniser


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A real server with the embedded voices."""
    with server_in_thread(engine="embedded") as url:
        yield url


@pytest.fixture(scope="session")
def say(server_url: str) -> Callable[[str], Speech]:
    """Has a text said with everything at its default; each text once."""

    @lru_cache(maxsize=256)
    def spoken(text: str) -> Speech:
        return speak(server_url, text)

    return spoken


@pytest.fixture(scope="session")
def recogniser(request: pytest.FixtureRequest) -> Recogniser:
    """Whisper. Its model is put together in pytest's cache folder."""
    cache = request.config.cache
    assert cache is not None
    return Recogniser(Path(cache.mkdir("whisper-base")))


@pytest.fixture(scope="session")
def hear(say: Callable[[str], Speech], recogniser: Recogniser) -> Callable[[str, str], str]:
    """Has a text said and gives what the recogniser understood; each text once. The language is `zh` or `en`."""

    @lru_cache(maxsize=256)
    def heard(text: str, language: str) -> str:
        speech = say(text)
        return recogniser.text(speech.pcm, speech.rate, "en" if language == "en" else "zh")

    return heard
