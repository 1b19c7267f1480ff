"""How fast long texts are spoken: block mode against stream mode, and what the audio cache saves."""

from statistics import median
from typing import Final

from bench._common import Report, ServerProcess, run, server_process
from bench._longtext_run import speak
from bench._longtext_texts import both, chinese, english, longest_sentences, text_of
from bench._session import Session, open_session
from protocol import client_messages as c

BLOCK_TIMES: Final = 1.3
BLOCK_CHARACTERS: Final = {"zh": 350, "en": 1_800}  # three seconds or so
LANGUAGES: Final = {"zh": chinese, "en": english}
SAVED_PERCENT: Final = 25.0
REPEATED: Final = 0.3
CACHE_CHARACTERS: Final = 2_000
CACHE_MB: Final = 32
ENGINE: Final = ("cosystream_step_seconds_sum", "cosystream_engine_audio_seconds_total")
ANNOUNCEMENTS: Final = 50
ANNOUNCED_MS: Final = 5.0
ANNOUNCEMENT: Final = "The train to the harbor leaves from platform nine in four minutes."
ALONE: Final = ("--engine", "embedded", "--context-cache-mb", "0")  # no text is easier the second time


def block_mode(report: Report, pairs: int, *, strict: bool) -> None:
    """The same text in either mode, one after the other in turns; texts differ from pair to pair."""
    with server_process(*ALONE, "--audio-cache-mb", "0") as server:
        for mode in ("stream", "block"):
            speak(server, longest_sentences(both) + text_of(200, english), "pcm", "--mode", mode)
        for language, characters in BLOCK_CHARACTERS.items():
            rates: dict[str, list[float]] = {"stream": [], "block": []}
            for pair in range(pairs):
                text = text_of(characters, LANGUAGES[language], seed=pair)
                for mode in ("stream", "block") if pair % 2 else ("block", "stream"):
                    spoken = speak(server, text, "pcm", "--mode", mode)
                    rates[mode].append(spoken.audio_s / spoken.seconds)
            times = [block / stream for block, stream in zip(rates["block"], rates["stream"], strict=True)]
            least = BLOCK_TIMES if strict else None
            report.add(f"block mode over stream mode, {language}", median(times), "times", least=least)
            for mode, found in rates.items():
                report.add(f"  {mode}: audio", median(found), "s a second")


def audio_cache(report: Report, rounds: int, share: float = 1.0, *, strict: bool) -> None:
    """Engine time of a text in which sentences come again, with the cache and without; then an announcement that comes
    again and again.
    """
    saved: list[tuple[float, ...]] = []
    with (
        server_process(*ALONE, "--audio-cache-mb", str(CACHE_MB)) as having,
        server_process(*ALONE, "--audio-cache-mb", "0") as lacking,
    ):
        for server in (having, lacking):
            speak(server, longest_sentences(both))
        for seed in range(rounds):
            text = text_of(round(share * CACHE_CHARACTERS), both, seed, repeated=REPEATED)
            order = (having, lacking) if seed % 2 else (lacking, having)
            took = {server.port: _engine_s(server, text) for server in order}
            saved.append(
                tuple(100 * (1 - one / other) for one, other in zip(took[having.port], took[lacking.port], strict=True))
            )
        times = run(_announced(having))
    least = SAVED_PERCENT if strict else None
    report.add(
        f"{REPEATED:.0%} of the sentences come again: engine time that the audio cache saves",
        median(time for time, _ in saved), "%", least=least,
    )  # fmt: skip
    report.add("  audio that the engine need not make", median(audio for _, audio in saved), "%", least=least)
    limit = ANNOUNCED_MS if strict else None
    report.spread(f"an announcement that came before: first audio ({len(times)} times)", times, "ms", limit, limit)


def _engine_s(server: ServerProcess, text: str) -> tuple[float, ...]:
    """What a text takes of the engine: seconds at work, and seconds of audio."""
    before = [server.metric(name) for name in ENGINE]
    speak(server, text)
    return tuple(server.metric(name) - was for name, was in zip(ENGINE, before, strict=True))


async def _announced(server: ServerProcess) -> list[float]:
    """From sending the text until its first audio is there, ms; the first time is left out."""
    async with open_session(server.url) as session:
        return [await _first_ms(session) for _ in range(ANNOUNCEMENTS + 1)][1:]


async def _first_ms(session: Session) -> float:
    await session.start()
    sent = await session.send(c.Text, text=ANNOUNCEMENT)
    await session.send(c.End)
    return 1000 * ((await session.hear()).first_audio - sent)
