"""Replicas come, move and go while the gateway runs."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine_adapters import registration
from engine_adapters.agent import keys
from engine_adapters.settings import GatewaySettings
from gateway.fleet import State, roster
from gateway.knowledge.model import ModelKnowledge
from gateway.settings import ReplicaSettings
from tests.fakes.byte_model import save_byte_model
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import Running, Serve, chat, until
from tests.gateway.test_prefix_routing import Engine as Untold


async def register(running: Running, engine: FakeEngine | str, name: str = "new", **fields: Any) -> Any:
    url = engine if isinstance(engine, str) else engine.url
    return await running.client.post("/v1/replicas", json={"name": name, "url": url, **fields})


async def listed(running: Running) -> dict[str, Any]:
    answer = await running.client.get("/v1/replicas")
    return {replica["name"]: replica for replica in answer.json()["data"]}


async def until_up(running: Running, name: str = "new") -> None:
    await until(lambda: (found := running.gateway.fleet.get(name)) is not None and found.up)


def clock_of_leases(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Leases end when the test says so."""
    expire: list[Callable[[], None]] = []
    real = roster.Lease.renew

    def renew(self: roster.Lease, seconds: float, expired: Callable[[], None]) -> None:
        expire.append(expired)
        real(self, seconds, expired)

    monkeypatch.setattr(roster.Lease, "renew", renew)
    return expire


async def test_an_engine_joins_serves_and_leaves(serve: Serve, engine: FakeEngine) -> None:
    running = await serve()
    assert "no replica yet" in (await running.client.get("/readyz")).json()["status"]
    assert (await running.chat()).status_code == 503
    answer = await register(running, engine)
    assert (answer.status_code, answer.json()) == (200, {"name": "new", "lease_s": 30.0})
    await until_up(running)
    assert (await running.client.get("/readyz")).status_code == 200
    assert (await running.chat()).headers["x-hpkv-replica"] == "new"
    told = (await listed(running))["new"]
    assert (told["state"], told["registered"], told["models"]) == ("up", True, ["fake"])
    assert 0 < told["lease_s"] <= 30
    assert (await running.client.delete("/v1/replicas/new")).status_code == 200
    assert (await running.chat()).status_code == 503
    assert not await listed(running)
    assert (await running.client.delete("/v1/replicas/new")).status_code == 404


