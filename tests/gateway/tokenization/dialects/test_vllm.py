from typing import Any

import pytest

from gateway.tokenization import Endpoint, Reason, TemplateOptions, Tokens
from gateway.tokenization.dialects.base import ModelFacts, Question, Text, Unrenderable
from gateway.tokenization.dialects.vllm import VllmDialect
from gateway.tokenization.template import Templates

SHOW = (
    "{{ tools | tojson }} {{ documents | tojson }} {{ add_generation_prompt }} {{ effort }} {{ bos_token }} "
    "{{ reasoning_effort | default('-') }} {{ enable_thinking | default('-') }} {{ x | default('-') }}"
)
USER = {"role": "user", "content": "hi"}
CHAT = Endpoint.CHAT
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
TOOL = {
    "type": "function",
    "function": {"parameters": {"type": "object"}, "name": "f", "extra": 1},
    "extra": 2,
}
SEEN_TOOL = (
    '[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}}}]'
)


def dialect(template: str | None = SHOW, options: TemplateOptions | None = None, **facts: Any) -> VllmDialect:
    templates = Templates.of(template, {"bos_token": "<s>"})
    return VllmDialect(ModelFacts(templates, **facts), options or TemplateOptions())


def text(body: dict[str, Any], options: TemplateOptions | None = None, template: str = SHOW) -> str:
    prompt = dialect(template, options).prompt(CHAT, {"messages": [USER], **body})
    assert isinstance(prompt, Text)
    return prompt.text


def reason(endpoint: Endpoint, body: dict[str, Any], template: str | None = SHOW) -> Reason:
    with pytest.raises(Unrenderable) as unrenderable:
        dialect(template).prompt(endpoint, body)
    return unrenderable.value.reason


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "null null True  <s> - - -"),
        ({"add_generation_prompt": False}, "null null False  <s> - - -"),
        ({"tools": [TOOL]}, f"{SEEN_TOOL} null True  <s> - - -"),
        ({"tools": [TOOL], "tool_choice": "none"}, f"{SEEN_TOOL} null True  <s> - - -"),
        ({"documents": [{"t": "x"}]}, 'null [{"t": "x"}] True  <s> - - -'),
        ({"reasoning_effort": "low"}, "null null True  <s> low True -"),
        ({"reasoning_effort": "none"}, "null null True  <s> none False -"),
        ({"reasoning_effort": "low", **NO_THINKING}, "null null True  <s> low False -"),
        ({"chat_template_kwargs": {"x": "y", "reasoning_effort": "high"}}, "null null True  <s> high - y"),
        ({"chat_template_kwargs": {"x": "auto", "bos_token": "B"}}, "null null True  B - - -"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "null null True  <s> - - -"),
        ({"chat_template_kwargs": {"documents": [{"t": "x"}]}}, 'null [{"t": "x"}] True  <s> - - -'),
    ],
)  # fmt: skip
def test_template_variables(body: dict[str, Any], expected: str):
    assert text(body) == expected


def test_the_engines_flags():
    options = TemplateOptions(chat_template_kwargs={"x": "default"}, exclude_tools_when_tool_choice_none=True)
    assert text({}, options).endswith("default")
    assert text({"chat_template_kwargs": {"x": "own"}}, options).endswith("own")
    assert text({"chat_template_kwargs": {"x": None}}, options).endswith("default")
    assert text({"tools": [TOOL], "tool_choice": "none"}, options).startswith("null")
    assert text({"tools": [TOOL]}, options).startswith(SEEN_TOOL)


def test_the_engines_flags_cant_replace_its_arguments():
    with pytest.raises(ValueError, match="tokenize"):
        TemplateOptions(chat_template_kwargs={"tokenize": True})


def test_content_format_follows_the_template_or_the_flag():
    loops = "{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}"
    assert text({}, template=loops) == "[hi]"
    assert text({}, template="{{ messages[0].content }}") == "hi"
    flag = TemplateOptions(content_format="openai")
    assert text({}, flag, "{{ messages[0].content }}") == "[{'type': 'text', 'text': 'hi'}]"


def test_developers_are_systems_to_templates_that_dont_name_them():
    developer = {"messages": [{"role": "developer", "content": "x"}]}
    assert text(developer, template="{{ messages[0].role }}") == "system"
    assert text(developer, template="{{ messages[0].role }}{{ 'developer' }}") == "developerdeveloper"


def test_a_final_message_is_continued():
    body = {"messages": [USER, {"role": "assistant", "content": "It "}], "add_generation_prompt": False}
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}.\n{% endfor %}"
    assert text({**body, "continue_final_message": True}, template=template) == "user: hi.\nassistant: It "


def test_special_tokens_are_added_to_completions_but_not_to_chats():
    make = dialect()
    assert make.prompt(CHAT, {"messages": [USER]})[1:] == (False, None)  # type: ignore[index]
    assert make.prompt(CHAT, {"messages": [USER], "add_special_tokens": True})[1] is True  # type: ignore[index]
    assert make.prompt(Endpoint.COMPLETIONS, {"prompt": "x"}) == Text("x", True, None)
    assert make.prompt(Endpoint.COMPLETIONS, {"prompt": ["x"], "add_special_tokens": False}) == Text(
        "x", False, None
    )


