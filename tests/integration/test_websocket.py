"""A real server and a bare client over loopback."""

import asyncio
import gc
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.codec import encode
from protocol.errors import ERRORS, ErrorCode
from protocol.frames import FrameFlag, unpack_packets
from protocol.media import opus
from protocol.media.opus import OpusDecoder, trim
from server.app import Server
from server.audio.wire import opus_pre_skip
from server.gateway.websocket import WebSocketConnection
from tests.support.pools import GivingUp
from tests.support.server import BareClient, bare_client, running, running_server, url_of

TEXT = "你好，世界。Hello there, this is a test of 3 words."


async def spoken(client: BareClient, text: str, utterance: int = 1) -> s.Done:
    await client.say(utterance, text)
    return await client.until(s.Done)


class Never:
    """No message is of this type."""


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def closed(client: BareClient) -> tuple[s.Error | None, int]:
    """The error message and the close code."""
    with pytest.raises(ConnectionClosed) as over:
        await client.until(Never, acks=False)
    frame = over.value.rcvd
    assert frame is not None
    assert len(frame.reason.encode()) <= limits.MAX_CLOSE_REASON_BYTES
    errors = [message for message in client.messages if isinstance(message, s.Error)]
    return errors[-1] if errors else None, frame.code


async def test_speaks() -> None:
    async with running_server() as url, bare_client(url, open=c.Open()) as client:
        done = await spoken(client, TEXT)
        pcm = client.pcm(1)
        assert done.samples == len(pcm) // 2 > 24_000
        assert done.wire_digest == sha256(pcm).hexdigest()
        words = [word for m in client.messages if isinstance(m, s.Timing) for word in m.words]
        assert [TEXT[w.start : w.end] for w in words][:4] == list("你好世界")
        assert client.frames[-1].flags & FrameFlag.LAST


async def test_audio_comes_while_the_text_is_still_being_written() -> None:
    async with running_server() as url, bare_client(url, open=c.Open()) as client:
        await client.numbered(c.Start, utterance=1)
        await client.numbered(c.Text, text="你好，世")
        begin = await client.until(s.SegmentBegin)
        assert (begin.start, begin.end) == (0, 3)
        await client.numbered(c.Text, text="界。")
        await client.numbered(c.End)
        assert (await client.until(s.Done)).samples == len(client.pcm(1)) // 2


@pytest.mark.parametrize("rate", limits.SAMPLE_RATES_PCM)
async def test_every_pcm_rate(rate: int) -> None:
    async with running_server() as url, bare_client(url, open=c.Open(sample_rate=rate)) as client:
        done = await spoken(client, "你好，世界。")
        assert done.samples == len(client.pcm(1)) // 2
        assert done.samples / rate == pytest.approx(0.48 + 0.12 + 0.24, abs=0.002)


@pytest.mark.parametrize("rate", limits.SAMPLE_RATES_OPUS)
async def test_every_opus_rate(rate: int) -> None:
    async with running_server() as url, bare_client(url, open=c.Open(sample_rate=rate, format="opus")) as client:
        opened = client.messages[0]
        done = await spoken(client, "你好，世界。")
        decoder = OpusDecoder(rate)
        coded = b"".join(decoder.decode(p) for f in client.frames for p in unpack_packets(f.payload))
        assert len(trim(coded, 0, opened.pre_skip, done.samples)) == 2 * done.samples
        payloads = b"".join(bytes(f.payload) for f in client.frames)
        assert done.wire_digest == sha256(payloads).hexdigest()


async def test_same_text_same_digest_in_every_session_and_format() -> None:
    digests = set()
    async with running_server() as url:
        for open_ in (c.Open(), c.Open(), c.Open(format="opus"), c.Open(frame_ms=5)):
            async with bare_client(url, open=open_) as client:
                digests.add((await spoken(client, TEXT)).digest)
    assert len(digests) == 1


async def test_block_mode_says_the_same() -> None:
    async with running_server() as url:
        async with bare_client(url, open=c.Open(mode="stream")) as client:
            streamed = await spoken(client, TEXT)
        async with bare_client(url, open=c.Open(mode="block")) as client:
            block = await spoken(client, TEXT)
            assert max(frame.count for frame in client.frames) == 4_800
    assert streamed.digest == block.digest


