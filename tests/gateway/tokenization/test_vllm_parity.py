"""Against vLLM's own front end: SmolLM2, and a small random model of another family behind a few flags."""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.tokenization import (
    EncodePool,
    Endpoint,
    Limits,
    ModelTokenizer,
    Reason,
    TemplateOptions,
    Tokens,
    Unknown,
    Verdict,
)
from tests.gateway.tokenization.comparing import compare
from tests.gateway.tokenization.conftest import OpenModel
from tests.gateway.tokenization.driving import now
from tests.gateway.tokenization.front_end import SMOLLM2, VllmFrontEnd, vllm_front_end

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

USER = {"role": "user", "content": "Hello there"}
FLAGS = TemplateOptions(chat_template_kwargs={"flavour": "default"}, exclude_tools_when_tool_choice_none=True)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmFrontEnd]:
    with vllm_front_end(str(SMOLLM2), tmp_path_factory.mktemp("logs") / "smollm2.log") as front_end:
        yield front_end


@pytest.fixture(scope="module")
def rich(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmFrontEnd]:
    flags = (
        '--default-chat-template-kwargs={"flavour": "default"}',
        "--exclude-tools-when-tool-choice-none",
        "--served-model-name=tiny",
    )
    log = tmp_path_factory.mktemp("logs") / "rich.log"
    with vllm_front_end(folders["rich"], log, *flags) as front_end:
        yield front_end


async def test_smollm2_agrees_at_start(open_model: OpenModel, smollm2: VllmFrontEnd):
    parity = await (await open_model(str(SMOLLM2), call=smollm2)).check_parity()
    assert parity.verdict is Verdict.AGREES, str(parity)
    assert parity.compared > 55  # almost every awkward request, by both of its routes


async def test_another_family_with_flags_agrees_at_start(open_model: OpenModel, rich: VllmFrontEnd):
    parity = await (await open_model("rich", call=rich, options=FLAGS)).check_parity()
    assert parity.verdict is Verdict.AGREES, str(parity)
    assert parity.compared > 55


async def test_flags_that_arent_the_engines_are_noticed(open_model: OpenModel, rich: VllmFrontEnd):
    parity = await (await open_model("rich", call=rich)).check_parity()
    assert parity.verdict is Verdict.DISAGREES
    assert parity.first is not None


async def test_smollm2_renders_any_chat_as_vllm_does(open_model: OpenModel, smollm2: VllmFrontEnd):
    _compare_many(await open_model(str(SMOLLM2)), smollm2)


async def test_another_family_renders_any_chat_as_vllm_does(open_model: OpenModel, rich: VllmFrontEnd):
    _compare_many(await open_model("rich", options=FLAGS), rich)


def _compare_many(model: ModelTokenizer, front_end: VllmFrontEnd) -> None:
    render = "/v1/chat/completions/render"
    outcomes = compare(model, lambda body: front_end.post(render, body)["token_ids"], 300)
    assert outcomes["equal"] > 60, outcomes
    assert outcomes["unknown"] < outcomes["equal"] / 4, outcomes


async def test_completions_are_encoded_as_vllm_does(
    pool: EncodePool, folders: dict[str, str], rich: VllmFrontEnd
):
    model = await ModelTokenizer.open(folders["rich"], engine="vllm", pool=pool, options=FLAGS)
    for body in (
        {"prompt": "Once upon a time"},
        {"prompt": ["Once <|eot|>"], "add_special_tokens": False},
        {"prompt": [5, 6, 7]},
        {"prompt": "one two three", "truncate_prompt_tokens": 500},
    ):
        answer = now(model.tokens(Endpoint.COMPLETIONS, body))
        assert isinstance(answer, Tokens)
        assert answer.ids.tolist() == rich.post("/v1/completions/render", body)[0]["token_ids"]


@pytest.mark.parametrize(
    ("endpoint", "body", "as_chat"),
    [
        (Endpoint.RESPONSES, {"input": "Hello there"}, {"add_special_tokens": True}),
        (Endpoint.MESSAGES, {"messages": [USER], "max_tokens": 5, "model": "tiny"}, {}),
    ],
)
async def test_vllm_renders_responses_and_messages(
    open_model: OpenModel,
    rich: VllmFrontEnd,
    endpoint: Endpoint,
    body: dict[str, Any],
    as_chat: dict[str, Any],
):
    model = await open_model("rich", call=rich, options=FLAGS, limits=Limits(render_deadline_s=5.0))
    chat = await model.tokens(Endpoint.CHAT, {"messages": [USER], **as_chat})
    answer = await model.tokens(endpoint, body)
    assert isinstance(chat, Tokens)
    assert isinstance(answer, Tokens), answer
    assert answer.ids.tolist() == chat.ids.tolist()


async def test_a_stored_responses_follow_up_is_unknown(open_model: OpenModel, rich: VllmFrontEnd):
    model = await open_model("rich", call=rich, options=FLAGS, limits=Limits(render_deadline_s=5.0))
    answer = await model.tokens(Endpoint.RESPONSES, {"input": "x", "previous_response_id": "resp_1"})
    assert answer == Unknown(Reason.REFUSED, "/v1/responses/render")
