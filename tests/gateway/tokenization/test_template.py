from typing import Any

import pytest
from jinja2 import TemplateSyntaxError
from transformers import PreTrainedTokenizerFast

from gateway.tokenization.template import ChatTemplate, TemplateRefused, Templates
from tests.gateway.tokenization import families

USER = {"role": "user", "content": "Hello "}
PARTS = [{"type": "text", "text": "a"}]
CONTINUED = {"role": "assistant", "content": "It is  "}
STRIPPING = families.CHATML.replace("m.content", "m.content | trim")


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=families.SEGMENTED["byte_level"](), bos_token="<|bos|>", eos_token="<|eot|>"
    )


def render(source: str, messages: list[Any], **variables: Any) -> str:
    open_ended = variables.pop("continue_final_message", False)
    tools = variables.pop("tools", None)
    template = ChatTemplate(source, {"bos_token": "<|bos|>", "eos_token": "<|eot|>"})
    return (template.render_open_ended if open_ended else template.render)(messages, tools, variables)


@pytest.mark.parametrize(
    ("source", "messages", "variables"),
    [
        (families.CHATML, [USER, CONTINUED, USER], {"add_generation_prompt": True}),
        (families.CHATML, [USER, CONTINUED, USER], {}),
        (families.RICH, [USER], {"flavour": {"é": "<&>'"}, "documents": [{"title": "t", "text": "x"}]}),
        (families.RICH, [{"role": "user", "content": PARTS}], {"tools": [{"x": "é"}]}),
        (families.CHATML, [USER, CONTINUED], {"continue_final_message": True}),
        (STRIPPING, [USER, CONTINUED], {"continue_final_message": True}),
        (families.RICH, [USER, {**CONTINUED, "content": [{"type": "text", "text": "It "}]}], {"x": 1}),
        ("{% generation %}{% set x = 1 %}{{ messages[0].content }}{% endgeneration %}{{ x }}", [USER], {}),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}", [USER] * 2, {}),
        ("  {% if true %}\n  a\n  {% endif %}\n{{ eos_token }}{{ bos_token }}", [USER], {"bos_token": "B"}),
        ("{{ messages | tojson(indent=2, sort_keys=true) }}{{ strftime_now('%Y') }}", [USER], {}),
    ],
)  # fmt: skip
def test_renders_as_transformers_does(
    reference: PreTrainedTokenizerFast, source: str, messages: list[Any], variables: dict[str, Any]
):
    expected = reference.apply_chat_template(messages, chat_template=source, tokenize=False, **variables)
    assert render(source, messages, **variables) == expected


def test_leaves_the_messages_as_they_are():
    parts = [{"type": "text", "text": "It "}, {"type": "text", "text": "is "}]
    messages = [USER, {"role": "assistant", "content": parts}]
    source = (
        "{% for m in messages %}{{ m.content if m.content is string else m.content[1].text }}{% endfor %}"
    )
    assert render(source, messages, continue_final_message=True) == "Hello is "
    assert parts == [{"type": "text", "text": "It "}, {"type": "text", "text": "is "}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].role }}",
        "{{ nothing.at.all }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages | tojson(indent='x', separators=3) }}",
    ],
)
def test_what_a_template_raises_is_a_refusal_without_the_prompts_text(source: str):
    with pytest.raises(TemplateRefused) as refused:
        render(source, [{"role": "user", "content": "secret"}])
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "content"),
    [(families.CHATML, None), (families.CHATML, []), ("{{ messages[0].content }}", "x"), ("always", "x")],
)
def test_a_final_message_that_doesnt_show_cant_be_continued(source: str, content: Any):
    with pytest.raises(TemplateRefused):
        render(source, [USER, {"role": "assistant", "content": content}], continue_final_message=True)


def test_chooses_by_tools():
    templates = Templates.of({"default": "plain", "tool_use": "tools"}, {})
    assert [templates.select(tools).source for tools in (None, [{}])] == ["plain", "tools"]  # type: ignore[union-attr]


def test_a_processors_template_goes_first_without_tools():
    templates = Templates.of("tokenizer's", {}, without_tools="processor's")
    assert [templates.select(tools).source for tools in (None, [{}])] == ["processor's", "tokenizer's"]  # type: ignore[union-attr]


def test_a_model_may_have_none():
    assert Templates.of(None, {}).select(None) is None
    assert Templates.of({"rag": "x"}, {}).select(None) is None


def test_compiles_a_source_once():
    templates = Templates.of("same", {})
    assert templates.with_tools is templates.without_tools


def test_refuses_a_source_that_is_no_template():
    with pytest.raises(TemplateSyntaxError):
        Templates.of("{% for", {})
