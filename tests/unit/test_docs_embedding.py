"""docs/embedding.md names what the player has, all of it, and its examples are whole."""

import ast
import re

from protocol.errors import ErrorCode
from server.settings import OPTIONS, Settings
from tests.support.embedding import DOCUMENT, block
from tests.support.processes import ROOT

WEB = ROOT / "demo_web"
PLAYER = (WEB / "player.js").read_text(encoding="utf-8")
SETTINGS = (WEB / "settings.js").read_text(encoding="utf-8")
CLASS = PLAYER[PLAYER.index("export class Player ") :]


def section(title: str) -> str:
    return DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_cells(title: str) -> str:
    """The first cells of a section's tables."""
    return "\n".join(re.findall(r"^\| (.*?) \|", section(title), re.MULTILINE))


def members() -> set[str]:
    """What a `Player` has."""
    return set(re.findall(r"^  (?:async |get )?([a-z]\w*)\(.*\) \{$", CLASS, re.MULTILINE)) - {"constructor"}


def events() -> set[str]:
    """What it tells; the last two by the clock."""
    return {*re.findall(r'#emit\("(\w+)"', PLAYER), "word", "segment"}


def needed(*names: str) -> set[str]:
    """These files, and all that they load."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            code = re.sub(r"/\*.*?\*/", "", (WEB / name).read_text(encoding="utf-8"), flags=re.DOTALL)
            waiting += re.findall(r"""["`]\./(\w+\.js)(?:["`]|\$\{)""", code)
    return found


def failures() -> set[str]:
    """The codes of failures that the player's files make."""
    found: set[str] = set()
    for name in needed("player.js", "worker.js", "worklet.js") - {"wire.js"}:
        code = re.sub(r"/\*.*?\*/", "", (WEB / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        values = re.findall(r"""\bcode(?::| =) ([^,;}]+)|#fail(?:ed)?\(("\w+")""", code)
        found.update(each for value in values for each in re.findall(r'"(\w+)"', "".join(value)))
    return found


def test_the_page_uses_what_the_player_has() -> None:
    page = block("html embedding")
    assert len(page.splitlines()) <= 30
    assert set(re.findall(r"player\.(\w+)", page)) <= members() | {"addEventListener", "js"}
    assert set(re.findall(r'addEventListener\("(\w+)"', page)) <= events()
    (ids,) = re.findall(r"\[([^\]]*)\]\.map", page)
    assert re.findall(r'"(\w+)"', ids) == re.findall(r'id="(\w+)"', page)
    assert "innerHTML" not in page
    assert "cosy_" not in page


def test_the_page_and_its_server_agree() -> None:
    code = block("python embedding")
    ast.parse(code)
    (path,) = re.findall(r'fetch\("(/[\w-]+)"', block("html embedding"))
    assert f"# {path};" in code
    (wanted,) = re.findall(r"json\.dumps\((\{.*?\})\)", code)
    (by_hand,) = re.findall(r"-d '(.*?)'", section("Your server"))
    assert wanted == by_hand


def test_the_recipe_fits_what_it_starts() -> None:
    """One machine: the three places name the same two addresses, and files as they are saved."""
    page, code, recipe = block("html embedding"), block("python embedding"), section("On your own machine")
    (speech,) = set(re.findall(r"https?://[\w.:]+", page))
    (site,) = re.findall(r'"origin": "([^"]+)"', code)
    assert set(re.findall(r"https?://[\w.:]+", code)) == {speech, site}
    assert block("sh recipe speech").rstrip().endswith(f"--allow-origins {site}")
    assert f"Open `{site}/`" in recipe
    assert speech == f"http://127.0.0.1:{Settings().port}"
    host, port = re.findall(r"Server\(\(\"([\d.]+)\", (\d+)\)", code)[0]
    assert site == f"http://{host}:{port}"
    assert 'directory="public"' in code
    assert "`public/index.html`" in recipe
    assert "`backend.py`" in recipe
    assert block("sh recipe site").strip().endswith("python3 backend.py")
    assert 'os.environ["COSYSTREAM_API_KEY"]' in code


def test_every_event_is_described() -> None:
    assert set(re.findall(r"`(\w+)`", first_cells("Events"))) == events()


def test_every_failure_is_described() -> None:
    described = set(re.findall(r"`(\w+)`", first_cells("Failures")))
    assert described == failures() - set(ErrorCode)
    assert {"no_opus", "no_worker", "no_audio", "bad_value", "closed"} < described


def test_every_call_and_option_is_described() -> None:
    calls = set(re.findall(r"`player\.(\w+)", first_cells("Options")))
    assert calls == members()
    options = set(re.findall(r"`(\w+)`", first_cells("Options")))
    (settings,) = re.findall(r"@typedef \{\{(voice.*?)\}\} Settings", SETTINGS, re.DOTALL)
    (place,) = re.findall(r"@typedef \{\{(url.*?)\}\} Place", PLAYER)
    assert options == set(re.findall(r"(\w+)\?:", f"{settings} {place}"))


def test_the_files_to_copy_are_all_that_is_needed() -> None:
    files = needed("player.js", "worker.js", "worklet.js")
    assert set(block("text files").split()) == files, f"docs/embedding.md: {' '.join(sorted(files))}"


def test_flags_exist() -> None:
    known = {option.flag for option in OPTIONS} | {"--file"}
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", DOCUMENT)) <= known


def test_links_lead_somewhere() -> None:
    for file, anchor in re.findall(r"\]\(([\w.]*)#([^)]+)\)", DOCUMENT):
        target = (ROOT / "docs" / (file or "embedding.md")).read_text(encoding="utf-8")
        titles = re.findall(r"^#+ (.+)$", target, re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}
        assert anchor in anchors, f"{file}#{anchor}"
