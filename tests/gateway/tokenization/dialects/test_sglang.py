"""What SGLang does otherwise than vLLM; the whole is compared with its own code in test_sglang_parity.py."""

from typing import Any

import pytest

from gateway.tokenization import Endpoint, Reason, TemplateOptions, Tokens
from gateway.tokenization.dialects.base import ModelFacts, Question, Text, Unrenderable
from gateway.tokenization.dialects.sglang import SglangDialect
from gateway.tokenization.dialects.sglang_content import detect
from gateway.tokenization.template import ChatTemplate, Templates

CHAT = Endpoint.CHAT
USER = {"role": "user", "content": "hi"}
SHOW = (
    "{{ messages | tojson }} {{ tools | tojson }} {{ reasoning_effort | default('-') }} "
    "{{ enable_thinking | default('-') }} {{ thinking | default('-') }} {{ add_generation_prompt }} "
    "{{ x | default('-') }}"
)
FUNCTION = {"strict": True, "parameters": {"type": "object"}, "name": "f", "extra": 1}
SEEN_FUNCTION = '{"strict": true, "parameters": {"type": "object"}, "name": "f", "description": null}'
SEEN_TOOL = f'[{{"type": "function", "function": {SEEN_FUNCTION}, "defer_loading": null}}]'


def dialect(
    template: str | None = SHOW, options: TemplateOptions | None = None, **facts: Any
) -> SglangDialect:
    return SglangDialect(ModelFacts(Templates.of(template, {}), **facts), options or TemplateOptions())


def text(body: dict[str, Any], template: str = SHOW, options: TemplateOptions | None = None) -> str:
    prompt = dialect(template, options).prompt(CHAT, {"messages": [USER], **body})
    assert isinstance(prompt, Text)
    assert prompt[1:] == (False, None)
    return prompt.text


def messages(*given: dict[str, Any], template: str = SHOW) -> str:
    return text({"messages": list(given)}, template).partition(" null ")[0]


def reason(body: dict[str, Any], endpoint: Endpoint = CHAT) -> Reason:
    with pytest.raises(Unrenderable) as unrenderable:
        dialect().prompt(endpoint, {"messages": [USER], **body})
    return unrenderable.value.reason


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "null - - - True -"),
        ({"add_generation_prompt": False}, "null - - - True -"),
        ({"tools": []}, "null - - - True -"),
        ({"tools": [{"function": FUNCTION}]}, f"{SEEN_TOOL} - - - True -"),
        ({"tools": [{"function": FUNCTION}], "tool_choice": "none"}, "null - - - True -"),
        ({"reasoning_effort": "low"}, "null low True True True -"),
        ({"reasoning_effort": "none"}, "null none False False True -"),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            "null high False True True -",
        ),
        ({"chat_template_kwargs": {"x": "y", "reasoning_effort": "max"}}, "null max - - True y"),
    ],
)
def test_template_variables(body: dict[str, Any], expected: str):
    assert text(body).partition("] ")[2] == expected


def test_the_tool_that_must_be_called_is_the_only_one_shown():
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    chosen = {"type": "function", "function": {"name": "g"}}
    assert '"name": "g"' in text({"tools": tools, "tool_choice": chosen})
    assert '"name": "f"' not in text({"tools": tools, "tool_choice": chosen})


def test_a_template_that_fails_gets_the_tools_bare():
    template = "{{ tools[0].name | length or raise_exception('x') }}"
    assert text({"tools": [{"type": "function", "function": {"name": "four"}}]}, template) == "4"


def test_the_engines_flags():
    options = TemplateOptions(chat_template_kwargs={"x": "default"})
    assert text({}, options=options).endswith("default")
    assert text({"chat_template_kwargs": {"x": "own"}}, options=options).endswith("own")


def test_messages_lose_what_sglang_does_not_know():
    assert messages({**USER, "name": "ann", "extra": 1}) == '[{"role": "user", "content": "hi"}]'
    assert messages({"name": "ann", "role": "System", "content": "x", "extra": 1}, USER).startswith(
        '[{"role": "system", "content": "x", "name": "ann"}'
    )


def test_a_last_message_of_the_assistant_is_the_users():
    assert messages(USER, {"role": "assistant", "content": "x"}).endswith('{"role": "user", "content": "x"}]')
    assert messages({"role": "assistant"}, USER).startswith('[{"role": "assistant", "content": ""}')


def test_calls_keep_their_unset_fields_and_have_their_arguments_parsed():
    call = {"id": "c", "function": {"name": "f", "arguments": '{"b":1.50}'}}
    seen = messages({"role": "assistant", "content": None, "tool_calls": [call]}, USER)
    assert '"tool_calls": [{"id": "c", "index": null, "type": "function"' in seen
    assert '"function": {"name": "f", "arguments": {"b": 1.5}}}]' in seen


