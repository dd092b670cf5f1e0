"""Each kind of fault that users of such gateways report, by its name."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest
from transformers import AutoTokenizer

from gateway.tokenization import (
    EncodePool,
    Endpoint,
    Limits,
    ModelTokenizer,
    Overloaded,
    Reason,
    Tokens,
    Unknown,
)
from gateway.tokenization.samples import prose
from tests.gateway.tokenization.conftest import OpenModel

USER = {"role": "user", "content": "What's the weather in Paris?"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}},
}


async def ids(
    model: ModelTokenizer, body: Mapping[str, Any], endpoint: Endpoint = Endpoint.CHAT
) -> list[int]:
    answer = await model.tokens(endpoint, body)
    assert isinstance(answer, Tokens), answer
    return answer.ids.tolist()


class TestRenderedPromptDiffersFromTheEngines:
    async def test_template_not_applied_to_chat(self, open_model: OpenModel, folders: dict[str, str]):
        model = await open_model("byte_level")
        reference = AutoTokenizer.from_pretrained(folders["byte_level"])
        expected = reference.apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
        assert await ids(model, {"messages": [USER]}) == expected
        assert expected != reference.encode(USER["content"])

    async def test_messages_ignored(self, open_model: OpenModel):
        model = await open_model("byte_level")
        conversations = [[USER], [USER, USER], [{**USER, "content": "Hi"}], [{**USER, "role": "system"}]]
        prompts = {tuple(await ids(model, {"messages": messages})) for messages in conversations}
        assert len(prompts) == len(conversations)

    @pytest.mark.parametrize("name", ["byte_level", "prefix_space", "unigram"])
    async def test_one_tokenizer_for_all_models(
        self, open_model: OpenModel, folders: dict[str, str], name: str
    ):
        opened = {other: await open_model(other) for other in ("byte_level", "prefix_space", "unigram")}
        reference = AutoTokenizer.from_pretrained(folders[name])
        text = "The quick brown fox"
        assert await ids(opened[name], {"prompt": text}, Endpoint.COMPLETIONS) == reference(text)["input_ids"]

    async def test_multimodal_content_encoded_as_if_it_were_text(self, open_model: OpenModel):
        model = await open_model("rich")
        for part in (
            {"type": "image_url", "image_url": {"url": "data:,"}},
            {"type": "input_audio", "input_audio": {}},
        ):
            content = [{"type": "text", "text": "What's this?"}, part]
            answer = await model.tokens(Endpoint.CHAT, {"messages": [{"role": "user", "content": content}]})
            assert answer == Unknown(Reason.MEDIA, "messages[0].content[1]")

    async def test_messages_endpoint_never_tokenized(self, open_model: OpenModel):
        async def engine(path: str, body: Mapping[str, Any]) -> Any:
            assert path == "/v1/messages/render"
            return {"token_ids": [7, 8, 9], "features": None}

        model = await open_model("byte_level", call=engine)
        assert await ids(model, {"messages": [USER], "max_tokens": 1}, Endpoint.MESSAGES) == [7, 8, 9]

    async def test_responses_endpoint_hashed_as_empty(self, open_model: OpenModel):
        model = await open_model("byte_level")
        for body in ({"input": "hi"}, {"input": [USER]}, {"input": "hi", "previous_response_id": "x"}):
            answer = await model.tokens(Endpoint.RESPONSES, body)
            assert answer == Unknown(Reason.NOT_RENDERED_HERE, Endpoint.RESPONSES)

    async def test_tools_and_template_options_left_out(self, open_model: OpenModel, folders: dict[str, str]):
        model = await open_model("rich")
        reference = AutoTokenizer.from_pretrained(folders["rich"])
        plain = await ids(model, {"messages": [USER]})
        seen = {**USER, "content": [{"type": "text", "text": USER["content"]}]}  # the template loops over it
        for body, options in (
            ({"tools": [TOOL]}, {"tools": [TOOL]}),
            ({"chat_template_kwargs": {"flavour": "x"}}, {"flavour": "x"}),
            ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
            ({"documents": [{"text": "x"}]}, {"documents": [{"text": "x"}]}),
            ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        ):
            text = reference.apply_chat_template(
                [seen], tokenize=False, **{"add_generation_prompt": True, **options}
            )
            found = await ids(model, {"messages": [USER], **body})
            assert found == reference(text, add_special_tokens=False)["input_ids"]
            assert found != plain


class TestTokenizingBecomesTheBottleneck:
    async def test_saturation_adds_no_seconds(self, open_model: OpenModel, pool: EncodePool):
        model = await open_model("byte_level")
        pool.max_wait_s = 0.05
        bodies = [{"prompt": f"{number} " + prose(20_000)} for number in range(30)]
        started = time.perf_counter()
        asked = [asyncio.create_task(model.tokens(Endpoint.COMPLETIONS, body)) for body in bodies]
        done, _ = await asyncio.wait(asked)
        refused = [task for task in done if isinstance(task.exception(), Overloaded)]
        assert refused
        assert len(refused) == pool.refused
        assert len(refused) < len(bodies)
        assert time.perf_counter() - started < 3 * len(bodies)
        assert isinstance(await model.tokens(Endpoint.COMPLETIONS, {"prompt": "short"}), Tokens)

    async def test_a_slow_render_service_delays_nobody(self, open_model: OpenModel):
        async def engine(path: str, body: Mapping[str, Any]) -> Any:
            await asyncio.sleep(60)

        limits = Limits(renders_at_once=2, render_deadline_s=0.2)
        model = await open_model("byte_level", call=engine, limits=limits)
        started = time.perf_counter()
        asked = (model.tokens(Endpoint.RESPONSES, {"input": "hi"}) for _ in range(50))
        answers = await asyncio.gather(*asked)
        assert time.perf_counter() - started < 3 * limits.render_deadline_s
        reasons = [answer.reason for answer in answers if isinstance(answer, Unknown)]
        assert sorted(reasons) == sorted([Reason.ENGINE_SILENT] * 2 + [Reason.ENGINE_BUSY] * 48)

    async def test_the_event_loop_stalls(self, open_model: OpenModel):
        model = await open_model("byte_level")
        body = {"prompt": prose(150_000)}
        encoding = asyncio.create_task(model.tokens(Endpoint.COMPLETIONS, body))
        turns = 0
        while not encoding.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert (
            turns > 20
        )  # a call on the loop, or one that kept the interpreter's lock, would leave one or two
        assert isinstance(encoding.result(), Tokens)
