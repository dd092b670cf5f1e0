from typing import Any

import pytest

from gateway.stored import StoredResponses
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import Running, Serve


async def respond(running: Running, **fields: Any) -> tuple[str, str]:
    """A response's id, and the replica that made it."""
    body = {"model": "fake", "input": "hi", **fields}
    answer = await running.client.post("/v1/responses", json=body)
    assert answer.status_code == 200
    found = answer.text.split('"id"')[1].split('"')[1]
    return found, answer.headers["x-hpkv-replica"]


@pytest.mark.parametrize("stream", [False, True])
async def test_everything_about_a_response_goes_to_its_replica(
    serve: Serve, engine: FakeEngine, other: FakeEngine, stream: bool
) -> None:
    running = await serve(engine, other, routing={"policy": "round_robin"})
    for _ in range(3):
        response, home = await respond(running, stream=stream)
        fake = (engine, other)[int(home[-1])]
        for _ in range(2):
            assert (await respond(running, previous_response_id=response))[1] == home
            await running.client.get(f"/v1/responses/{response}")
            await running.client.post(f"/v1/responses/{response}/cancel")
        assert len(fake.requests(f"/v1/responses/{response}")) == 2
        assert len(fake.requests(f"/v1/responses/{response}/cancel")) == 2


async def test_an_unknown_response(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    answer = await running.client.get("/v1/responses/resp_none")
    assert answer.status_code == 404
    assert "resp_none" in answer.json()["error"]["message"]
    assert (await running.client.post("/v1/responses/resp_none")).status_code == 405
    assert (await running.client.get("/v1/responses/resp_none/other")).status_code == 404


async def test_a_response_is_for_the_key_that_made_it(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine, access={"api_keys": ["sk-1", "sk-2"]})
    running.client.headers["authorization"] = "Bearer sk-1"
    response, _ = await respond(running)
    path = f"/v1/responses/{response}"
    running.client.headers["authorization"] = "Bearer sk-2"
    unknown = (await running.client.get(f"{path}x")).json()["error"]
    for answer in (await running.client.get(path), await running.client.post(f"{path}/cancel")):
        assert answer.status_code == 404
        assert answer.json()["error"] == {
            **unknown,
            "message": unknown["message"].replace(f"{response}x", response),
        }
    body = {"model": "fake", "input": "hi", "previous_response_id": response}
    answer = await running.client.post("/v1/responses", json=body)
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "previous_response_id"
    assert not engine.requests(path) + engine.requests(f"{path}/cancel")
    running.client.headers["authorization"] = "Bearer sk-1"
    assert (await running.client.get(path)).status_code == 200
    assert (await respond(running, previous_response_id=response))[1] == "replica-0"


def test_taking_anothers_id_does_not_make_it_ones_own() -> None:
    stored = StoredResponses()
    stored.note(b'{"id":"resp_1"}', "a", "owner")
    stored.note(b'{"id":"resp_1"}', "b", "thief")
    assert stored.replica("resp_1") == "a"
    assert stored.allows("resp_1", "owner")
    assert not stored.allows("resp_1", "thief")


async def test_it_takes_a_key(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine, access={"api_keys": ["sk-1"]})
    assert (await running.client.get("/v1/responses/resp_none")).status_code == 401
