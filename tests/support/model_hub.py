"""A hub of models on loopback that speaks as Hugging Face and as ModelScope do, with what goes wrong with such."""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
LARGE: Final = (".pt", ".onnx", ".safetensors")  # kept by LFS, so with a SHA-256
_PIECE: Final = 16 * 1024


def git_sha1(content: bytes) -> str:
    """What git calls a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class ModelHub:
    """What is there, how it fails, and what was asked of it. `name` of every request's file is its path."""

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: frozenset[str] = frozenset({"main", "master", COMMIT})
    refuse: Mapping[str, str] = field(default_factory=dict)  # a model's name: gated, gated files, private
    break_after: dict[str, list[int]] = field(default_factory=dict)  # a path: bytes of each answer that breaks off
    corrupt: dict[str, int] = field(default_factory=dict)  # a path: so many answers are wrong
    fail: dict[str, int] = field(default_factory=dict)  # a path: so many answers are status 503
    pause_s: float = 0.0  # between pieces
    pretended_bytes: dict[str, int] = field(default_factory=dict)  # a path: its size in lists
    ranges: bool = True  # whether they are known
    asked: list[tuple[str, str]] = field(default_factory=list)  # path and range of each answer that began
    tokens: set[tuple[str, str]] = field(default_factory=set)  # lists or files, and what was shown there
    elsewhere: str = ""  # a hub that has the files, to which one is sent
    lists: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, name: str, folder: Path) -> None:
        """A model of the files in a folder."""
        files = [path for path in folder.rglob("*") if path.is_file()]
        self.models[name] = {str(path.relative_to(folder)): path.read_bytes() for path in files}

    def environment(self, home: Path) -> dict[str, str]:
        """Both hubs are here; models are kept under `home`."""
        return {"HF_ENDPOINT": self.url, "MODELSCOPE_ENDPOINT": self.url, "COSYSTREAM_MODEL_DIR": str(home)}

    def fetched(self) -> list[str]:
        """Paths of all answers with content, in order."""
        return [path for path, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ModelHub

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests look at `ModelHub.asked`."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        kind = "list" if self.path.startswith("/api/models") else "file"
        self.hub.tokens.add((kind, self.headers.get("Authorization", "")))
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), {key: values[0] for key, values in parse_qs(parts.query).items()}
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._hugging_face_list(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)/repo/files", path):
            self._model_scope_list(found[1], query)
        elif found := re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)/repo", path):
            self._file(found[1], query["FilePath"], query["Revision"])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[3], found[2])
        else:
            self._json({"error": "no such page"}, 404)

    def _hugging_face_list(self, name: str, revision: str) -> None:
        if self._refused(name, revision):
            return
        siblings = []
        for path, content in self.hub.models[name].items():
            size = self.hub.pretended_bytes.get(path, len(content))
            about: dict[str, object] = {"rfilename": path, "size": size, "blobId": git_sha1(content)}
            if path.endswith(LARGE):
                about["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 130}
            siblings.append(about)
        self.hub.lists += 1
        self._json({"_id": "1", "id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})

    def _model_scope_list(self, name: str, query: Mapping[str, str]) -> None:
        if self._refused(name, query["Revision"]):
            return
        files: list[dict[str, object]] = [{"Name": "CosyVoice-BlankEN", "Path": "CosyVoice-BlankEN", "Type": "tree"}]
        for path, content in self.hub.models[name].items():
            size = self.hub.pretended_bytes.get(path, len(content))
            digest = hashlib.sha256(content).hexdigest()
            files.append({"Name": Path(path).name, "Path": path, "Type": "blob", "Size": size, "Sha256": digest})
        self.hub.lists += 1
        self._json({"Code": 200, "Success": True, "Message": "success", "Data": {"Files": files}})

    def _refused(self, name: str, revision: str) -> bool:
        reason = self.hub.refuse.get(name)
        if reason == "gated":
            self._json({"error": "gated"}, 403, {"X-Error-Code": "GatedRepo"})
        elif reason == "private":
            self._json({"error": "who are you?"}, 401)
        elif name not in self.hub.models:
            self._json({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif revision not in self.hub.revisions:
            self._json({"error": "no such revision"}, 404, {"X-Error-Code": "RevisionNotFound"})
        else:
            return False
        return True

    def _file(self, name: str, path: str, revision: str) -> None:
        if self._refused(name, revision):
            return
        content = self.hub.models[name].get(path)
        if self.hub.refuse.get(name) == "gated files":
            self._json({"error": "gated"}, 401, {"X-Error-Code": "GatedRepo"})
            return
        if self.hub.elsewhere:
            self._json({}, 302, {"Location": self.hub.elsewhere + self.path})
            return
        if content is None:
            self._json({"error": "no such file"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        large = path.endswith(LARGE)
        digest = hashlib.sha256(content).hexdigest() if large else git_sha1(content)
        with self.hub.lock:
            sends = self.command == "GET"
            busy = sends and self._one_of(self.hub.fail, path)
            wrong = sends and not busy and self._one_of(self.hub.corrupt, path)
            breaks = self.hub.break_after.get(path) if sends and not busy else None
            end = breaks.pop(0) if breaks else None
            asked = self.headers.get("Range", "") if self.hub.ranges else ""
            if sends and not busy:
                self.hub.asked.append((path, asked))
        if busy:
            self._json({"error": "busy"}, 503)
            return
        first = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        if wrong:
            content = bytes(len(content))
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{digest}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        if sends:
            self._send(content[first : None if end is None else first + end])
            if end is not None:
                self.close_connection = True

    @staticmethod
    def _one_of(left: dict[str, int], path: str) -> bool:
        if left.get(path, 0) < 1:
            return False
        left[path] -= 1
        return True

    def _send(self, content: bytes) -> None:
        try:
            for start in range(0, len(content), _PIECE):
                self.wfile.write(content[start : start + _PIECE])
                if self.hub.pause_s:
                    time.sleep(self.hub.pause_s)
        except OSError:
            self.close_connection = True  # the client left

    def _json(self, answer: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def model_hub() -> Iterator[ModelHub]:
    """A hub that serves until the block ends."""
    hub = ModelHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
