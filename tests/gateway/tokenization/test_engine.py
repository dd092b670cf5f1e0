import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.tokenization import Endpoint, EngineRefused, EngineUnreachable, Reason, Tokens, Unknown
from gateway.tokenization.dialects.base import ModelFacts, Question, TemplateOptions, Unrenderable
from gateway.tokenization.dialects.vllm import VllmDialect
from gateway.tokenization.engine import Engine, EngineRenderer
from gateway.tokenization.template import Templates

DIALECT = VllmDialect(ModelFacts(Templates.of(None, {})), TemplateOptions())
BODY = {"input": "hi", "model": "m"}


class Answering:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        self.asked.append((path, body))
        await self.go.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def renderer(call: "Answering | None", at_once: int = 2) -> EngineRenderer:
    return EngineRenderer(DIALECT, Engine(call) if call else None, at_once=at_once, deadline_s=0.2)


@pytest.mark.parametrize("endpoint", [Endpoint.RESPONSES, Endpoint.MESSAGES])
async def test_the_engine_renders(endpoint: Endpoint):
    engine = Answering({"token_ids": [1, 2], "features": None})
    answer = await renderer(engine).tokens(endpoint, BODY)
    assert isinstance(answer, Tokens)
    assert answer.ids.tolist() == [1, 2]
    assert engine.asked == [(f"{endpoint}/render", BODY)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"token_ids": [1], "features": {"mm_hashes": {}}}, Reason.MEDIA),
        ({"token_ids": ["a"]}, Reason.ENGINE_SILENT),
        ({"token_ids": None}, Reason.ENGINE_SILENT),
        ({"token_ids": [-1]}, Reason.ENGINE_SILENT),
        ([], Reason.ENGINE_SILENT),
        (EngineRefused("/x", 400), Reason.REFUSED),
        (EngineRefused("/x", 500), Reason.ENGINE_SILENT),
        (EngineUnreachable("/x", "gone"), Reason.ENGINE_SILENT),
        (EngineRefused("/x", 403), Reason.NOT_RENDERED_HERE),
        (EngineRefused("/x", 404), Reason.REFUSED),
    ],
)
async def test_anything_else_is_unknown(answer: Any, reason: Reason):
    assert await renderer(Answering(answer)).tokens(Endpoint.RESPONSES, BODY) == Unknown(
        reason, "/v1/responses/render"
    )


async def test_an_answer_without_ids_is_no_empty_prompt():
    with pytest.raises(EngineUnreachable, match="token_ids"):
        await Engine(Answering({})).ids(Question("/x", {}, "token_ids"))
    with pytest.raises(Unrenderable):
        await Engine(Answering({"tokens": [1], "features": {}})).ids(Question("/x", {}, "tokens"))


async def test_a_route_that_isnt_served_is_left_alone():
    engine = Answering(EngineRefused("/x", 403))
    render = renderer(engine)
    for _ in range(3):
        answer = await render.tokens(Endpoint.RESPONSES, BODY)
        assert isinstance(answer, Unknown)
        assert answer.reason is Reason.NOT_RENDERED_HERE
    await render.tokens(Endpoint.MESSAGES, BODY)
    assert [path for path, _ in engine.asked] == ["/v1/responses/render", "/v1/messages/render"]


async def test_an_unknown_model_doesnt_close_the_route_to_others():
    engine = Answering(EngineRefused("/x", 404))
    render = renderer(engine)
    await render.tokens(Endpoint.RESPONSES, {**BODY, "model": "other"})
    engine.answer = {"token_ids": [1]}
    assert isinstance(await render.tokens(Endpoint.RESPONSES, BODY), Tokens)


async def test_without_an_engine_nothing_is_asked():
    assert await renderer(None).tokens(Endpoint.MESSAGES, BODY) == Unknown(
        Reason.NOT_RENDERED_HERE, "/v1/messages"
    )


async def test_a_cancelled_request_frees_its_place():
    engine = Answering({"token_ids": [1]})
    engine.go.clear()
    render = renderer(engine, at_once=1)
    first = asyncio.create_task(render.tokens(Endpoint.RESPONSES, BODY))
    await asyncio.sleep(0)
    assert (await render.tokens(Endpoint.RESPONSES, BODY)) == Unknown(
        Reason.ENGINE_BUSY, "/v1/responses/render"
    )
    first.cancel()
    await asyncio.wait([first])
    engine.go.set()
    assert isinstance(await render.tokens(Endpoint.RESPONSES, BODY), Tokens)
