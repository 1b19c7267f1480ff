"""`--instruct` and `--seed`, as a user runs them: what reaches the server, what is kept, what is refused."""

import asyncio
from pathlib import Path

from client.cli.exit_codes import ExitCode
from client.cli.state import read_state
from protocol import client_messages as c
from tests.support.client_process import Command, run
from tests.support.fake_server import Behaviour, fake_server
from tests.support.server import running_server

TEXT = "".join(f"Sentence number {number} of it.\n" for number in range(12))
MANNER = ("wie ein Bär\nin the woods", 4_294_967_295)
ASKED = ("--instruct", MANNER[0], "--seed", str(MANNER[1]))


def samples_in(state: Path) -> int:
    return read_state(state).samples if state.exists() else 0


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_every_utterance_is_in_this_manner_also_when_another_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT, encoding="utf-8")
    async with fake_server(Behaviour(frame_delay_s=0.002, utterance_chars=100)) as server:
        command = await Command.start(tmp_path, "stream", "book.txt", *ASKED, "-o", "out.wav", url=server.url)
        async with asyncio.timeout(15):
            while samples_in(tmp_path / "out.wav.state") < 20_000:
                await asyncio.sleep(0.005)
        command.process.kill()
        await command.end()
        server.behaviour.frame_delay_s = 0
        ended = await run(tmp_path, "stream", "--resume-from", "out.wav", url=server.url)
        assert ended.code == 0, ended.err
        assert len(server.sessions) == 2
        assert len(server.sessions[1].utterances) > 1
        assert {(start.instruct, start.seed) for start in server.of(c.Start)} == {MANNER}


async def test_an_engine_that_follows_no_instruction_says_so_in_a_line(tmp_path: Path) -> None:
    """Nothing is left that would have to be gone on with, or looks like sound. Seeds it knows."""
    (tmp_path / "book.txt").write_text(TEXT, encoding="utf-8")
    raw = ("-o", "-", "--container", "raw")
    async with running_server() as url:
        *refused, one, other = await asyncio.gather(
            run(tmp_path, "say", "hi", "--instruct", "whisper", "-o", "a.wav", url=url),
            run(tmp_path, "stream", "book.txt", "--instruct", "whisper", "-o", "b.wav", "--captions", "b.vtt", url=url),
            run(tmp_path, "say", "hi", "--seed", "1", *raw, url=url),
            run(tmp_path, "say", "hi", "--seed", "2", *raw, url=url),
        )
    for ended in refused:
        assert (ended.code, ended.out) == (ExitCode.SERVER, b"")
        assert ended.err == "error: the server reports unsupported: the engine tone has no instruct [--instruct].\n"
    assert await asyncio.to_thread(names, tmp_path) == ["book.txt"]
    assert one.code == other.code == 0
    assert one.out != other.out
