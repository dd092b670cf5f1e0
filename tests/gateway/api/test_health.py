import pytest

from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import Serve, until


async def test_ready_while_a_replica_is_up(serve: Serve, engine: FakeEngine, other: FakeEngine) -> None:
    running = await serve(engine, other)
    assert (await running.client.get("/readyz")).status_code == 200
    engine.stop()
    await until(lambda: not running.gateway.fleet["replica-0"].up)
    answer = await running.client.get("/readyz")
    assert answer.status_code == 200
    down, up = answer.json()["replicas"]
    assert (down["state"], up["state"]) == ("down", "up")
    assert down["reason"]
    other.stop()
    await until(lambda: not running.gateway.fleet.ready)
    assert (await running.client.get("/readyz")).status_code == 503
    for path in ("/health", "/livez"):
        assert (await running.client.get(path)).status_code == 200


async def test_without_any_replica_it_says_so(serve: Serve) -> None:
    running = await serve()
    ready = await running.client.get("/readyz")
    assert ready.status_code == 503
    assert "--replica" in ready.json()["status"]
    answer = await running.chat()
    assert answer.status_code == 503
    assert "--replica" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/metrics"])
async def test_head_is_get_without_the_body(serve: Serve, engine: FakeEngine, path: str) -> None:
    running = await serve(engine)
    got, head = await running.client.get(path), await running.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


async def test_not_ready_while_draining(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    running.gateway.drain.draining = True
    answer = await running.client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "draining")


async def test_metrics_tell_requests_and_replicas(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    await running.chat(max_tokens=4)
    await running.chat(model="made-up")
    page = (await running.client.get("/metrics")).text
    assert (
        'hpkv_gateway_requests_total{endpoint="/v1/chat/completions",model="fake",status="200"} 1.0' in page
    )
    assert 'hpkv_gateway_replica_up{replica="replica-0"} 1.0' in page
    assert "made-up" not in page, "clients can't add labels"
