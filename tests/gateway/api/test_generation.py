"""Requests that are refused before any replica sees them."""

from typing import Any

import pytest

from gateway.api.endpoints import ENDPOINTS
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import Serve, chat


def asked(engine: FakeEngine) -> int:
    return sum(request.method == "POST" for request in engine.received)


async def test_malformed_json_says_where(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    answer = await running.client.post("/v1/chat/completions", content=b'{"model":\n nonsense}')
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert "line 2, column 2" in error["message"]
    assert error["code"] == "invalid_json"
    assert asked(engine) == 0


@pytest.mark.parametrize("content", [b"[]", b"1", b"null", b'"x"', b""])
async def test_a_body_must_be_an_object(serve: Serve, engine: FakeEngine, content: bytes) -> None:
    running = await serve(engine)
    answer = await running.client.post("/v1/chat/completions", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 1),
        ("messages", "hi"),
        ("messages", [1]),
        ("stream", "yes"),
        ("stream_options", []),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("temperature", "hot"),
        ("stop", {}),
        ("tools", {}),
        ("user", 1),
    ],
)
async def test_a_wrong_type_names_the_field(serve: Serve, engine: FakeEngine, field: str, value: Any) -> None:
    running = await serve(engine)
    answer = await running.client.post("/v1/chat/completions", json={**chat(), field: value})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == field
    assert f"'{field}'" in error["message"]
    assert error["type"] == "invalid_request_error"
    assert asked(engine) == 0


@pytest.mark.parametrize("field", ["model", "messages"])
async def test_a_missing_field_is_named(serve: Serve, engine: FakeEngine, field: str) -> None:
    running = await serve(engine)
    body = chat()
    del body[field]
    answer = await running.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


async def test_null_stands_for_a_default(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    answer = await running.chat(max_tokens=1, temperature=None, stop=None, stream=None, user=None)
    assert answer.status_code == 200


async def test_a_large_body_is_refused(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine, limits={"body_bytes": 1000})
    announced = await running.chat("x" * 1000)

    async def pieces() -> Any:
        for _ in range(20):
            yield b" " * 100

    unannounced = await running.client.post("/v1/chat/completions", content=pieces())
    for answer in (announced, unannounced):
        assert answer.status_code == 413
        assert "1000 bytes" in answer.json()["error"]["message"]
    assert asked(engine) == 0


async def test_keys(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine, access={"api_keys": ["sk-user"], "admin_keys": ["sk-admin"]})
    none = await running.chat(max_tokens=1)
    assert none.status_code == 401
    assert none.json()["error"]["code"] == "invalid_api_key"
    for headers in ({"authorization": "Bearer sk-user"}, {"x-api-key": "sk-admin"}):
        answer = await running.client.post("/v1/chat/completions", json=chat(max_tokens=1), headers=headers)
        assert answer.status_code == 200
    assert (await running.client.get("/v1/models")).status_code == 401
    assert (await running.client.get("/readyz")).status_code == 200


async def test_other_methods_and_paths(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    answer = await running.client.get("/v1/chat/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    answer = await running.client.post("/v1/models")
    assert answer.status_code == 405
    answer = await running.client.post("/v1/nothing")
    assert answer.status_code == 404
    for key in ("message", "type", "param", "code"):
        assert key in answer.json()["error"]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
async def test_every_endpoint_reaches_an_engine(serve: Serve, endpoint: Any, engine: FakeEngine) -> None:
    examples = {
        "messages": [{"role": "user", "content": "hi"}],
        "prompt": "hi",
        "input": "hi",
        "query": "q",
        "documents": ["a", "b"],
        "tokens": [104, 105],
        "max_tokens": 3,
    }
    async with FakeEngine(pooling=True) as pooling:
        wants_pooling = endpoint.path in ("/v1/embeddings", "/v1/rerank", "/v1/score")
        fake = pooling if wants_pooling else engine
        running = await serve(fake)
        body = {"model": "fake", **{name: examples[name] for name in endpoint.required if name != "model"}}
        if endpoint.path == "/v1/score":
            body |= {"text_1": "a", "text_2": "b"}
        if endpoint.path == "/tokenize":
            body |= {"prompt": "hi"}
        answer = await running.client.post(endpoint.path, json=body)
        assert answer.status_code == 200, answer.text
        assert fake.requests(endpoint.path)[-1].json == body


async def test_a_query_is_passed_on(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    await running.client.post("/v1/chat/completions?debug=1&x=%20", json=chat(max_tokens=1))
    assert len(engine.requests("/v1/chat/completions")) == 1


async def test_every_answer_has_a_request_id(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    for path in ("/health", "/v1/models", "/nowhere", "/v1/chat/completions"):
        assert len((await running.client.get(path)).headers["x-request-id"]) == 32
    kept = await running.client.get("/health", headers={"x-request-id": "a-1"})
    assert kept.headers["x-request-id"] == "a-1"
    unsafe = await running.client.get("/health", headers={"x-request-id": "a b" + "c" * 200})
    assert len(unsafe.headers["x-request-id"]) == 32


async def test_models_are_the_union_of_the_living(serve: Serve) -> None:
    async with FakeEngine("small", loras=["poet"]) as small, FakeEngine("large") as large:
        serving = await serve(small, large)
        ids = [card["id"] for card in (await serving.client.get("/v1/models")).json()["data"]]
        assert sorted(ids) == ["large", "poet", "small"]
        assert (await serving.client.get("/v1/models/poet")).json()["id"] == "poet"
        missing = await serving.client.get("/v1/models/none")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"
        large.stop()
        serving.gateway.fleet["replica-1"].fall("stopped")
        ids = [card["id"] for card in (await serving.client.get("/v1/models")).json()["data"]]
        assert sorted(ids) == ["poet", "small"]
