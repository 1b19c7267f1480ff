"""Everyone can use it: axe-core finds nothing serious, whatever it shows. Pictures are kept for a person to look at."""

from pathlib import Path
from typing import Literal

import pytest

from protocol import client_messages as c
from server.gateway.auth import add_key
from tests.support.processes import ServerProcess
from tests.support.server import bare_client, http_of, running, url_of
from tests.support.web_page import DemoPage
from tests.web.conftest import ARTIFACTS, OpenPage

TEXTS = {
    "en": "The lighthouse stood where the land gave up. Every evening old Mara climbed its 112 steps and lit the lamp.",
    "zh": "山脚下有一座小邮局，只有一位邮递员，大家都叫他老周。他每天早上七点出门，骑车走四十二公里。",
}
LOCALES = {"en": "en-GB", "zh": "zh-CN"}
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 375, "height": 812}


async def look(page: DemoPage, name: str) -> None:
    """Keep a picture at both widths and ask axe-core, of narrow pages twice; nothing may be wider than the screen."""
    for size in (WIDE, NARROW):
        await page.page.set_viewport_size(size)  # type: ignore[arg-type]  # a TypedDict of the same shape
        wide = await page.page.evaluate("() => document.documentElement.scrollWidth")
        assert wide <= size["width"], f"{name}: {wide} px"
        await page.page.screenshot(path=ARTIFACTS / f"{name}-{size['width']}.png", full_page=True)
        asked = size is WIDE or name.startswith(("en-light", "zh-dark"))
        complaints = await page.complaints() if asked else []
        assert not complaints, f"{name}, {size['width']} px:\n" + "\n".join(complaints)


async def test_what_is_wrong_is_found(open_page: OpenPage, tone_server: ServerProcess) -> None:
    page = DemoPage(await open_page(f"{tone_server.http}/"))
    await page.ready()
    await page.page.evaluate("() => { document.querySelector('#speak').textContent = ''; }")
    (complaint,) = await page.complaints()
    assert complaint.startswith("button-name (critical)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
async def test_while_it_speaks(
    open_page: OpenPage, voice_server: ServerProcess, language: str, scheme: Literal["light", "dark"]
) -> None:
    page = DemoPage(await open_page(f"{voice_server.http}/", locale=LOCALES[language], color_scheme=scheme))
    await page.ready()
    name = f"{language}-{scheme}"
    await look(page, f"{name}-ready")
    number = await page.speak(TEXTS[language])
    await page.reached(number, 48_000)
    await look(page, f"{name}-speaking")
    await page.page.click("#stop")
    await page.watched.event("stopped", number)
    await page.page.evaluate("() => { document.querySelector('#more').open = true; }")
    await look(page, f"{name}-stopped")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
async def test_when_it_cannot(
    open_page: OpenPage, tmp_path: Path, language: str, scheme: Literal["light", "dark"]
) -> None:
    """A key is asked for, then the server is busy, without a secure context."""
    keys = tmp_path / "keys"
    key = add_key(keys, "ann")
    async with running(keys=keys, sessions_per_principal=1, allow_origins="*") as server:
        http = http_of(server).replace("127.0.0.1", "demo.test")
        page = DemoPage(await open_page(f"{http}/", expected=("401",), locale=LOCALES[language], color_scheme=scheme))
        await page.page.locator("#key-form").wait_for()
        await look(page, f"{language}-{scheme}-key")
        await page.page.fill("#key", key)
        await page.page.click("#key-send")
        await page.ready()
        async with bare_client(url_of(server), open=c.Open(api_key=key)):
            await page.page.fill("#text", TEXTS[language])
            await page.page.click("#speak")
            await page.page.locator("#failure").wait_for()
            await look(page, f"{language}-{scheme}-busy")