async def test_eight_at_once_each_hear_their_own() -> None:
    """Nothing about one session is shared, and pongs and health checks come in time meanwhile."""

    async def one(url: str, k: int) -> bytes:
        async with bare_client(url, open=c.Open(voice="tone-low" if k % 2 else "tone-high")) as client:
            await spoken(client, "山高水远天蓝云白风轻。" * k * 4)
            return client.pcm(1)

    async with running_server(engine_options={"step_delay_ms": 1}) as url:
        alone = [await one(url, k) for k in range(1, 9)]
        async with bare_client(url, open=c.Open()) as pinging:

            async def longest_pong() -> float:
                worst = 0.0
                while True:
                    loop = asyncio.get_running_loop()
                    start = loop.time()
                    await pinging.send(c.Ping(7))
                    await pinging.until(s.Pong)
                    worst = max(worst, loop.time() - start)
                    pongs.append(worst)
                    await asyncio.sleep(0.05)

            pongs: list[float] = []
            watch = asyncio.ensure_future(longest_pong())
            together = await asyncio.gather(*(one(url, k) for k in range(1, 9)))
            watch.cancel()
    assert together == alone
    assert len(set(together)) == 8
    assert max(pongs) < 1.5


async def test_opus_is_looked_for_once_before_the_first_client(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[threading.Thread] = []

    def find() -> str:
        searches.append(threading.current_thread())
        raise opus.OpusUnavailableError("none here")

    monkeypatch.setattr(opus, "_loaded", None)
    monkeypatch.setattr(opus, "_unavailable", "")
    monkeypatch.setattr(opus, "find_libopus", find)
    monkeypatch.delitem(sys.modules, "opuslib", raising=False)
    opus_pre_skip.cache_clear()
    with structlog.testing.capture_logs() as logs:
        async with running_server() as url:
            for _ in range(2):
                async with bare_client(url) as client:
                    await client.send(c.Open(format="opus"))
                    error, _ = await closed(client)
                    assert error is not None
                    assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, "open.format")
            async with bare_client(url, open=c.Open()) as client:
                assert (await spoken(client, "你好。")).samples
    assert len(searches) == 1
    assert searches[0] is not threading.current_thread()
    assert [line["reason"] for line in logs if line["log_level"] == "warning"] == ["none here"]


# ---- bad input ----

RAW: list[tuple[str, str | bytes, ErrorCode, str | None]] = [
    ("not JSON", "{", ErrorCode.BAD_JSON, None),
    ("an array", "[]", ErrorCode.BAD_JSON, None),
    ("unknown type", '{"type":"speak"}', ErrorCode.UNKNOWN_TYPE, "type"),
    ("reserved", '{"type":"cue","seq":1}', ErrorCode.UNSUPPORTED, "type"),
    ("binary", b"\x00\x01", ErrorCode.BINARY, None),
    ("misplaced", '{"type":"text","seq":1,"text":"a"}', ErrorCode.UNEXPECTED, "type"),
    ("wrong type", '{"type":"open","speed":"fast"}', ErrorCode.BAD_MESSAGE, "open.speed"),
    ("out of range", '{"type":"open","speed":9}', ErrorCode.BAD_MESSAGE, "open.speed"),
    ("unknown voice", '{"type":"open","voice":"x"}', ErrorCode.UNKNOWN_VOICE, "open.voice"),
    ("unknown format", '{"type":"open","format":"mp3"}', ErrorCode.BAD_MESSAGE, "open.format"),
    ("unknown rate", '{"type":"open","sample_rate":11025}', ErrorCode.BAD_MESSAGE, "open.sample_rate"),
]


@pytest.mark.parametrize(("data", "code", "field"), [row[1:] for row in RAW], ids=[row[0] for row in RAW])
async def test_bad_input_is_told_and_closed(data: str | bytes, code: ErrorCode, field: str | None) -> None:
    async with running_server() as url:
        with structlog.testing.capture_logs() as logs:
            async with bare_client(url) as client:
                await client.socket.send(data)
                error, close = await closed(client)
        assert error is not None
        assert (error.code, error.field) == (code, field)
        assert close == ERRORS[code].close
        assert not [line for line in logs if "exc_info" in line or line["log_level"] == "error"]