async def test_a_renewed_lease_goes_on_and_one_that_runs_out_ends(
    serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expire = clock_of_leases(monkeypatch)
    running = await serve()
    await register(running, engine, lease_s=5)
    await until_up(running)
    replica = running.gateway.fleet["new"]
    await register(running, engine, lease_s=300)
    assert running.gateway.fleet["new"] is replica, "a renewal changes nothing"
    assert (await listed(running))["new"]["lease_s"] > 5
    expire[-1]()
    assert running.gateway.fleet.get("new") is None
    await until(lambda: not any("probe" in task.get_name() for task in asyncio.all_tasks()))


async def test_metrics_forget_one_that_left_unless_it_came_back(
    serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "FORGET_S", 0.05)
    running = await serve()
    shown = b'kind="prompt",model="fake",replica="new"'

    async def serve_once() -> None:
        await register(running, engine)
        await until_up(running)
        await running.chat()

    await serve_once()
    assert shown in running.gateway.metrics.page()
    await running.client.delete("/v1/replicas/new")
    await serve_once()
    await asyncio.sleep(0.2)
    assert shown in running.gateway.metrics.page(), "it is there again"
    await running.client.delete("/v1/replicas/new")
    assert shown in running.gateway.metrics.page(), "whoever collects it sees its last values"
    await until(lambda: shown not in running.gateway.metrics.page())


async def test_requests_in_flight_finish(serve: Serve, engine: FakeEngine) -> None:
    running = await serve()
    await register(running, engine)
    await until_up(running)
    engine.speed.decode_interval_s = 0.05
    left = running.gateway.fleet["new"]
    async with running.client.stream(
        "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=20)
    ) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        await running.client.delete("/v1/replicas/new")
        assert (await running.chat()).status_code == 503
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert left.state is State.LEAVING, "although its probes, which went on until now, found it well"


async def test_one_that_left_and_dies_lets_go_of_its_requests(
    serve: Serve, engine: FakeEngine, other: FakeEngine
) -> None:
    """They move, as from any replica that falls before its first chunk."""
    running = await serve()
    await register(running, engine)
    await until_up(running)
    engine.freeze()
    asked = asyncio.create_task(running.chat())
    left = running.gateway.fleet["new"]
    await until(lambda: left.requests == 1)
    await register(running, other, "second")
    await until_up(running, "second")
    await running.client.delete("/v1/replicas/new")
    answer = await asked
    assert (answer.status_code, answer.headers["x-hpkv-replica"]) == (200, "second")
    engine.thaw()


async def test_the_same_name_elsewhere_is_an_engine_that_moved(
    serve: Serve, engine: FakeEngine, other: FakeEngine
) -> None:
    running = await serve()
    await register(running, engine)
    await until_up(running)
    await register(running, other)
    await until_up(running)
    assert (await running.chat()).status_code == 200
    assert (len(engine.requests("/v1/chat/completions")), len(other.requests("/v1/chat/completions"))) == (
        0,
        1,
    )
    await register(running, other, "renamed")
    assert list(await listed(running)) == ["renamed"], "one address is one engine"


async def knowing(running: Running, engine: FakeEngine) -> tuple[ModelKnowledge, ...]:
    """Register an engine, and wait until its model's prompts are known."""
    await register(running, engine)
    await until_up(running)
    models = tuple(running.gateway.knowledge)
    await until(lambda: any(models[0].tokenizers()))
    return models


async def test_prefixes_of_a_replica_that_moved_are_forgotten(serve: Serve, tmp_path: Path) -> None:
    running = await serve(models={"fake": {"tokenizer": str(save_byte_model(tmp_path))}})
    prompt = {"model": "fake", "prompt": "word " * 100, "max_tokens": 1}
    predicted = []
    async with Untold() as one, Untold() as two:
        for server in (one, one, two, two):
            await knowing(running, server)
            answer = await running.client.post("/v1/completions", json=prompt)
            predicted.append(answer.headers["x-hpkv-cached-tokens"])
    assert predicted == ["gpu=0", "gpu=496"] * 2


async def test_replicas_may_come_for_ever(serve: Serve, engine: FakeEngine, tmp_path: Path) -> None:
    """More names than the index has columns, one after the other."""
    running = await serve(models={"fake": {"tokenizer": str(tmp_path)}})  # none, so nothing is compared
    fleet = running.gateway.fleet
    await register(running, engine)
    await until_up(running)
    (model,) = running.gateway.knowledge
    for number in range(80):
        (replica,) = running.gateway._builder.build(ReplicaSettings(url=engine.url, name=f"engine-{number}"))
        fleet.add(replica)
        replica.rise([*fleet["new"].models.values()])
        assert replica in model
        fleet.remove(replica.name, "done")
        while model.index.work(time.monotonic()):  # as its feed does, once a second
            pass
    assert [origin.replica for origin in model.index._targets.origins] == ["new"]


async def test_names_and_urls_of_the_settings_are_taken(
    serve: Serve, engine: FakeEngine, other: FakeEngine
) -> None:
    running = await serve(engine)
    for answer, param in (
        (await register(running, other, "replica-0"), "name"),
        (await register(running, engine, "new"), "url"),
        (await register(running, engine.url + "/", "new"), "url"),
    ):
        assert (answer.status_code, answer.json()["error"]["param"]) == (409, param)
    assert (await running.client.delete("/v1/replicas/replica-0")).status_code == 409
    assert not (await listed(running))["replica-0"]["registered"]


async def test_ranks_are_replicas_of_one_registration(
    serve: Serve, engine: FakeEngine, other: FakeEngine
) -> None:
    running = await serve(registration={"most": 3})
    assert (await register(running, engine, "dp", ranks=2)).status_code == 200
    assert list(await listed(running)) == ["dp.0", "dp.1"]
    assert (await register(running, other, "dp.1")).status_code == 409
    refused = await register(running, other, "more", ranks=2)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_many_replicas")
    assert (await register(running, other, "dp", ranks=3)).status_code == 200, "it takes the place of its own"
    assert len(await listed(running)) == 3


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"url": "ftp://engine"}, "url", "http"),
        ({"url": "http://user:pw@engine"}, "url", "credentials"),
        ({"url": "http://no..name:1"}, "url", "host is no name"),
        ({"engine": "tgi"}, "engine", "vllm"),
        ({"name": "a b"}, "name", "pattern"),
        ({"name": {}}, "name", "string"),
        ({"name": "a" * 129}, "name", "128"),
        ({"lease_s": 1}, "lease_s", "5"),
        ({"lease_s": 301}, "lease_s", "300"),
        ({"lease_s": "soon"}, "lease_s", "number"),
        ({"replay": "tcp://h:1"}, None, "replay without events"),
        ({"events": "tcp://*:5557"}, None, "nobody can connect"),
        ({"agent": "http://h:1"}, "agent", "tcp://HOST:PORT"),
        ({"agent": f"ipc:///{'x' * 100}"}, None, "agent: a socket's path"),
        ({"events": f"ipc:///{'x' * 107}"}, None, "events: a socket's path"),
        ({"agent": "tcp://h:1", "agent_key": "x" * 40}, "agent_key", "registration.agent_secret_file"),
        ({"agent_secret_file": "/etc/passwd"}, "agent_secret_file", "a registration has"),
        ({"api_key_file": "/etc/passwd"}, "api_key_file", "a registration has"),
        ({"bind_events": True}, "bind_events", "a registration has"),
    ],
)
async def test_what_is_no_registration_is_said_to_be_none(
    serve: Serve, fields: dict[str, Any], param: str | None, says: str
) -> None:
    running = await serve()
    body = {"name": "new", "url": "http://127.0.0.1:1", **fields}
    answer = await running.client.post("/v1/replicas", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert says in error["message"]
    assert not len(running.gateway.fleet)


async def test_only_an_admin_key_registers(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(access={"api_keys": ["user"], "admin_keys": ["admin"]})
    body = {"url": engine.url}

    async def status(method: str, path: str, key: str) -> int:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        json = body if method == "POST" else None
        answer: httpx2.Response = await running.client.request(method, path, json=json, headers=headers)
        return answer.status_code

    for method, path in (("POST", "/v1/replicas"), ("GET", "/v1/replicas"), ("DELETE", "/v1/replicas/x")):
        assert [await status(method, path, key) for key in ("", "user")] == [401, 403]
    assert await status("POST", "/v1/replicas", "admin") == 200


async def test_an_agent_that_registers_is_followed_with_the_gateways_own_key(
    serve: Serve, engine: FakeEngine, tmp_path: Path
) -> None:
    agent_key = keys.make(tmp_path / "agent").decode()
    keys.make(tmp_path / "gateway")
    running = await serve(registration={"agent_secret_file": str(tmp_path / "gateway" / "secret.key")})
    address = f"ipc://{tmp_path}/nobody"
    answer = await register(running, engine, agent=address, agent_key=agent_key)
    assert answer.status_code == 200, answer.text
    await until_up(running)
    used = running.gateway.fleet["new"].engine.address.rank_agent
    assert used is not None
    assert used.keys is not None
    told = (await listed(running))["new"]["agent"]
    assert (told["address"], told["alive"]) == (address, False)
    assert told["reason"]
    refused = await register(running, engine, agent=address, agent_key="short")
    assert (refused.status_code, "40 characters" in refused.text) == (400, True)


async def test_an_engines_own_registration_is_understood(
    serve: Serve, engine: FakeEngine, tmp_path: Path
) -> None:
    running = await serve(access={"admin_keys": ["admin"]})
    (tmp_path / "key").write_text("admin\n")
    (tmp_path / "key").chmod(0o600)
    gateway = GatewaySettings(url=running.url, replica_url=engine.url, admin_key_file=tmp_path / "key")
    said = registration.Replica(url=engine.url, engine="vllm", events=f"ipc://{tmp_path}/events")
    kept = await asyncio.to_thread(registration.Registration, gateway, said)
    name = engine.url.removeprefix("http://")
    await until_up(running, name)
    assert (await running.chat()).headers["x-hpkv-replica"] == name
    await asyncio.to_thread(kept.close)
    assert running.gateway.fleet.get(name) is None
