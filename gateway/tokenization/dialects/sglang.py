"""SGLang 0.5.23: from a request's body to its prompt.

Follows `sglang/srt/entrypoints/openai/`: `serving_chat.py` (`_process_messages`, `_apply_jinja_template`),
`serving_completions.py` and the request classes of `protocol.py`. Whatever those would refuse is
`Unrenderable` here too, and so is what puts a request's KV apart in a way that its events don't tell
(`extra_key`, `lora_path`).

Other than vLLM's, it renders no responses and no messages for us, a chat always opens the assistant's turn, a
last message of the assistant counts as the user's, and tools keep their own order of keys.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.tokenization.dialects import bodies
from gateway.tokenization.dialects.base import Body, Dialect, ModelFacts, Question, Text, Unrenderable
from gateway.tokenization.dialects.content import ContentFormat
from gateway.tokenization.dialects.sglang_content import detect
from gateway.tokenization.dialects.sglang_messages import conversation, tool
from gateway.tokenization.results import Endpoint, Reason, Tokens
from gateway.tokenization.template import ChatTemplate, Message, TemplateRefused, Tool

_RENDERED_BY_CODE = ("DeepseekV4", "KimiK3", "InklingForConditionalGeneration")
"""Parts of the architectures whose chats are rendered by code of SGLang's own (`openai/chat_encoding.py`)."""

_MODEL_TYPES_BY_CODE = frozenset({"gpt_oss", "minimax_m3_vl", "deepseek_v41"})

_APART = ("extra_key", "lora_path", "session_params")
"""Fields by which a request's KV is kept apart from that of others with the same ids."""

_KNOWN_TO_TOKENIZE = ("model", "messages", "tools", "tool_choice", "reasoning_effort", "chat_template_kwargs")

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")

_OWN_ARGUMENTS = frozenset(
    {"conversation", "messages", "tools", "documents", "tokenize", "add_generation_prompt", "return_dict"}
    | {"continue_final_message", "padding", "truncation", "max_length", "return_tensors", "tokenizer_kwargs"}
)
"""Of transformers' `apply_chat_template`: as template variables they would clash or change the call."""


class SglangDialect(Dialect):
    """See `Dialect`."""

    @staticmethod
    def coded(model: ModelFacts) -> bool:
        """See `Dialect.coded`."""
        return model.model_type in _MODEL_TYPES_BY_CODE or any(
            part in name for part in _RENDERED_BY_CODE for name in model.architectures
        )

    @staticmethod
    def detect(template: ChatTemplate) -> ContentFormat:
        """See `Dialect.detect`."""
        return detect(template)

    def prompt(self, endpoint: Endpoint, body: Body) -> Text | Tokens:
        """See `Dialect.prompt`."""
        for name in _APART:
            if body.get(name) is not None:
                raise Unrenderable(Reason.SHAPE, name)
        if endpoint is Endpoint.CHAT:
            return self._chat(body)
        if endpoint is Endpoint.COMPLETIONS:
            return _completion(body)
        raise Unrenderable(Reason.NOT_RENDERED_HERE, endpoint)

    def questions(self, endpoint: Endpoint, body: Body) -> Iterator[Question]:
        """See `Dialect.questions`."""
        if endpoint is Endpoint.CHAT:
            yield Question("/tokenize", bodies.named(body, _KNOWN_TO_TOKENIZE), "tokens")
        if endpoint is Endpoint.COMPLETIONS and isinstance(body.get("prompt"), str):
            yield Question("/tokenize", bodies.named(body, ("model", "prompt")), "tokens")

    def _chat(self, body: Body) -> Text | Tokens:
        if body.get("input_ids") is not None:
            return bodies.ids(body["input_ids"], "input_ids")
        for name in ("continue_final_message", "reasoning"):
            if body.get(name):
                raise Unrenderable(Reason.SHAPE, name)
        tools = _tools(body)
        template = self._templates.select(tools)
        if template is None:
            raise Unrenderable(Reason.NO_TEMPLATE)
        messages = _ending_with_the_user(conversation(body.get("messages"), self.content_format(template)))
        return Text(self._render(template, messages, tools, body), False, None)

    def _render(
        self, template: ChatTemplate, messages: list[Message], tools: list[Tool] | None, body: Body
    ) -> str:
        variables = {**self._variables(body, template), "add_generation_prompt": True}
        try:
            return template.render(messages, tools, variables)
        except TemplateRefused as refused:
            if tools is None:
                raise Unrenderable(Reason.REFUSED, str(refused)) from refused
        try:  # as some templates want them, bare
            return template.render(messages, [one["function"] for one in tools], variables)
        except TemplateRefused as refused:
            raise Unrenderable(Reason.REFUSED, str(refused)) from refused

    def _variables(self, body: Body, template: ChatTemplate) -> dict[str, Any]:
        variables = dict(bodies.optional(body, "chat_template_kwargs", dict) or {})
        effort = body.get("reasoning_effort")
        if effort is not None:
            variables = {"thinking": effort != "none", "enable_thinking": effort != "none"} | variables
        variables = {**self._options.chat_template_kwargs, **variables}
        effort = variables.pop("reasoning_effort", effort)
        if "chat_template" in variables:
            raise Unrenderable(Reason.REQUEST_TEMPLATE, "chat_template_kwargs.chat_template")
        if reserved := _OWN_ARGUMENTS & variables.keys():
            raise Unrenderable(Reason.SHAPE, f"chat_template_kwargs.{min(reserved)}")
        if effort is None:
            return variables
        if effort not in _EFFORTS or (effort == "low" and "low_effort" in template.source):
            raise Unrenderable(Reason.SHAPE, "reasoning_effort")
        return {"reasoning_effort": effort, **variables}


def _ending_with_the_user(messages: list[Message]) -> list[Message]:
    """SGLang takes a last message of the assistant, if it is text, for one of the user."""
    last = messages[-1]
    if last["role"] != "assistant" or not isinstance(last["content"], str):
        return messages
    return [*messages[:-1], {"role": "user", "content": last["content"]}]


def _tools(body: Body) -> list[Tool] | None:
    """What the template sees: all of them, none, or the one that must be called."""
    tools, choice = bodies.optional(body, "tools", list), body.get("tool_choice")
    seen = [tool(one, f"tools[{position}]") for position, one in enumerate(tools or ())]
    if not isinstance(choice, str | None):
        named = choice.get("function") if isinstance(choice, Mapping) else None
        name = named.get("name") if isinstance(named, Mapping) else None
        seen = [one for one in seen if one["function"]["name"] == name]
        if not seen:
            raise Unrenderable(Reason.REFUSED, "tool_choice")
    elif choice not in (None, "auto", "required", "none") or (choice == "required" and not seen):
        raise Unrenderable(Reason.REFUSED, "tool_choice")
    return seen if seen and choice != "none" else None


def _completion(body: Body) -> Text | Tokens:
    prompt = bodies.only_prompt(body)
    return Text(prompt, True, None) if prompt and isinstance(prompt, str) else bodies.ids(prompt, "prompt")
