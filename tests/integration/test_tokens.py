"""Tokens in use: made over HTTP, taken over HTTP and on the WebSocket, and refused in words that a page can read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

import client
from protocol import SUBPROTOCOL, TOKEN_SUBPROTOCOL
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server, encode
from server.app import Server
from server.gateway.auth import ANONYMOUS, WRONG_KEY, Principal, hash_key
from server.gateway.token_routes import MAX_BODY_BYTES
from server.gateway.tokens import Asked, Grant, make
from tests.support.raw_http import Answer, ask, close_code, frame, get, handshake, talk
from tests.support.resumer import Resumer
from tests.support.server import running, url_of

KEY = "Authorization: Bearer k"
APP = "https://app.example"
OPEN = c.Open()


@dataclass
class Keyed:
    """A server with the keys `k` of ann and `b` of bob."""

    server: Server

    @property
    def port(self) -> int:
        assert self.server.listener is not None
        return self.server.listener.port

    async def ask(self, path: str, *headers: str, method: str = "POST", body: bytes = b"") -> Answer:
        return await ask(self.port, get(path, *headers, method=method, body=body), method)

    def token(self, principal: str = "ann", **asked: Any) -> str:
        """One that the server would make."""
        return self.server.principals.make_token(Principal(principal), Asked(**asked))[0]

    def expired(self) -> str:
        """One that was good a second ago."""
        principals = self.server.principals
        return make(principals._secret, Grant("ann", ("speak",), int(principals._now()) - 1))

    async def offer(
        self, *subprotocols: str, open: c.Open | c.Resume | None = OPEN, **options: Any
    ) -> tuple[Any, tuple[int, str] | None]:
        """What a page hears first that offers these beside ours, and the close after it."""
        offered = [Subprotocol(each) for each in (SUBPROTOCOL, *subprotocols)]
        async with connect(url_of(self.server), subprotocols=offered, compression=None, **options) as socket:
            assert socket.subprotocol == SUBPROTOCOL
            if open is not None:
                await socket.send(encode(open))
            async with asyncio.timeout(10):
                told = decode_server(str(await socket.recv()))
                if isinstance(told, s.Opened):
                    return told, None
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
            assert closed.value.rcvd is not None
            return told, (closed.value.rcvd.code, closed.value.rcvd.reason)


@asynccontextmanager
async def keyed(folder: Path, **settings: Any) -> AsyncIterator[Keyed]:
    file = folder / "keys"
    file.write_text(f"ann {hash_key('k')}\nbob {hash_key('b')}\n")
    async with running(keys=file, **settings) as server:
        yield Keyed(server)


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


# ---- making them ----


async def test_whoever_has_a_key_gets_a_token(tmp_path: Path) -> None:
    async with keyed(tmp_path) as at:
        answer = await at.ask("/v1/tokens", KEY)
        assert answer.status == 200
        assert answer.headers["cache-control"] == "no-store"
        made = orjson.loads(answer.body)
        now = at.server.principals._now()
        assert now + 295 < made.pop("expires_at") <= now + 300
        token = made.pop("token")
        assert made == {
            "subprotocol": TOKEN_SUBPROTOCOL + token,
            "ttl_s": 300,
            "scope": ["speak"],
            "origin": None,
            "principal": "ann",
        }
        assert at.server.principals.of_token(token, ("speak",), []) == Principal("ann")
        body = orjson.dumps({"ttl_s": 10, "scope": ["voices"], "origin": "https://App.example"})
        made = orjson.loads((await at.ask("/v1/tokens", bearer("b"), body=body)).body)
        assert (made["ttl_s"], made["scope"], made["origin"], made["principal"]) == (10, ["voices"], APP, "bob")


async def test_a_request_that_is_wrong_is_told_how(tmp_path: Path) -> None:
    async with keyed(tmp_path) as at:
        for body, code, field in (
            (b'{"ttl_s": 9}', "bad_message", "ttl_s"),
            (b'{"scope": ["all"]}', "bad_message", "scope"),
            (b'{"origin": "app.example"}', "bad_message", "origin"),
            (b'{"orign": "https://app.example"}', "bad_message", "orign"),
            (b"ttl_s=10", "bad_json", None),
        ):
            answer = await at.ask("/v1/tokens", KEY, body=body)
            assert (answer.status, answer.error["code"], answer.error["field"]) == (400, code, field)
        answer = await at.ask("/v1/tokens", KEY, body=b" " * MAX_BODY_BYTES)
        assert answer.status == 200
        answer = await at.ask("/v1/tokens", KEY, body=b" " * (MAX_BODY_BYTES + 1))
        assert (answer.status, answer.error["code"]) == (413, "too_big")
        answer = await at.ask("/v1/tokens", KEY, method="GET")
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")


async def test_who_has_none_gets_none_and_soon_no_answer_either(tmp_path: Path) -> None:
    async with keyed(tmp_path, max_sessions=4) as at:
        for headers in ((), (bearer("wrong"),), (bearer("cosyt_1.x.y"),)):
            answer = await at.ask("/v1/tokens", *headers)
            assert answer.status in (401, 403)
        answer = await at.ask("/v1/tokens", bearer(at.token(scope=("speak", "voices"))))
        assert (answer.status, answer.error["code"]) == (403, "forbidden")  # a token makes no other
        answer = await at.ask("/v1/tokens", KEY, KEY)
        assert (answer.status, answer.error["code"]) == (400, "bad_request")
        for _ in range(98):
            assert (await at.ask("/v1/tokens", bearer("wrong"))).status == 401
        answer = await at.ask("/v1/tokens", bearer("wrong"))
        assert (answer.status, answer.error["code"]) == (429, "rate")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await at.ask("/v1/tokens", KEY)).status == 200


async def test_without_keys_everybody_gets_one() -> None:
    async with running() as server:
        at = Keyed(server)
        made = orjson.loads((await at.ask("/v1/tokens")).body)
        assert made["principal"] == ANONYMOUS.name
        assert isinstance((await at.offer(made["subprotocol"]))[0], s.Opened)
        told, _ = await at.offer(TOKEN_SUBPROTOCOL + "cosyt_1.x.y")  # one that is none is told so also here
        assert isinstance(told, s.Error)
        answer = await at.ask("/v1/tokens", "Origin: https://evil.example")
        assert answer.status == 403


# ---- over HTTP ----


async def test_a_token_does_what_its_scope_says(tmp_path: Path) -> None:
    routes = {
        ("POST", "/v1/speak"): ("speak",),
        ("GET", "/v1/voices"): ("speak", "voices"),
        ("GET", "/v1/voices/tone"): ("speak", "voices"),
        ("POST", "/v1/voices"): ("voices",),
        ("DELETE", "/v1/voices/own-0"): ("voices",),
        ("POST", "/v1/tokens"): (),
    }
    async with keyed(tmp_path) as at:
        for (method, path), scopes in routes.items():
            for scope in ("speak", "voices"):
                header = bearer(at.token(scope=(scope,)))
                answer = await at.ask(path, header, method=method, body=b'{"text": "a"}' if method == "POST" else b"")
                assert (answer.status == 403) is (scope not in scopes), (method, path, scope, answer)
                assert answer.status != 401
        answer = await at.ask("/v1/speak", bearer(at.token(scope=("voices",))), body=b'{"text": "a"}')
        assert answer.error["message"] == "the token is not for speak: its scope is voices"


async def test_a_token_that_is_over_is_a_401(tmp_path: Path) -> None:
    async with keyed(tmp_path) as at:
        for token, reason in ((at.expired(), "the token has expired"), (at.token() + "x", "the token is invalid")):
            answer = await at.ask("/v1/speak", bearer(token), body=b'{"text": "a"}')
            assert (answer.status, answer.error["code"]) == (401, "unauthorized")
            assert str(answer.error["message"]).startswith(reason)
            assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
            assert token not in str(answer)


async def test_a_token_for_one_site_is_for_its_pages_alone(tmp_path: Path) -> None:
    async with keyed(tmp_path, allow_origins=f"{APP},https://other.example") as at:
        header = bearer(at.token(origin=APP))
        for origin, status in ((APP, 200), ("https://other.example", 403), (None, 403)):
            pages = [f"Origin: {origin}"] if origin else []
            assert (await at.ask("/v1/speak", header, *pages, body=b'{"text": "a"}')).status == status
            assert (await at.ask("/v1/voices", header, *pages, method="GET")).status == status
        own = bearer(at.token(origin="http://localhost"))  # a page of ours reads without `Origin`
        assert (await at.ask("/v1/voices", own, method="GET")).status == 200


async def test_a_page_that_is_allowed_may_ask_and_read(tmp_path: Path) -> None:
    async with keyed(tmp_path, allow_origins=APP) as at:
        for path, method in (("/v1/tokens", "POST"), ("/v1/speak", "POST"), ("/v1/voices/x", "DELETE")):
            asking = (
                f"Access-Control-Request-Method: {method}",
                "Access-Control-Request-Headers: authorization,content-type",
                "Access-Control-Request-Private-Network: true",
            )
            answer = await at.ask(path, f"Origin: {APP}", *asking, method="OPTIONS")
            allowed = {name: value for name, value in answer.headers.items() if name.startswith("access-control")}
            assert answer.status == 200
            assert allowed["access-control-allow-origin"] == APP
            assert allowed["access-control-allow-private-network"] == "true"
            assert method in allowed["access-control-allow-methods"].split(", ")
            assert {"Authorization", "Content-Type"} <= set(allowed["access-control-allow-headers"].split(", "))
            assert "access-control-allow-credentials" not in allowed
            assert "Origin" in answer.headers["vary"]
            answer = await at.ask(path, "Origin: https://evil.example", *asking, method="OPTIONS")
            assert answer.status == 400
            assert "access-control-allow-origin" not in answer.headers
        answer = await at.ask("/v1/tokens", KEY, f"Origin: {APP}")
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, APP)
        for header in ((), (f"Origin: {APP}",), ("Origin: https://evil.example",)):
            answer = await at.ask("/v1/voices", KEY, *header, method="GET")
            assert "Origin" in answer.headers["vary"]  # who keeps answers must not mix them up
        answer = await at.ask("/v1/speak", bearer(at.expired()), f"Origin: {APP}", body=b"{}")
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (401, APP)
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"Retry-After", "Location", "WWW-Authenticate"} <= set(exposed)


# ---- on the WebSocket ----


async def test_a_page_speaks_with_a_token_as_its_principal(tmp_path: Path) -> None:
    async with keyed(tmp_path, allow_origins=APP) as at:
        for token in (at.token(), at.token(origin=APP)):
            told, _ = await at.offer(TOKEN_SUBPROTOCOL + token, origin=Origin(APP))
            assert isinstance(told, s.Opened)
        told, _ = await at.offer(TOKEN_SUBPROTOCOL + at.token(), open=c.Open(api_key="wrong"))
        assert isinstance(told, s.Opened)
        headers = {"Authorization": "Basic eDp5"}  # a browser adds the password of a proxy
        told, _ = await at.offer(TOKEN_SUBPROTOCOL + at.token(), additional_headers=headers)
        assert isinstance(told, s.Opened)


async def test_a_page_reads_why_its_token_is_no_good(tmp_path: Path) -> None:
    async with keyed(tmp_path, allow_origins=f"{APP},https://other.example") as at:
        for token, reason in (
            (at.expired(), "the token has expired"),
            ("", "the token is invalid"),
            (at.token()[:-1], "the token is invalid"),
            (at.token("gone"), "the token is invalid: whom it was made for has no key any more"),
            (at.token(scope=("voices",)), "the token is not for speak: its scope is voices"),
            (at.token(origin="https://other.example"), f"the token is for pages from https://other.example; {APP}"),
        ):
            for message in (c.Open(), c.Open(api_key="k"), c.Resume("x", "x", 0, 1, 0, 0, 0), None):
                told, closed = await at.offer(TOKEN_SUBPROTOCOL + token, open=message, origin=Origin(APP))
                assert isinstance(told, s.Error)
                assert (told.code, told.retryable, told.field) == ("unauthorized", False, None)
                assert told.message.startswith(reason.partition("; ")[0])
                assert reason.partition("; ")[2] in told.message
                assert closed is not None
                assert closed[0] == 1008
                assert closed[1].startswith(reason[:20])
        assert at.server.sessions.taken == 0


async def test_who_sent_what_in_place_of_a_key_reads_it(tmp_path: Path) -> None:
    async with keyed(tmp_path) as at:
        for api_key, reason in ((None, "an API key is needed"), ("wrong", WRONG_KEY), (at.token(), "this is a token")):
            told, _ = await at.offer(open=c.Open(api_key=api_key))
            assert isinstance(told, s.Error)
            assert (told.code, told.field) == ("unauthorized", "open.api_key")
            assert told.message.startswith(reason)


async def test_a_page_reads_that_its_site_is_not_allowed(tmp_path: Path) -> None:
    async with keyed(tmp_path) as at:
        for subprotocols in ((), (TOKEN_SUBPROTOCOL + at.token(),)):
            told, closed = await at.offer(*subprotocols, origin=Origin(APP))
            assert isinstance(told, s.Error)
            assert told.message == f"pages from {APP!r} may not use this server; allow_origins can allow them"
            assert (told.code, closed and closed[0]) == ("unauthorized", 1008)
        # Whoever does not speak our protocol is no page of anybody who wants to know.
        assert (await ask(at.port, handshake("/v1/stream", f"Origin: {APP}"))).status == 403
    async with running() as server:  # a name that was made to point here
        at = Keyed(server)
        offered = (f"Sec-WebSocket-Protocol: {SUBPROTOCOL}", "Origin: http://evil.example")
        request = handshake("/v1/stream", *offered).replace(b"Host: localhost", b"Host: evil.example")
        said = await talk(at.port, request, frame(1, encode(OPEN).encode()))
        assert b"the host 'evil.example' is no name of this machine" in said
        assert b"opened" not in said
        assert close_code(said) == 1008
        assert (await ask(at.port, request.replace(b"Origin", b"X-Page"))).status == 403


async def test_a_program_sends_it_as_a_header(tmp_path: Path) -> None:
    async with keyed(tmp_path) as at:
        good = {"Authorization": f"Bearer {at.token()}"}
        assert isinstance((await at.offer(additional_headers=good))[0], s.Opened)
        for token, status, code in (
            (at.expired(), 401, "unauthorized"),
            ("cosyt_1.x.y", 401, "unauthorized"),
            (at.token(scope=("voices",)), 403, "forbidden"),
            (at.token(origin=APP), 403, "forbidden"),
        ):
            answer = await ask(at.port, handshake("/v1/stream", bearer(token)))
            assert (answer.status, answer.error["code"]) == (status, code)
            assert ("www-authenticate" in answer.headers) is (status == 401)


async def test_one_is_enough(tmp_path: Path) -> None:
    async with keyed(tmp_path) as at:
        one, two = (TOKEN_SUBPROTOCOL + at.token(principal) for principal in ("ann", "bob"))
        for headers in (
            (f"Sec-WebSocket-Protocol: {SUBPROTOCOL}, {one}, {two}",),
            (f"Sec-WebSocket-Protocol: {SUBPROTOCOL}, {one}", f"Sec-WebSocket-Protocol: {one}"),
            (f"Sec-WebSocket-Protocol: {SUBPROTOCOL}, {one}", bearer(at.token())),
            (f"Sec-WebSocket-Protocol: {SUBPROTOCOL}, {one}", KEY),
            (f"Sec-WebSocket-Protocol: {SUBPROTOCOL}, {one}", "Authorization: Basic a", "Authorization: Basic b"),
            (f"Sec-WebSocket-Protocol: {one}",),  # a token alone is no language
        ):
            answer = await ask(at.port, handshake("/v1/stream", *headers))
            assert (answer.status, answer.error["code"]) == (400, "bad_request")
        told, _ = await at.offer(open=c.Open(api_key=at.token()))
        assert isinstance(told, s.Error)  # the field is for keys
        assert TOKEN_SUBPROTOCOL in told.message


async def test_tokens_that_fail_are_counted_by_address(tmp_path: Path) -> None:
    async with keyed(tmp_path, max_sessions=4) as at:
        for _ in range(100):
            told, _ = await at.offer(TOKEN_SUBPROTOCOL + "cosyt_1.x.y", open=None)
            assert isinstance(told, s.Error)
        told, _ = await at.offer(TOKEN_SUBPROTOCOL + "cosyt_1.x.y", open=None)
        assert isinstance(told, s.Busy)
        assert told.reason == "rate"
        assert (await at.offer(TOKEN_SUBPROTOCOL + at.token()))[1] is None


async def test_a_session_outlives_its_token_and_comes_back_with_another(tmp_path: Path) -> None:
    async with keyed(tmp_path) as at:
        clock = at.server.principals._now
        page = Resumer(url_of(at.server), {"additional_headers": {"Authorization": f"Bearer {at.token(ttl_s=10)}"}})
        await page.open()
        at.server.principals._now = lambda: clock() + 60
        await page.say(1, "One two three four five. " * 20)
        await page.until_bytes(20_000)
        page.abort()
        with pytest.raises(InvalidStatus):  # the same token again
            await page.ask()
        page.options = {"additional_headers": {"Authorization": f"Bearer {at.token('bob')}"}}
        assert isinstance(await page.ask(), s.ResumeFailed)  # somebody else's session
        page.abort()
        page.options = {"additional_headers": {"Authorization": "Bearer k"}}  # the key is the same principal's
        await page.resume()
        page.abort()
        page.options = {"additional_headers": {"Authorization": f"Bearer {at.token()}"}}
        await page.resume()
        done = await page.until(s.Done)
        assert len(page.pcm) == 2 * done.samples


async def test_our_client_takes_a_token_where_it_takes_a_key(tmp_path: Path) -> None:
    async with keyed(tmp_path) as at:
        async with client.connect(url_of(at.server), api_key=at.token()) as session:
            assert [audio async for audio in session.speak("one two")]
        with pytest.raises(client.ConnectFailed, match=r"\(HTTP 401\): the token has expired"):
            await client.connect(url_of(at.server), api_key=at.expired())


async def test_servers_with_the_same_secret_know_each_others_tokens(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    async with keyed(tmp_path, token_secret=secret) as one, keyed(tmp_path, token_secret=secret) as two:
        assert isinstance((await two.offer(TOKEN_SUBPROTOCOL + one.token()))[0], s.Opened)
    async with keyed(tmp_path) as other:
        assert isinstance((await other.offer(TOKEN_SUBPROTOCOL + one.token()))[0], s.Error)


async def test_a_secret_that_is_too_short_stops_the_start(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"short")
    with pytest.raises(ValueError, match="has 5 bytes; allowed are 32 to 4096"):
        async with running(token_secret=secret):
            pass
