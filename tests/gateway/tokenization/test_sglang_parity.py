"""Against SGLang's own code: SmolLM2, and a small model of another family behind a few flags."""

from collections.abc import Iterator

import pytest

from gateway.tokenization import Endpoint, TemplateOptions, Tokens, Verdict
from tests.gateway.tokenization import families
from tests.gateway.tokenization.comparing import compare
from tests.gateway.tokenization.conftest import OpenModel
from tests.gateway.tokenization.driving import now
from tests.gateway.tokenization.front_end import SMOLLM2
from tests.gateway.tokenization.sglang_front_end import SglangFrontEnd, sglang_front_end

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

PARTS = (
    "{% for message in messages %}<|role|>{{ message.role }}{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{{ part | tojson }}{% endfor %}"
    "{% endif %}{{ message | tojson }}<|eot|>{% endfor %}{{ add_generation_prompt }}"
)
"""A template that SGLang gives contents as lists."""

FLAGS = TemplateOptions(chat_template_kwargs={"flavour": "default"})


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangFrontEnd]:
    with sglang_front_end(str(SMOLLM2), tmp_path_factory.mktemp("logs") / "smollm2.log") as front_end:
        yield front_end


@pytest.fixture(scope="module")
def rich(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangFrontEnd]:
    log = tmp_path_factory.mktemp("logs") / "rich.log"
    defaults = {"flavour": "default"}
    with sglang_front_end(folders["rich"], log, default_chat_template_kwargs=defaults) as front_end:
        yield front_end


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangFrontEnd]:
    root = tmp_path_factory.mktemp("parts")
    folder = families.save(root / "model", families.SEGMENTED["byte_level"](), PARTS)
    with sglang_front_end(folder, root / "log") as front_end:
        yield front_end


async def test_smollm2_agrees_at_start(open_model: OpenModel, smollm2: SglangFrontEnd):
    parity = await (await open_model(str(SMOLLM2), engine="sglang", call=smollm2)).check_parity()
    assert parity.verdict is Verdict.AGREES, str(parity)
    assert parity.compared > 25


async def test_another_family_with_flags_agrees_at_start(open_model: OpenModel, rich: SglangFrontEnd):
    parity = await (await open_model("rich", engine="sglang", call=rich, options=FLAGS)).check_parity()
    assert parity.verdict is Verdict.AGREES, str(parity)
    assert parity.compared > 25


async def test_flags_that_arent_the_engines_are_noticed(open_model: OpenModel, rich: SglangFrontEnd):
    parity = await (await open_model("rich", engine="sglang", call=rich)).check_parity()
    assert parity.verdict is Verdict.DISAGREES


@pytest.mark.parametrize("family", ["smollm2", "rich", "parts"])
async def test_any_chat_is_rendered_as_sglang_does(
    open_model: OpenModel, family: str, request: pytest.FixtureRequest
):
    front_end: SglangFrontEnd = request.getfixturevalue(family)
    options = FLAGS if family == "rich" else TemplateOptions()
    model = await open_model(front_end.folder, engine="sglang", options=options)
    outcomes = compare(model, lambda body: front_end.post(Endpoint.CHAT, body)["tokens"], 150)
    assert outcomes["equal"] > 30, outcomes
    assert outcomes["unknown"] < outcomes["equal"] / 2, outcomes


@pytest.mark.parametrize("prompt", ["Once upon a time", " <|eot|>x", "日本 é"])
async def test_completions_are_encoded_as_sglang_does(
    open_model: OpenModel, rich: SglangFrontEnd, prompt: str
):
    model = await open_model("rich", engine="sglang", options=FLAGS)
    answer = now(model.tokens(Endpoint.COMPLETIONS, {"prompt": prompt}))
    assert isinstance(answer, Tokens)
    assert answer.ids.tolist() == rich.post(Endpoint.COMPLETIONS, {"prompt": prompt})["tokens"]
