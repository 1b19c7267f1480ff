"""A model that is named is fetched once, whole and checked, whatever the line does."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from server.engines.cosyvoice.folder import needed_files
from server.engines.cosyvoice.hub import fetching, find_model
from server.engines.cosyvoice.hub.remote import HubError
from server.engines.cosyvoice.options import Hub, Options
from server.engines.cosyvoice.starting import create
from tests.support.model_hub import ModelHub, model_hub

NAME = "Some-One/CosyVoice2-x.5B"
UNWANTED = ("flow.decoder.estimator.fp32.onnx", "CosyVoice-BlankEN/model.safetensors", "asset/logo.png", "README.md")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    monkeypatch.setattr(fetching, "PAUSE_S", 0.01)
    random = np.random.default_rng(3)
    with model_hub() as served:
        files = [*needed_files(2), "spk2info.pt", *UNWANTED]
        served.models[NAME] = {path: random.bytes(200_000 if path == "llm.pt" else 3_000) for path in files}
        yield served


@pytest.fixture(params=["huggingface", "modelscope"])
def kind(request: pytest.FixtureRequest) -> Hub:
    found: Hub = request.param
    return found


def find(
    hub: ModelHub,
    kind: Hub,
    home: Path,
    *,
    name: str = NAME,
    revision: str = "",
    offline: bool = False,
    **environment: str,
) -> Path:
    options = Options(model=name, hub=kind, revision=revision, offline=offline)
    return find_model(options, {**hub.environment(home), **environment})


@contextmanager
def another_server(status: int, page: bytes = b"<html>gone</html>") -> Iterator[ModelHub]:
    """It has the same page for everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield ModelHub(url=f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join()


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    named = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {path: content for path, content in named.items() if not path.startswith(".")}


def wanted(hub: ModelHub) -> dict[str, bytes]:
    return {path: content for path, content in hub.models[NAME].items() if path not in UNWANTED}


def test_what_the_engine_reads_is_fetched_and_nothing_else_and_only_once(
    hub: ModelHub, kind: Hub, tmp_path: Path
) -> None:
    folder = find(hub, kind, tmp_path)
    assert contents(folder) == wanted(hub)
    assert sorted(hub.fetched()) == sorted(wanted(hub))
    assert folder.is_relative_to(tmp_path / "cosyvoice" / kind)
    asked = len(hub.asked)
    assert find(hub, kind, tmp_path) == folder
    assert (len(hub.asked), hub.lists) == (asked, 1)


def test_a_fetched_model_needs_no_hub_any_more(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    folder = find(hub, kind, tmp_path)
    hub.url = "http://127.0.0.1:9"
    assert find(hub, kind, tmp_path) == folder
    assert find(hub, kind, tmp_path, offline=True, HF_HUB_OFFLINE="1") == folder


def test_a_file_that_got_lost_is_fetched_again_alone(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    folder = find(hub, kind, tmp_path)
    (folder / "flow.pt").unlink()
    hub.asked.clear()
    assert contents(find(hub, kind, tmp_path)) == wanted(hub)
    assert hub.fetched() == ["flow.pt"]


def test_a_connection_that_breaks_is_gone_on_with(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    hub.break_after["llm.pt"] = [70_000, 30_000]
    assert contents(find(hub, kind, tmp_path)) == wanted(hub)
    assert [asked for path, asked in hub.asked if path == "llm.pt"] == ["", "bytes=70000-", "bytes=100000-"]


def test_a_hub_without_ranges_sends_the_whole_file_again(hub: ModelHub, tmp_path: Path) -> None:
    hub.break_after["llm.pt"] = [70_000]
    hub.ranges = False
    assert contents(find(hub, "modelscope", tmp_path)) == wanted(hub)


def test_what_an_earlier_start_fetched_is_kept(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    hub.break_after["llm.pt"] = [70_000] + [0] * 20
    with pytest.raises(HubError, match=r"llm\.pt cannot be fetched from http"):
        find(hub, kind, tmp_path)
    hub.break_after.clear()
    hub.asked.clear()
    assert contents(find(hub, kind, tmp_path)) == wanted(hub)
    assert hub.fetched().count("cosyvoice2.yaml") == 0
    assert next(asked for path, asked in hub.asked if path == "llm.pt").startswith("bytes=70000-")


def test_a_busy_hub_is_asked_again(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    hub.fail["hift.pt"] = 2
    assert contents(find(hub, kind, tmp_path)) == wanted(hub)


def test_a_wrong_checksum_is_fetched_once_more(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    hub.corrupt["flow.pt"] = 1
    if kind == "huggingface":  # checked by what git calls it
        hub.corrupt["CosyVoice-BlankEN/vocab.json"] = 1
    assert contents(find(hub, kind, tmp_path)) == wanted(hub)
    assert hub.fetched().count("flow.pt") == 2


def test_a_checksum_that_stays_wrong_is_an_error(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    hub.corrupt["flow.pt"] = 2
    with pytest.raises(HubError, match=r"^flow\.pt from http\S+ arrives with a wrong checksum, twice"):
        find(hub, kind, tmp_path)
    assert hub.fetched().count("flow.pt") == 2


def test_two_that_start_at_once_fetch_once(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    hub.pause_s = 0.02
    found: list[Path] = []
    starts = [threading.Thread(target=lambda: found.append(find(hub, kind, tmp_path))) for _ in range(2)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert len(found) == 2
    assert sorted(hub.fetched()) == sorted(wanted(hub))


def test_a_revision_has_a_folder_of_its_own(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    hub.revisions = frozenset({*hub.revisions, "v1"})
    assert find(hub, kind, tmp_path, revision="v1") != find(hub, kind, tmp_path)
    with pytest.raises(HubError, match=r"^there is no model Some-One/CosyVoice2-x.5B at revision v9 on http"):
        find(hub, kind, tmp_path, revision="v9")


@pytest.mark.parametrize(
    ("reason", "huggingface", "modelscope"),
    [
        ("", "there is no model", "there is no model"),
        ("private", "does not give out", "asks for a login"),
        ("gated", "is gated: accept its terms", "asks for a login"),
    ],
)
def test_a_model_that_is_not_given_is_one_line(
    hub: ModelHub, tmp_path: Path, reason: str, huggingface: str, modelscope: str
) -> None:
    hub.refuse = {"no/body": reason} if reason else {}
    expected: dict[Hub, str] = {"huggingface": huggingface, "modelscope": modelscope}
    for kind, words in expected.items():
        with pytest.raises(HubError, match=words) as caught:
            find(hub, kind, tmp_path, name="no/body")
        assert "\n" not in str(caught.value)
        assert "no/body" in str(caught.value)


def test_a_model_whose_files_are_gated_says_so_at_once(hub: ModelHub, tmp_path: Path) -> None:
    hub.refuse = {NAME: "gated files"}
    with pytest.raises(HubError, match=r"is gated: accept its terms there, and set HF_TOKEN"):
        find(hub, "huggingface", tmp_path)


def test_files_may_lie_elsewhere_and_no_token_goes_there(
    hub: ModelHub, kind: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with model_hub() as store:
        store.models, hub.elsewhere = hub.models, store.url
        store.break_after["llm.pt"] = [70_000]
        assert contents(find(hub, kind, tmp_path)) == wanted(hub)
        assert "bytes=70000-" in [asked for path, asked in store.asked if path == "llm.pt"]
        assert {token for _, token in store.tokens} == {""}
    shown = {("list", "Bearer hf_secret"), ("file", "Bearer hf_secret")}
    assert hub.tokens == (shown if kind == "huggingface" else {("file", "")})


def test_without_a_network_it_says_so_soon(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    hub.url = "http://127.0.0.1:9"
    begun = time.monotonic()
    with pytest.raises(HubError, match=r"^http://127.0.0.1:9 cannot be reached \(.*refused") as caught:
        find(hub, kind, tmp_path)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("status", "words"), [(503, "answered 503 when .*: try later$"), (404, "answered 404 when .*: is {} right[?]$")]
)
def test_an_answer_that_no_hub_gives_is_told_in_short(kind: Hub, tmp_path: Path, status: int, words: str) -> None:
    variable = {"huggingface": "HF_ENDPOINT", "modelscope": "MODELSCOPE_ENDPOINT"}[kind]
    with another_server(status) as other, pytest.raises(HubError, match=words.format(variable)) as caught:
        find(other, kind, tmp_path)
    assert NAME in str(caught.value)
    assert len(str(caught.value)) < 120
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("page", [b"<html>hello</html>", b"{}", b"[]"])
def test_a_server_that_is_no_hub_is_told(kind: Hub, tmp_path: Path, page: bytes) -> None:
    with (
        another_server(200, page) as other,
        pytest.raises(HubError, match=r"does not answer as .* is \w+_ENDPOINT right"),
    ):
        find(other, kind, tmp_path)


def test_a_fetch_that_brings_nothing_leaves_nothing(hub: ModelHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    hub.refuse = {NAME: "gated files"}
    with pytest.raises(HubError, match="is gated"):
        find(hub, "huggingface", home)
    assert not list(home.iterdir())
    for kind in ("huggingface", "modelscope"):
        with pytest.raises(HubError, match="there is no model"):
            find(hub, kind, home, name="no/body")
    assert not list(home.iterdir())


def test_offline_nothing_is_asked(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    with pytest.raises(HubError, match=r"is not in .*: engine option offline is on"):
        find(hub, kind, tmp_path, offline=True)
    if kind == "huggingface":
        with pytest.raises(HubError, match=r"HF_HUB_OFFLINE is set"):
            find(hub, kind, tmp_path, HF_HUB_OFFLINE="1")
    assert (hub.lists, hub.asked) == (0, [])


def test_a_disk_that_is_too_small_is_told_before(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    hub.pretended_bytes["llm.pt"] = 10**18
    with pytest.raises(HubError, match=r"takes 1000000000\.\d GB more, and .* GB free"):
        find(hub, kind, tmp_path)
    assert hub.asked == []


def test_a_place_that_cannot_be_written_is_told(hub: ModelHub, kind: Hub, tmp_path: Path) -> None:
    (tmp_path / "cosyvoice").write_text("in the way", encoding="utf-8")
    with pytest.raises(HubError, match=r"^cannot keep the model in .* \(.*\): choose another place with engine option"):
        find(hub, kind, tmp_path)


@pytest.mark.parametrize(("lost", "words"), [("hift.pt", "lacks hift.pt"), ("cosyvoice2.yaml", "is no model of Cosy")])
def test_what_is_no_model_of_this_engine_is_not_fetched(
    hub: ModelHub, kind: Hub, tmp_path: Path, lost: str, words: str
) -> None:
    del hub.models[NAME][lost]
    with pytest.raises(HubError, match=words):
        find(hub, kind, tmp_path)
    assert hub.asked == []


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "../x", "/no/where", "a..b/c", "a b/c", "https://x.y/z"])
def test_what_is_neither_a_folder_nor_a_name_says_what_is_allowed(hub: ModelHub, tmp_path: Path, name: str) -> None:
    with pytest.raises(HubError, match=r"^engine option model: .* allowed: a folder, or OWNER/NAME on huggingface$"):
        find(hub, "huggingface", tmp_path, name=name)


def test_a_folder_is_itself(hub: ModelHub, tmp_path: Path) -> None:
    assert find(hub, "huggingface", tmp_path, name=str(tmp_path)) == tmp_path


def test_progress_is_told_in_tenths(hub: ModelHub, kind: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "server.engines.cosyvoice.hub"):
        find(hub, kind, tmp_path)
    told = [record.getMessage() for record in caplog.records if " % of " in record.getMessage()]
    assert told[0].startswith(f"{NAME}: 0 %")
    assert told[-1].startswith(f"{NAME}: 100 %")
    assert len(told) <= 11


def test_progress_is_a_line_on_a_terminal(
    hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    find(hub, "modelscope", tmp_path)
    told = capsys.readouterr().err
    assert told.startswith(f"\r{NAME}:   0 % of ")
    assert "100 % of" in told.split("\r")[-1]
    assert told.endswith("\n")


def test_an_engine_starts_with_the_name_of_a_model(
    hub: ModelHub,
    kind: Hub,
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub.put("Some-One/Tiny", tiny_model)
    for name, value in hub.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    options = {"model": "Some-One/Tiny", "hub": kind, "device": "cpu", "threads": 1}
    with caplog.at_level(logging.INFO, "server.engines.cosyvoice"):
        engine = create(options)
    engine.close()
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("fetching Some-One/Tiny from http")
    assert told[-1].startswith("loading the model in ")
    hub.models.clear()
    again = create({**options, "offline": True})
    assert again.capabilities == engine.capabilities
    again.close()