async def test_invalid_utf8_closes_1007() -> None:
    async with running_server() as url, bare_client(url) as client:
        await client.socket.send(b'{"type":"open","voice":"\xff"}', text=True)
        assert (await closed(client))[1] == 1007


async def test_too_long_a_message_closes_1009() -> None:
    async with running_server() as url, bare_client(url) as client:
        await client.socket.send("a" * (limits.MAX_MESSAGE_BYTES + 1))
        assert (await closed(client))[1] == 1009


async def test_too_long_a_text_is_told() -> None:
    async with running_server() as url, bare_client(url, open=c.Open()) as client:
        await client.numbered(c.Start, utterance=1)
        await client.socket.send(json.dumps({"type": "text", "seq": 2, "text": "a" * 16_385}))
        error, _ = await closed(client)
        assert error is not None
        assert error.field == "text.text"
        assert "16384" in error.message


async def test_a_long_reason_is_told_in_full_and_cut_for_the_close() -> None:
    """The close reason has at most 123 bytes of whole characters."""
    async with running_server() as url, bare_client(url) as client:
        await client.socket.send(json.dumps({"type": "open", "voice": "没有这个声音" * 20}))
        error, code = await closed(client)
        assert error is not None
        assert "没有这个声音" * 20 in error.message
        assert code == 1008


async def test_silence_is_closed_with_an_explanation() -> None:
    async with running_server(idle_timeout_s=1.0) as url, bare_client(url, open=c.Open()) as client:
        error, code = await closed(client)
        assert error is not None
        assert error.code == ErrorCode.IDLE_TIMEOUT
        assert code == 1008


async def test_others_are_not_disturbed_by_a_bad_client() -> None:
    async with running_server(engine_options={"step_delay_ms": 5}) as url, bare_client(url, open=c.Open()) as good:
        await good.say(1, TEXT * 5)
        for _, data, _, _ in RAW:
            async with bare_client(url) as bad:
                await bad.socket.send(data)
                await closed(bad)
        done = await good.until(s.Done)
        assert done.samples == len(good.pcm(1)) // 2


# ---- engines that fail ----


@pytest.mark.parametrize("action", ["fail", "crash", "oom", "nan", "silent", "repeat"])
async def test_what_an_engine_fails_at_is_spoken_otherwise_and_told(action: str) -> None:
    script = [{"match": "坏", "at": 0 if action == "silent" else 1, "action": action}]
    text = "你好，世界。坏的坏的坏的。再见。"
    async with running_server() as url, bare_client(url, open=c.Open()) as client:
        undisturbed = await spoken(client, text)
        good = client.pcm(1)
    async with running_server(engine_options={"script": script}) as url:
        async with bare_client(url, open=c.Open()) as client, bare_client(url, open=c.Open()) as other:
            done = await spoken(client, text)
            assert done.samples == len(client.pcm(1)) // 2 > undisturbed.samples
            assert client.pcm(1).startswith(good[: 2 * 5 * 2_880])
            ends = [m for m in client.messages if isinstance(m, s.SegmentEnd)]
            assert [end.degraded for end in ends] == [False, False, True, False]
            assert all(bool(end.reason) == end.degraded for end in ends)
            assert (await spoken(other, "你好。")).samples > 0


async def test_what_cannot_be_rendered_is_an_error_never_a_short_success() -> None:
    async with running() as server:
        GivingUp(server.pool, "坏", 1)
        url = url_of(server)
        async with bare_client(url, open=c.Open()) as client, bare_client(url, open=c.Open()) as other:
            await client.say(1, "你好，世界。坏的坏的坏的。再见。")
            error, code = await closed(client)
            assert error is not None
            assert error.code == ErrorCode.ENGINE_FAILED
            assert "on purpose" in error.message
            assert code == 1011
            assert not [m for m in client.messages if isinstance(m, s.Done)]
            assert (await spoken(other, "你好。")).samples > 0


async def test_a_stalled_step_holds_up_nobody_else() -> None:
    script = [{"match": "慢", "at": 1, "action": "stall", "ms": 1500}]
    async with running_server(engine_options={"script": script, "batch_max": 1}, engine_threads=2) as url:
        async with bare_client(url, open=c.Open()) as slow, bare_client(url, open=c.Open()) as quick:
            await slow.say(1, "慢慢慢慢慢慢慢。")
            await slow.until(s.SegmentBegin)
            async with asyncio.timeout(1.0):
                await spoken(quick, "你好。")
            await slow.until(s.Done)


