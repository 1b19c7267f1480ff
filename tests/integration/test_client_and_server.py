"""The client against the real server with the tone engine: what each hears of the other is the same."""

import asyncio
import hashlib
import wave
from pathlib import Path
from typing import Literal

import pytest
import soundfile

import client
from protocol import server_messages as s
from tests.support.client_process import Command, run
from tests.support.server import running_server

TEXT = "第一句。第二句。 And a third one, in English. "


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
async def test_pcm_at_every_rate_is_proven_whole(rate: int) -> None:
    async with running_server() as url, client.connect(url, sample_rate=rate) as session:
        utterance = await session.start()
        await utterance.write(TEXT)
        await utterance.silence(550)
        await utterance.write("好。")
        await utterance.end()
        at = 0
        async for audio in utterance.audio():
            assert (audio.first_sample, len(audio.pcm)) == (at, 2 * audio.count)
            at = audio.end_sample
        assert isinstance(utterance.result, s.Done)
        assert at == utterance.result.samples > rate


@pytest.mark.parametrize("rate", [8_000, 12_000, 16_000, 24_000, 48_000])
async def test_opus_at_every_rate_has_the_exact_length(rate: int) -> None:
    async with running_server() as url:
        async with client.connect(url, sample_rate=rate, format="opus") as session:
            coded = sum([audio.count async for audio in session.speak(TEXT)])
        async with client.connect(url, sample_rate=rate) if rate != 12_000 else client.connect(url) as session:
            plain = sum([audio.count async for audio in session.speak(TEXT)])
    assert coded == (plain // 2 if rate == 12_000 else plain)


async def test_the_cut_of_the_text_changes_nothing() -> None:
    digests: list[str] = []
    async with running_server() as url:
        for size in (1, 7, 1_000):
            async with client.connect(url) as session:
                pieces = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]
                digest = hashlib.sha256()
                async for audio in session.speak(pieces):
                    digest.update(audio.pcm)
                digests.append(digest.hexdigest())
    assert len(set(digests)) == 1


async def test_several_utterances_cancel_and_go_on() -> None:
    async with running_server() as url, client.connect(url, max_lead_ms=1_000) as session:
        first, second = await session.start(), None
        await first.write("x. " * 400)
        async for item in first:
            if isinstance(item, client.Audio) and second is None and item.first_sample > 12_000:
                await first.cancel(12_000)
                second = await session.start()
                await second.write("好的。")
                await second.end()
        assert isinstance(first.result, s.Cancelled)
        assert 0 < first.result.heard_text_end < 1_200
        assert second is not None
        assert sum([audio.count async for audio in second.audio()]) > 0
        assert isinstance(second.result, s.Done)


@pytest.mark.parametrize("format_", ["pcm", "opus"])
async def test_an_utterance_is_cancelled_while_its_end_is_played(format_: Literal["pcm", "opus"]) -> None:
    async with running_server() as url, client.connect(url, max_lead_ms=4_000, format=format_) as session:
        utterance = await session.start()
        await utterance.write("一二三四五六七八。")
        await utterance.end()
        utterance.played(0, 0)
        words = [word async for event in utterance.events() if isinstance(event, s.Timing) for word in event.words]
        utterance.played(words[2].end_sample, 100)
        await utterance.cancel()
        async with asyncio.timeout(2):
            while not isinstance(result := utterance.result, s.Cancelled):
                await asyncio.sleep(0.01)
        assert result.heard_text_end == words[2].end
        assert [audio async for audio in session.speak("好。")]


async def test_a_queue_of_utterances_is_played_through() -> None:
    async with running_server() as url, client.connect(url, max_lead_ms=300) as session:
        utterances = []
        for n in range(4):
            utterance = await session.start()
            await utterance.write(f"Number {n} of four.")
            await utterance.end()
            utterances.append(utterance)
        async with asyncio.timeout(20):
            lengths = [sum([audio.count async for audio in utterance.audio()]) for utterance in utterances]
    assert len(set(lengths)) == 1
    assert lengths[0] > 0


async def test_server_errors_name_the_field() -> None:
    async with running_server() as url:
        with pytest.raises(client.ServerError, match=r"open\.voice") as caught:
            await client.connect(url, voice="no-such")
        assert (caught.value.code, caught.value.field) == ("unknown_voice", "open.voice")


async def test_a_server_that_stops_is_told_apart_from_one_that_breaks() -> None:
    async with running_server() as url:
        session = await client.connect(url, reconnect_s=1.0)
        utterance = await session.start()
        reading = asyncio.create_task(anext(utterance))
        await asyncio.sleep(0.1)
    with pytest.raises(client.ServerLost, match="stopped or restarts"):
        await reading
    await session.close()


async def test_files_state_their_true_length(tmp_path: Path) -> None:
    async with running_server() as url:
        await asyncio.gather(
            *(files_state_their_true_length(tmp_path, text, url) for text in ("第一句。第二句。", "好。"))
        )


async def files_state_their_true_length(folder: Path, text: str, url: str) -> None:
    async def length(suffix: str) -> float:
        path = folder / f"{len(text)}{suffix}"
        rate = () if suffix == ".opus" else ("--sample-rate", "22050")
        ended = await run(folder, "say", text, "-o", path.name, *rate, url=url)
        assert ended.code == 0, ended.err
        data = await asyncio.to_thread(path.read_bytes)
        if suffix == ".pcm":
            assert len(data) % 2 == 0
            return len(data) / 2 / 22_050
        if suffix == ".wav":
            assert int.from_bytes(data[4:8], "little") == len(data) - 8
            with wave.open(str(path)) as file:
                return int(file.getnframes()) / 22_050
        decoded, decoded_rate = soundfile.read(path)
        last = data.rindex(b"OggS")
        assert data[last + 5] & 4
        return len(decoded) / float(decoded_rate)

    pcm, wav, opus = await asyncio.gather(*map(length, (".pcm", ".wav", ".opus")))
    assert pcm == wav > 0
    assert abs(opus - pcm) < 0.02


async def test_a_writer_s_speed_is_heard(tmp_path: Path) -> None:
    async with running_server() as url:
        command = await Command.start(
            tmp_path, "stream", "-", "-o", "a.wav", "--rate", "60", "--captions", "a.vtt", "--stats", "s.json", url=url
        )
        ended = await command.end(TEXT.encode())
    assert ended.code == 0, ended.err
    assert (tmp_path / "a.vtt").read_text(encoding="utf-8").count("-->") == 3


async def test_voices_of_the_real_server(tmp_path: Path) -> None:
    async with running_server() as url:
        ended = await run(tmp_path, "voices", url=url)
    assert ended.code == 0, ended.err
    assert "tone-low" in ended.out.decode()


async def test_utterances_in_a_row_with_the_smallest_lead() -> None:
    """The server must learn that the end of each was heard, or the next one never begins."""
    await asyncio.gather(*(utterances_in_a_row(*each) for each in (("opus", 60.0), ("opus", 20.0), ("pcm", 90.0))))


async def utterances_in_a_row(format_: Literal["pcm", "opus"], frame_ms: float) -> None:
    async with (
        running_server() as url,
        client.connect(url, format=format_, frame_ms=frame_ms, max_lead_ms=100) as session,
        asyncio.timeout(20),
    ):
        lengths = [sum([audio.count async for audio in session.speak("hi.")]) for _ in range(3)]
    assert len(set(lengths)) == 1
