"""The questions of a starting fleet, over a real listener."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine_adapters.up import http
from engine_adapters.up.http import Endpoints


class Answering(HTTPServer):
    """Answers each path with its JSON, others with 404."""

    answers: dict[str, Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_GET(self) -> None:
        found = self.path in self.server.answers
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.answers[self.path]).encode() if found else b"")

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), Handler) as server:
        server.answers = {}
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def source(endpoint: str, replay: str | None, *, on: bool = True) -> dict[str, Any]:
    # As vLLM 0.32 writes it.
    return {
        "enable_kv_cache_events": on,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay,
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": "kv",
    }


def test_an_engine_names_its_events(server: Answering) -> None:
    server.answers["/kv_event_sources"] = {"0": source("tcp://*:5557", "tcp://*:5558")}
    assert http.event_endpoints(server.url) == Endpoints("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")
    server.answers["/kv_event_sources"] = {"0": source("tcp://*:5557", None)}
    assert http.event_endpoints(server.url) == Endpoints("tcp://127.0.0.1:5557", "")


def test_unix_sockets_count_where_they_can_be_reached(server: Answering, tmp_path: Path) -> None:
    server.answers["/kv_event_sources"] = {"0": source(f"ipc://{tmp_path}/e", None)}
    assert http.event_endpoints(server.url) == Endpoints()
    with closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(f"{tmp_path}/e")
        assert http.event_endpoints(server.url) == Endpoints(f"ipc://{tmp_path}/e", "")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"0": source("tcp://*:5557", None, on=False)},
        {"0": source("tcp://elsewhere:5557", None)},
        {"0": source("tcp://*:5557", None), "1": source("tcp://*:5558", None)},
        {"detail": "something else"},
    ],
)
def test_events_that_cannot_be_followed(server: Answering, answer: object) -> None:
    server.answers["/kv_event_sources"] = answer
    assert http.event_endpoints(server.url) == Endpoints()


def test_an_engine_that_does_not_know_the_question(server: Answering) -> None:
    assert http.event_endpoints(server.url) == Endpoints()


def test_the_gateway_is_settled_once_all_its_models_are(server: Answering) -> None:
    url = f"{server.url}/readyz"
    assert not http.is_settled(url)
    model = {"name": "m", "prefixes": "agrees", "settled": True, "warnings": []}
    for models, settled in (([], False), ([model], True), ([model, model | {"settled": False}], False)):
        server.answers["/readyz"] = {"status": "ok", "replicas": [], "models": models}
        assert http.is_settled(url) is settled


def test_sglang_names_its_events_too_and_its_kind_is_known(server: Answering) -> None:
    assert http.kind(server.url) == "vllm"
    server.answers["/model_info"] = {}
    assert http.kind(server.url) == "sglang"
    # As SGLang 0.5.23 writes it.
    ports = {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "topic": "kv",
        "dp_size": 1,
    }
    server.answers["/server_info"] = {"kv_events": {**ports, "replay_endpoint_port_base": 5558}}
    assert http.event_endpoints(server.url) == Endpoints("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")
    for kv_events in (ports | {"dp_size": 2}, ports | {"endpoint_host": "10.0.0.1"}, None):
        server.answers["/server_info"] = {"kv_events": kv_events}
        assert http.event_endpoints(server.url) == Endpoints()
