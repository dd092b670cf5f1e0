import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from engine_adapters.up import hub
from engine_adapters.up.errors import ModelUnusable

ANSWERS = {
    "fine": (200, ""),
    "gated": (403, "GatedRepo"),
    "weights-only": (404, "EntryNotFound"),
    "broken": (500, ""),
}


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        owner, name, *rest = self.path.strip("/").split("/")
        assert (owner, rest) == ("owner", ["resolve", "main", "config.json"])
        code, told = ANSWERS.get(name, (401, "RepoNotFound"))
        self.send_response(code)
        self.send_header("X-Error-Code", told)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path


@pytest.fixture
def endpoint() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_model_that_the_hub_has(endpoint: str) -> None:
    hub.require("owner/fine", endpoint)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("misspelt", "no such model; correct the name, or set HF_TOKEN"),
        ("gated", "its owner grants access"),
        ("weights-only", r"it has no config\.json"),
        ("broken", "the hub answered 500 Internal Server Error; try again later"),
    ],
)
def test_one_that_cannot_be_had(endpoint: str, name: str, message: str) -> None:
    with pytest.raises(ModelUnusable, match=f"--model owner/{name}: .*{message}"):
        hub.require(f"owner/{name}", endpoint)


def test_what_is_in_the_cache_is_not_asked_for(cache: Path) -> None:
    folder = cache / "models--owner--name"
    for file in ("refs/main", "snapshots/abc/config.json"):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("abc")
    hub.require("owner/name", "http://127.0.0.1:1")


def test_without_a_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ModelUnusable, match=rf"isn't in the cache, {cache}, and http://127\.0\.0\.1:1 can't be"
    ):
        hub.require("owner/name", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnusable, match="HF_HUB_OFFLINE is set; unset it, or name a folder"):
        hub.require("owner/name")