def test_parts_are_joined_or_kept_as_the_template_takes_them():
    parts = [{"type": "text", "text": "a", "cache_control": 1}, {"type": "text", "text": "b"}]
    assert messages({"role": "user", "content": parts}) == '[{"role": "user", "content": "a b"}]'
    kept = SHOW + "{% for m in [] %}{% for c in m.content %}{% endfor %}{% endfor %}"
    listed = '[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]'
    assert (
        messages({"role": "user", "content": parts}, template=kept)
        == f'[{{"role": "user", "content": {listed}}}]'
    )
    tool = {"role": "tool", "content": parts, "tool_call_id": "c"}
    assert messages(tool, template=kept) == '[{"role": "tool", "tool_call_id": "c", "content": "a b"}]'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for c in message.content %}{% endfor %}", "openai"),
        ("{% for c in msg['content'][1:] | list %}{% endfor %}", "openai"),
        ("{% for c in turn.content %}{% endfor %}", "string"),
        ("{% for c in content %}{% endfor %}", "string"),
        ("{{ message.content }}", "string"),
        ("{# an image #}", "openai"),
    ],
)
def test_the_content_format(source: str, expected: str):
    assert detect(ChatTemplate(source, {})) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"extra_key": "x"}, Reason.SHAPE),
        ({"lora_path": "x"}, Reason.SHAPE),
        ({"session_params": {"id": "x"}}, Reason.SHAPE),
        ({"continue_final_message": True}, Reason.SHAPE),
        ({"reasoning": {"effort": "low"}}, Reason.SHAPE),
        ({"reasoning_effort": "much"}, Reason.SHAPE),
        ({"reasoning_effort": 0.5}, Reason.SHAPE),
        ({"chat_template_kwargs": {"chat_template": "x"}}, Reason.REQUEST_TEMPLATE),
        ({"chat_template_kwargs": {"tokenize": True}}, Reason.SHAPE),
        ({"chat_template_kwargs": []}, Reason.SHAPE),
        ({"tools": {}}, Reason.SHAPE),
        ({"tools": [{"function": {"name": 5}}]}, Reason.SHAPE),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "varchar"}}}]}, Reason.SHAPE),
        ({"tool_choice": "required"}, Reason.REFUSED),
        ({"tool_choice": {"function": {"name": "f"}}}, Reason.REFUSED),
        ({"messages": []}, Reason.SHAPE),
        ({"messages": [{"role": "user"}]}, Reason.REFUSED),
        ({"messages": [{"role": "robot", "content": "x"}]}, Reason.REFUSED),
        ({"messages": [{"role": "system", "content": "x", "tools": [{}]}]}, Reason.SHAPE),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, Reason.MEDIA),
        ({"messages": [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}]}, Reason.SHAPE),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, Reason.SHAPE),
        ({"input_ids": [1, -1]}, Reason.SHAPE),
    ],
)  # fmt: skip
def test_chats_that_cant_be_known(body: dict[str, Any], expected: Reason):
    assert reason(body) is expected


@pytest.mark.parametrize("arguments", ["", "[1]", "no JSON"])
def test_arguments_that_are_no_object_are_refused(arguments: str):
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    assert reason({"messages": [{"role": "assistant", "tool_calls": [call]}, USER]}) is Reason.REFUSED


def test_token_ids_are_taken_as_they_are():
    for endpoint, body in (
        (CHAT, {"messages": [USER], "input_ids": [5, 6]}),
        (Endpoint.COMPLETIONS, {"prompt": [[5, 6]]}),
    ):
        answer = dialect().prompt(endpoint, body)
        assert isinstance(answer, Tokens)
        assert answer.ids.tolist() == [5, 6]


def test_completions():
    make = dialect()
    assert make.prompt(Endpoint.COMPLETIONS, {"prompt": ["x"]}) == Text("x", True, None)
    for prompt, expected in (("", Reason.SHAPE), (["a", "b"], Reason.SEVERAL_PROMPTS), (5, Reason.SHAPE)):
        assert reason({"prompt": prompt}, Endpoint.COMPLETIONS) is expected


@pytest.mark.parametrize(
    ("facts", "rendered"),
    [
        ({}, {CHAT, Endpoint.COMPLETIONS}),
        ({"model_type": "gpt_oss"}, {Endpoint.COMPLETIONS}),
        ({"architectures": ("DeepseekV4ForCausalLM",)}, {Endpoint.COMPLETIONS}),
        ({"mistral_format": True}, set()),
    ],
)
def test_what_only_the_engine_can_render(facts: Any, rendered: set[Endpoint]):
    assert {endpoint for endpoint in Endpoint if dialect(**facts).renders(endpoint)} == rendered


def test_the_engine_is_asked_as_it_renders_a_chat():
    body = {"model": "m", "messages": [USER], "add_generation_prompt": False, "stream": True, "tools": []}
    kept = {"model": "m", "messages": [USER], "tools": []}
    assert list(dialect().questions(CHAT, body)) == [Question("/tokenize", kept, "tokens")]
    assert list(dialect().questions(Endpoint.COMPLETIONS, {"prompt": "x", "echo": True})) == [
        Question("/tokenize", {"prompt": "x"}, "tokens")
    ]
    assert list(dialect().questions(Endpoint.RESPONSES, {"input": "x"})) == []


def test_a_schema_of_any_depth_is_read() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(5000):
        schema = {"items": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert text({"tools": [tool]}, "{{ messages | length }}") == "1"
