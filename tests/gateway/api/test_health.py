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