async def test_a_fault_of_our_own_is_told_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of our own")

    async with running_server() as url, bare_client(url, open=c.Open()) as client:
        monkeypatch.setattr("server.session.utterance.Utterance.next_work", broken)
        with structlog.testing.capture_logs() as logs:
            await client.say(1, "你好。")
            error, code = await closed(client)
        assert error is not None
        assert (error.code, code) == (ErrorCode.INTERNAL, 1011)
        assert "fault" not in error.message
        assert [line for line in logs if line["log_level"] == "error"]


# ---- clients that leave or do not read ----


async def test_work_of_clients_who_vanish_is_freed() -> None:
    """The engine is idle soon after, nothing leaks."""
    async with running(engine_options={"step_delay_ms": 2}, resume_ttl_s=1) as server:
        url = url_of(server)
        async with bare_client(url, open=c.Open()) as client:
            await spoken(client, "你好。")
        gc.collect()
        before = descriptors()
        for _ in range(20):
            async with connect(url) as socket:
                client = BareClient(socket)
                await client.send(c.Open())
                await client.say(1, TEXT * 100)
                await client.until(s.SegmentBegin)
                socket.transport.abort()
        async with asyncio.timeout(5):
            while server.sessions.taken or server.pool is None or server.pool.capacity().waiting:
                await asyncio.sleep(0.02)
        async with bare_client(url, open=c.Open()) as client:
            await spoken(client, "你好。")
        await asyncio.sleep(0.1)
        assert descriptors() <= before + 3


async def test_a_client_that_does_not_ack_gets_a_bounded_amount_and_is_told() -> None:
    async with running_server(stall_timeout_s=1.0) as url, bare_client(url, open=c.Open(max_lead_ms=None)) as client:
        await client.say(1, "你好世界" * 2_000)
        error, _ = await closed(client)
        assert error is not None
        assert error.code == ErrorCode.CLIENT_STALLED
        assert sum(len(frame.payload) for frame in client.frames) <= limits.MAX_UNACKED_BYTES


# ---- cancel, stop, keys, load ----


async def test_stop_before_the_first_sound() -> None:
    """Cancel works before any audio, and the next text is spoken alone."""
    async with running_server(engine_options={"step_delay_ms": 20}) as url:
        async with bare_client(url, open=c.Open()) as client:
            alone = (await spoken(client, "好的。")).samples
            await client.say(2, "一二三四五六七八九十。" * 30)
            await client.numbered(c.Cancel)
            await client.say(3, "好的。")
            cancelled = await client.until(s.Cancelled)
            assert cancelled.sample <= 12_000
            done = await client.until(s.Done)
            assert (done.utterance, done.samples) == (3, alone)
            await client.numbered(c.Cancel)
            await client.numbered(c.Cancel)
            await client.send(c.Ping(1))
            await client.until(s.Pong)


async def test_stopping_tells_clients_and_ends_in_time() -> None:
    async with running() as server, bare_client(url_of(server), open=c.Open()) as client:
        await client.say(1, TEXT * 200)
        await client.until(s.SegmentBegin)
        loop = asyncio.get_running_loop()
        start = loop.time()
        stopping = asyncio.ensure_future(server.stop())
        await client.until(s.GoAway)
        _, code = await closed(client)
        await stopping
        assert code == 1012
        assert loop.time() - start < 4


async def test_stopping_ends_in_time_although_a_client_does_not_read() -> None:
    async with running() as server, connect(url_of(server)) as socket:
        client = BareClient(socket)
        await client.send(c.Open(max_lead_ms=None))
        await client.say(1, TEXT * 200)
        await client.until(s.SegmentBegin)
        socket.transport.pause_reading()
        loop = asyncio.get_running_loop()
        start = loop.time()
        await server.stop()
        assert loop.time() - start < 5
        socket.transport.abort()


