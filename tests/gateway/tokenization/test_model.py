import asyncio
import logging
from types import SimpleNamespace

import pytest

from gateway.tokenization import (
    Endpoint,
    Limits,
    ModelTokenizer,
    Reason,
    TokenizerUnavailable,
    Tokens,
    Unknown,
    Verdict,
)
from tests.gateway.tokenization import families
from tests.gateway.tokenization.conftest import OpenModel
from tests.gateway.tokenization.driving import now
from tests.gateway.tokenization.fake_front_end import FrontEnd

CHAT = {"messages": [{"role": "user", "content": "What's the weather?"}]}
RENDER = "/v1/chat/completions/render"


async def ids(model: ModelTokenizer, body: dict[str, object] = CHAT) -> list[int]:
    answer = await model.tokens(Endpoint.CHAT, body)
    assert isinstance(answer, Tokens), answer
    return answer.ids.tolist()


async def test_answers_with_read_only_ids(open_model: OpenModel):
    model = await open_model("byte_level")
    answer = now(model.tokens(Endpoint.CHAT, CHAT))
    assert isinstance(answer, Tokens)
    assert answer.ids.dtype == "uint32"
    assert not answer.ids.flags.writeable
    assert model.segmented
    assert model.memory_used > 0


async def test_says_why_it_doesnt_know(open_model: OpenModel):
    model = await open_model("byte_level")
    several = await model.tokens(Endpoint.COMPLETIONS, {"prompt": ["a", "b"]})
    assert several == Unknown(Reason.SEVERAL_PROMPTS, "prompt")
    assert await model.tokens(Endpoint.COMPLETIONS, {"prompt": "\ud800"}) == Unknown(
        Reason.SHAPE, "lone surrogates"
    )


async def test_what_the_tokenizer_fails_on_is_unknown(
    open_model: OpenModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    model = await open_model("byte_level")

    def fail(texts: object, add_special_tokens: bool) -> None:
        raise RuntimeError("the text")

    monkeypatch.setattr(model._encoder, "_backend", SimpleNamespace(encode_batch_fast=fail))
    assert await model.tokens(Endpoint.CHAT, CHAT) == Unknown(Reason.NOT_ENCODED, "RuntimeError")
    assert "RuntimeError" in caplog.text
    assert "the text" not in caplog.text


async def test_a_limit_above_the_prompts_length_changes_nothing(open_model: OpenModel):
    model = await open_model("byte_level")
    length = len(await ids(model))
    assert await ids(model, {**CHAT, "truncate_prompt_tokens": length}) == await ids(model)
    over = await model.tokens(Endpoint.CHAT, {**CHAT, "truncate_prompt_tokens": length - 1})
    assert over == Unknown(Reason.TRUNCATED, "truncate_prompt_tokens")


async def test_an_engine_without_a_dialect_is_refused(open_model: OpenModel, folders: dict[str, str]):
    with pytest.raises(TokenizerUnavailable, match="'vllm'"):
        await ModelTokenizer.open(folders["byte_level"], engine="other", pool=None)  # type: ignore[arg-type]


async def test_memory_stays_within_its_limit(open_model: OpenModel):
    model = await open_model("byte_level", limits=Limits(memory_bytes=200_000))
    for number in range(500):
        body = {"messages": [{"role": "user", "content": f"prompt {number} {'words ' * (number % 90)}"}]}
        now(model.tokens(Endpoint.CHAT, body))
        assert model.memory_used <= 200_000
    assert model.memory_used > 100_000


@pytest.mark.parametrize("routes", [(), (RENDER,)])
async def test_a_model_that_agrees_is_proved_at_start(
    open_model: OpenModel, caplog: pytest.LogCaptureFixture, routes: tuple[str, ...]
):
    engine = FrontEnd(await open_model("rich"), *routes)
    model = await open_model("rich", call=engine)
    with caplog.at_level(logging.INFO):
        parity = await model.check_parity()
    assert parity.verdict is Verdict.AGREES
    assert parity.compared > 30 * (1 + len(routes)) - 6
    assert "agrees, 0 of" in caplog.text


@pytest.mark.parametrize("other", ["byte_level", "unigram"])
async def test_a_model_that_disagrees_is_unknown_and_says_where(
    open_model: OpenModel, caplog: pytest.LogCaptureFixture, other: str
):
    model = await open_model("rich", call=FrontEnd(await open_model(other)), limits=Limits(sampled=0.0))
    parity = await model.check_parity()
    assert parity.verdict is Verdict.DISAGREES
    assert parity.first is not None
    used = model.memory_used
    unseen = {"messages": [{"role": "user", "content": "unseen"}]}
    assert now(model.tokens(Endpoint.CHAT, unseen)) == Unknown(Reason.DISAGREES)
    assert model.memory_used == used  # nothing is encoded for nothing
    assert "the prompts differ from token" in caplog.text
    assert "weather" not in caplog.text


async def test_an_engine_that_doesnt_tell_leaves_it_unproven(open_model: OpenModel):
    class Mute(FrontEnd):
        async def __call__(self, path: str, body: object) -> object:
            return await super().__call__("/nothing", {})

    model = await open_model("byte_level", call=Mute(await open_model("byte_level")))
    assert (await model.check_parity()).verdict is Verdict.UNPROVEN
    assert await ids(model)


async def test_live_traffic_is_compared_and_drift_is_noticed(
    open_model: OpenModel, caplog: pytest.LogCaptureFixture
):
    engine = FrontEnd(await open_model("byte_level"))
    model = await open_model("byte_level", call=engine, limits=Limits(sampled=1.0))
    await model.check_parity()
    engine._model = await open_model("unigram")  # the engine was started again with something else
    for _ in range(2):
        assert await ids(model)
        await asyncio.sleep(0.05)
    assert await model.tokens(Endpoint.CHAT, CHAT) == Unknown(Reason.DISAGREES)
    assert "live: the prompts differ from token" in caplog.text
    await model.close()


async def test_only_a_fraction_of_live_traffic_is_compared_one_at_a_time(open_model: OpenModel):
    engine = FrontEnd(await open_model("byte_level"), delay_s=0.05)
    never = await open_model("byte_level", call=engine, limits=Limits(sampled=0.0))
    await ids(never)
    always = await open_model("byte_level", call=engine, limits=Limits(sampled=1.0))
    for _ in range(5):
        await ids(always)
    await asyncio.sleep(0)
    assert len(engine.asked) == 1
    await always.close()


async def test_templates_that_only_the_engine_has_are_asked_for(open_model: OpenModel, tmp_path_factory):
    folder = families.save(
        tmp_path_factory.mktemp("oss"),
        families.SEGMENTED["byte_level"](),
        model_type="gpt_oss",
        architectures=["X"],
    )
    model = await open_model(folder, call=FrontEnd(await open_model("byte_level"), RENDER))
    assert await ids(model) == await ids(await open_model("byte_level"))
    alone = await open_model(folder)
    assert await alone.tokens(Endpoint.CHAT, CHAT) == Unknown(Reason.NOT_RENDERED_HERE, Endpoint.CHAT)
