import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import orjson
import pytest
from starlette.responses import Response

from engine_adapters.base import Address, Load, Refusal
from engine_adapters.errors import EngineAnswerInvalid
from engine_adapters.http import Connection, Timeouts, create_transport
from engine_adapters.sglang.http import SglangEngine
from tests.fakes.faults import Received
from tests.fakes.generation import Generation
from tests.fakes.sglang import FakeSglang

NOWHERE = SglangEngine(Address(cast(Connection, None)))
LIMIT_S = 10.0
TOO_LONG = "The input (9 tokens) is longer than the model's context length (8 tokens)."


@contextlib.asynccontextmanager
async def seen(fake: FakeSglang, **address: Any) -> AsyncIterator[SglangEngine]:
    transport = create_transport()
    async with fake:
        connection = Connection(fake.url, transport, Timeouts(5, 5))
        yield SglangEngine(Address(connection, **address))
    await transport.aclose()


@pytest.mark.parametrize(
    ("status", "body", "refusal"),
    [
        (
            400,
            {"object": "error", "message": "Messages cannot be empty.", "param": None},
            Refusal("Messages cannot be empty.", "invalid_request_error", None, None),
        ),
        (
            400,
            {"object": "error", "message": TOO_LONG},
            Refusal(
                TOO_LONG,
                "invalid_request_error",
                None,
                "context_length_exceeded",
            ),
        ),
        (
            400,
            {"object": "error", "message": "{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'no'}"},
            Refusal(
                "{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'no'}",
                "invalid_request_error",
                "messages",
                None,
            ),
        ),
        (
            400,
            {"error": {"message": "x", "type": "Bad Request", "param": None, "code": 400}},
            Refusal("x", "invalid_request_error", None, None),
        ),
        (
            400,
            {"type": "error", "error": {"type": "invalid_request_error", "message": "x"}},
            Refusal("x", "invalid_request_error", None, None),
        ),
        (404, {"object": "error", "message": "no"}, Refusal("no", "not_found_error", None, None)),
        (503, {"object": "error", "message": "full"}, Refusal("full", "server_error", None, None)),
    ],
)  # fmt: skip
def test_every_shape_of_error_is_read(status: int, body: Any, refusal: Refusal) -> None:
    assert NOWHERE.refusal(status, orjson.dumps(body)) == refusal


def test_an_adapter_is_named_where_sglang_looks_for_it() -> None:
    body = b' {"model": "tuned", "messages": []}'
    assert NOWHERE.addressed(body, "fake", lora=False) is body
    assert orjson.loads(NOWHERE.addressed(body, 'tu"ned', lora=True)) == {
        "model": "tuned",
        "messages": [],
        "lora_path": 'tu"ned',
    }


async def test_the_models_say_where_their_tokenizer_lies() -> None:
    async with seen(FakeSglang(loras=["tuned"])) as engine:
        cards = await engine.models(timeout_s=LIMIT_S)
    assert [(card.id, card.root, card.parent) for card in cards] == [
        ("fake", "/models/fake", None),
        ("tuned", "/adapters/tuned", "fake"),
    ]


async def test_the_load_is_that_of_the_rank() -> None:
    async with seen(FakeSglang(num_blocks=10, rank=1), rank=1, ranks=2) as engine:
        assert await engine.load(timeout_s=LIMIT_S) == Load(0, 0, 0.0)
        assert engine.headers == [(b"x-data-parallel-rank", b"1")]
    async with seen(FakeSglang(rank=1), rank=0, ranks=2) as engine:
        assert await engine.load(timeout_s=LIMIT_S) == Load(0, 0, 0.0)


async def test_it_is_well_when_it_says_that_it_is_ready() -> None:
    fake = FakeSglang()
    async with seen(fake) as engine:
        await engine.check_health(timeout_s=LIMIT_S)
        assert not fake.requests("/health"), "that would have a token generated"
        fake.faults.health_status = 503
        with pytest.raises(EngineAnswerInvalid, match="503"):
            await engine.check_health(timeout_s=LIMIT_S)


async def test_what_another_server_says_is_no_load() -> None:
    class Other(FakeSglang):
        def _load(self) -> dict[str, Any]:
            return {"num_running_reqs": "many"}

    async with seen(Other()) as engine:
        with pytest.raises(EngineAnswerInvalid, match="/v1/loads"):
            await engine.load(timeout_s=LIMIT_S)


async def test_a_wrong_number_of_ranks_is_told() -> None:
    async with seen(FakeSglang(), ranks=2) as engine:
        with pytest.raises(EngineAnswerInvalid, match="has 1 data-parallel ranks, not 2: say `ranks: 1`"):
            await engine.models(timeout_s=LIMIT_S)


async def test_a_proxy_may_keep_the_loads_to_itself() -> None:
    class Proxied(FakeSglang):
        async def _answer(self, request: Received) -> Response | Generation:
            if request.path == "/v1/loads":
                return Response(status_code=404)
            return await super()._answer(request)

    async with seen(Proxied(), ranks=2) as engine:
        assert len(await engine.models(timeout_s=LIMIT_S)) == 1