async def test_beyond_max_sessions_the_answer_is_busy() -> None:
    async with running(max_sessions=1) as server:
        url = url_of(server)
        async with bare_client(url, open=c.Open()), bare_client(url) as second:
            await second.send(c.Open())
            busy = await second.receive()
            assert isinstance(busy, s.Busy)
            assert busy.retry_after_ms > 0
            assert (await closed(second))[1] == 1013
            assert server.sessions.taken == 1
        async with asyncio.timeout(5):
            while server.sessions.taken:
                await asyncio.sleep(0.01)
        async with bare_client(url, open=c.Open()):
            assert b"cosystream_sessions_open 1.0" in server.metrics.render()


async def test_who_has_no_key_takes_nobodys_place(tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"alice {sha256(b'secret').hexdigest()}\n")
    async with running_server(keys=keys, max_sessions=1) as url, AsyncExitStack() as stack:
        strangers = [await stack.enter_async_context(bare_client(url)) for _ in range(4)]
        await strangers[0].send(c.Open(api_key="wrong"))
        await strangers[1].send(c.Ping(1))
        await strangers[1].until(s.Pong)
        async with bare_client(url, open=c.Open(api_key="secret")) as client:
            assert (await spoken(client, "你好。")).samples


class FakeConnection:
    """What the shell needs of a connection: `incoming` is read, `send` notes what is sent."""

    remote_address = request = None

    def __init__(self, incoming: AsyncIterator[str]) -> None:
        self.incoming = incoming
        self.sent: list[str | bytes] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.closed_with: int | None = None

    async def recv(self) -> str:
        return await anext(self.incoming)

    async def send(self, data: str | bytes) -> None:
        self.sent.append(data)
        if isinstance(data, str) and '"error"' in data:
            await asyncio.sleep(0.05)  # a slow network
        await self.may_send.wait()
        await asyncio.sleep(0)

    async def close(self, code: int, reason: str) -> None:
        self.closed_with = code


def session_on(connection: FakeConnection, server: Server) -> WebSocketConnection:
    assert server.pool is not None
    assert server.policy is not None
    socket: Any = connection
    return WebSocketConnection(socket, server.pool, server.policy, lambda _: "ann", server.sessions)


async def test_a_peer_that_asks_and_does_not_read_is_not_read_either() -> None:
    taken = 0

    async def pings() -> AsyncIterator[str]:
        nonlocal taken
        yield encode(c.Open())
        for number in range(1_000):
            taken += 1
            yield encode(c.Ping(number))
        await asyncio.Event().wait()

    async with running() as server:
        connection = FakeConnection(pings())
        connection.may_send.clear()
        running_session = asyncio.ensure_future(session_on(connection, server).run())
        await asyncio.sleep(0.1)
        assert 10 < taken < 100
        connection.may_send.set()
        async with asyncio.timeout(5):
            while len(connection.sent) < 1_001:
                await asyncio.sleep(0.01)
        assert taken == 1_000
        running_session.cancel()
        await asyncio.gather(running_session, return_exceptions=True)


async def test_nothing_follows_an_error() -> None:
    """Not even the audio that was on its way."""

    async def a_mistake_in_the_middle() -> AsyncIterator[str]:
        for message in (c.Open(max_lead_ms=None), c.Start(1, 1), c.Text(2, TEXT * 50), c.End(3)):
            yield encode(message)
        async with asyncio.timeout(5):
            while len(connection.sent) < 10:
                await asyncio.sleep(0)
        yield "{"

    async with running() as server:
        connection = FakeConnection(a_mistake_in_the_middle())
        await session_on(connection, server).run()
    assert any(isinstance(data, bytes) for data in connection.sent)
    assert "bad_json" in str(connection.sent[-1])
    assert connection.closed_with == 1007


async def test_keys(tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"alice {sha256(b'secret').hexdigest()}\n")
    keys.chmod(0o600)
    async with running_server(keys=keys) as url:
        async with bare_client(url, open=c.Open(api_key="secret")) as client:
            assert (await spoken(client, "你好。")).samples
        headers = {"Authorization": "bearer secret"}
        async with bare_client(url, open=c.Open(), additional_headers=headers) as client:
            assert (await spoken(client, "你好。")).samples
        async with bare_client(url) as client:
            await client.send(c.Open(api_key="wrong"))
            error, code = await closed(client)
            assert error is not None
            assert error.code == ErrorCode.UNAUTHORIZED
            assert code == 1008