@pytest.mark.parametrize("prompt", [[5, 6, 2**32 - 1], [[5, 6, 2**32 - 1]]])
def test_token_ids_are_taken_as_they_are(prompt: Any):
    answer = dialect().prompt(Endpoint.COMPLETIONS, {"prompt": prompt})
    assert isinstance(answer, Tokens)
    assert answer.ids.tolist() == [5, 6, 2**32 - 1]


def test_a_limit_on_prompt_tokens_is_kept_for_after_the_encode():
    make = dialect()
    assert make.prompt(CHAT, {"messages": [USER], "truncate_prompt_tokens": 7}).limit == 7  # type: ignore[union-attr]
    ids = {"prompt": [1, 2, 3], "truncate_prompt_tokens": 3}
    assert isinstance(make.prompt(Endpoint.COMPLETIONS, ids), Tokens)
    assert reason(Endpoint.COMPLETIONS, {**ids, "truncate_prompt_tokens": 2}) is Reason.TRUNCATED


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"chat_template": "x"}, Reason.REQUEST_TEMPLATE),
        ({"kv_transfer_params": {"prompt_token_ids": [1]}}, Reason.SHAPE),
        ({"truncate_prompt_tokens": -1}, Reason.TRUNCATED),
        ({"continue_final_message": True}, Reason.REFUSED),
        ({"tools": []}, Reason.REFUSED),
        ({"tools": [{"type": "function"}]}, Reason.SHAPE),
        ({"tools": [{"type": "function", "function": {"name": 5}}]}, Reason.SHAPE),
        ({"tools": [{"type": "x", "function": {"name": "f"}}]}, Reason.SHAPE),
        ({"tools": [{**TOOL, "defer_loading": True}]}, Reason.SHAPE),
        ({"tools": {}}, Reason.SHAPE),
        ({"documents": [{"x": 1}]}, Reason.SHAPE),
        ({"reasoning_effort": "much"}, Reason.SHAPE),
        ({"add_generation_prompt": None}, Reason.SHAPE),
        ({"chat_template_kwargs": {"tokenize": True}}, Reason.SHAPE),
        ({"chat_template_kwargs": {"messages": []}}, Reason.SHAPE),
        ({"chat_template_kwargs": []}, Reason.SHAPE),
        ({"messages": []}, Reason.SHAPE),
    ],
)  # fmt: skip
def test_chats_that_cant_be_known(body: dict[str, Any], expected: Reason):
    assert reason(CHAT, {"messages": [USER], **body}) is expected


def test_a_template_that_raises_or_is_missing():
    assert reason(CHAT, {"messages": [USER]}, "{{ raise_exception('x') }}") is Reason.REFUSED
    assert reason(CHAT, {"messages": [USER]}, None) is Reason.NO_TEMPLATE


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": ["a", "b"]}, Reason.SEVERAL_PROMPTS),
        ({"prompt": [[1], [2]]}, Reason.SEVERAL_PROMPTS),
        ({"prompt": "a", "suffix": "b"}, Reason.SHAPE),
        ({"prompt_embeds": "AAAA"}, Reason.SHAPE),
        ({"prompt": [1, -2]}, Reason.SHAPE),
        ({"prompt": [1, "a"]}, Reason.SHAPE),
        ({"prompt": [1, 2.5]}, Reason.SHAPE),
        ({"prompt": [2**32]}, Reason.SHAPE),
        ({"prompt": []}, Reason.SHAPE),
        ({"prompt": [[]]}, Reason.SHAPE),
        ({"prompt": 5}, Reason.SHAPE),
        ({}, Reason.SHAPE),
    ],
)  # fmt: skip
def test_completions_that_cant_be_known(body: dict[str, Any], expected: Reason):
    assert reason(Endpoint.COMPLETIONS, body) is expected


@pytest.mark.parametrize(
    ("facts", "rendered"),
    [
        ({}, {Endpoint.CHAT, Endpoint.COMPLETIONS}),
        ({"model_type": "gpt_oss"}, {Endpoint.COMPLETIONS}),
        ({"architectures": ("DeepseekV4ForCausalLM",)}, {Endpoint.COMPLETIONS}),
        ({"mistral_format": True}, set()),
    ],
)
def test_what_only_the_engine_renders(facts: dict[str, Any], rendered: set[Endpoint]):
    make = dialect(**facts)
    assert {endpoint for endpoint in Endpoint if make.renders(endpoint)} == rendered


def test_asks_the_render_route_first():
    questions = list(dialect().questions(CHAT, {"messages": [USER], "model": "m", "stream": True}))
    assert [question.path for question in questions] == ["/v1/chat/completions/render", "/tokenize"]
    assert questions[1] == Question("/tokenize", {"messages": [USER], "model": "m"}, "tokens")
    (only,) = dialect().questions(Endpoint.MESSAGES, {"x": 1})
    assert only == Question("/v1/messages/render", {"x": 1}, "token_ids")


@pytest.mark.parametrize(
    "body",
    [
        {"reasoning_effort": "low"},
        {"documents": [{"a": "b"}]},
        {"messages": [{"role": "assistant", "content": "x", "reasoning_content": "r"}]},
    ],
)
def test_tokenize_isnt_asked_about_fields_that_it_doesnt_know(body: dict[str, Any]):
    questions = dialect().questions(CHAT, {"messages": [USER], **body})
    assert [question.path for question in questions] == ["/v1/chat/completions/render"]
