"""The replicas that other tests stand on: real, breakable, and whole again."""

import json
import urllib.request

import pytest

from engine_adapters.up import http
from tests.engines import MODEL, Replica

pytestmark = pytest.mark.engine


def complete(replica: Replica) -> str:
    body = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(
        f"{replica.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text: str = json.load(response)["choices"][0]["text"]
        return text


def test_both_answer_alike(replicas: tuple[Replica, ...]) -> None:
    a, b = replicas
    assert complete(a) == complete(b)
    assert "Paris" in complete(a)


def test_a_killed_one_is_gone_and_the_other_not(replicas: tuple[Replica, ...]) -> None:
    a, b = replicas
    a.kill()
    assert not http.answers(f"{a.url}/health")
    assert "Paris" in complete(b)


def test_what_the_one_before_has_killed_serves_again_on_its_port(replicas: tuple[Replica, ...]) -> None:
    assert "Paris" in complete(replicas[0])


def test_a_frozen_one_is_silent_until_it_goes_on(
    replicas: tuple[Replica, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = replicas
    a.stop()
    with monkeypatch.context() as hasty:
        hasty.setattr(http, "TIMEOUT", 0.5)
        assert not http.answers(f"{a.url}/health")
    assert http.answers(f"{b.url}/health")
    a.cont()
    a.wait_ready()
