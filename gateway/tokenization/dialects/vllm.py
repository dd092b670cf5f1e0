"""vLLM 0.32: from a request's body to its prompt.

Follows `vllm/renderers/online_renderer.py`, `hf.py`, `chat_utils.py` and the request classes under
`vllm/entrypoints/openai/`. Whatever those would refuse is `Unrenderable` here too: no prompt is computed for
it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.tokenization.dialects import bodies
from gateway.tokenization.dialects.base import (
    RESERVED_VARIABLES,
    Body,
    Dialect,
    ModelFacts,
    Question,
    Text,
    Unrenderable,
)
from gateway.tokenization.dialects.content import ContentFormat
from gateway.tokenization.dialects.vllm_content import detect
from gateway.tokenization.dialects.vllm_messages import conversation, system_only
from gateway.tokenization.results import Endpoint, Reason, Tokens
from gateway.tokenization.template import ChatTemplate, Message, TemplateRefused, Tool

# Models whose chats vLLM renders by code of its own instead of a template (`vllm/config/model.py`).
_RENDERED_BY_CODE = frozenset(
    {
        "DeepseekV32ForCausalLM",
        "DeepseekV41ForCausalLM",
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForConditionalGeneration",
        "InklingForCausalLM",
        "InklingForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "MoonshotKimiaForCausalLM",
    }
)

_KNOWN_TO_TOKENIZE = (
    *("model", "messages", "tools", "chat_template_kwargs"),
    *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
)
# Fields of a chat that `/tokenize` doesn't know, so that its answer may differ from the chat's own prompt.
_UNKNOWN_TO_TOKENIZE = ("documents", "kv_transfer_params", "reasoning_effort", "truncate_prompt_tokens")

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class VllmDialect(Dialect):
    """See `Dialect`."""

    @staticmethod
    def coded(model: ModelFacts) -> bool:
        """See `Dialect.coded`."""
        return model.model_type == "gpt_oss" or not _RENDERED_BY_CODE.isdisjoint(model.architectures)

    @staticmethod
    def detect(template: ChatTemplate) -> ContentFormat:
        """See `Dialect.detect`."""
        return detect(template.syntax())

    def content_format(self, template: ChatTemplate) -> ContentFormat:
        """See `Dialect.content_format`; vLLM has a flag for it."""
        asked = self._options.content_format
        return super().content_format(template) if asked == "auto" else asked

    def prompt(self, endpoint: Endpoint, body: Body) -> Text | Tokens:
        """See `Dialect.prompt`."""
        if endpoint is Endpoint.CHAT:
            return self._chat(body)
        if endpoint is Endpoint.COMPLETIONS:
            return _completion(body)
        raise Unrenderable(Reason.NOT_RENDERED_HERE, endpoint)

    def questions(self, endpoint: Endpoint, body: Body) -> Iterator[Question]:
        """See `Dialect.questions`."""
        if endpoint is not Endpoint.COMPLETIONS:
            yield Question(f"{endpoint}/render", body, "token_ids")
        if endpoint is Endpoint.CHAT and self._tokenizable(body):
            yield Question("/tokenize", bodies.named(body, _KNOWN_TO_TOKENIZE), "tokens")
        if endpoint is Endpoint.COMPLETIONS and isinstance(body.get("prompt"), str):
            named = bodies.named(body, ("model", "prompt", "add_special_tokens"))
            yield Question("/tokenize", named, "tokens")

    def _chat(self, body: Body) -> Text:
        if body.get("chat_template") is not None:
            raise Unrenderable(Reason.REQUEST_TEMPLATE, "chat_template")
        if isinstance(transfer := body.get("kv_transfer_params"), Mapping) and "prompt_token_ids" in transfer:
            raise Unrenderable(Reason.SHAPE, "kv_transfer_params.prompt_token_ids")
        tools = self._tools(body)
        template = self._templates.select(tools)
        if template is None:
            raise Unrenderable(Reason.NO_TEMPLATE)
        messages = conversation(body.get("messages"), self.content_format(template))
        if any(m["role"] == "developer" for m in messages) and not _knows_developers(template):
            messages = system_only(messages)
        text = self._render(template, messages, tools, body)
        return Text(text, _flag(body, "add_special_tokens", False), _limit(body))

    def _render(
        self, template: ChatTemplate, messages: list[Message], tools: list[Tool] | None, body: Body
    ) -> str:
        variables = self._variables(body)
        open_ended = variables.pop("continue_final_message")
        if open_ended and variables["add_generation_prompt"]:
            raise Unrenderable(Reason.REFUSED, "continue_final_message with add_generation_prompt")
        render = template.render_open_ended if open_ended else template.render
        try:
            return render(messages, tools, variables)
        except TemplateRefused as refused:
            raise Unrenderable(Reason.REFUSED, str(refused)) from refused

    def _variables(self, body: Body) -> dict[str, Any]:
        given = bodies.optional(body, "chat_template_kwargs", dict) or {}
        if reserved := RESERVED_VARIABLES & given.keys():
            raise Unrenderable(Reason.SHAPE, f"chat_template_kwargs.{min(reserved)}")
        effort = body.get("reasoning_effort")
        if effort is not None and effort not in _EFFORTS:
            raise Unrenderable(Reason.SHAPE, "reasoning_effort")
        fields: dict[str, Any] = {
            "add_generation_prompt": _flag(body, "add_generation_prompt", True),
            "continue_final_message": _flag(body, "continue_final_message", False),
            "documents": _documents(body),
            "reasoning_effort": effort,
        }
        if effort is not None and "enable_thinking" not in given:
            fields["enable_thinking"] = effort != "none"
        return _overlay(self._options.chat_template_kwargs, _overlay(given, fields))

    def _tools(self, body: Body) -> list[Tool] | None:
        tools = bodies.optional(body, "tools", list)
        excluded = self._options.exclude_tools_when_tool_choice_none and body.get("tool_choice") == "none"
        if tools is None or excluded:
            return None
        if not tools:
            raise Unrenderable(Reason.REFUSED, "tools is empty")
        return [_tool(tool, f"tools[{position}]") for position, tool in enumerate(tools)]

    def _tokenizable(self, body: Body) -> bool:
        excluding = self._options.exclude_tools_when_tool_choice_none and body.get("tool_choice") == "none"
        messages = body.get("messages") or ()
        renamed = any(isinstance(m, Mapping) and m.get("reasoning_content") is not None for m in messages)
        return not (excluding or renamed or any(body.get(name) is not None for name in _UNKNOWN_TO_TOKENIZE))


def _completion(body: Body) -> Text | Tokens:
    for name in ("prompt_embeds", "suffix"):
        if body.get(name) is not None:
            raise Unrenderable(Reason.SHAPE, name)
    prompt, limit = bodies.only_prompt(body), _limit(body)
    if isinstance(prompt, str):
        return Text(prompt, _flag(body, "add_special_tokens", True), limit)
    tokens = bodies.ids(prompt, "prompt")
    if limit is not None and len(tokens.ids) > limit:
        raise Unrenderable(Reason.TRUNCATED, "truncate_prompt_tokens")
    return tokens


def _tool(tool: object, where: str) -> Tool:
    """One tool as the template sees it: the request class's own fields in their order, None where unset."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if (
        not isinstance(tool, dict)
        or not isinstance(function, dict)
        or tool.get("type", "function") != "function"
    ):
        raise Unrenderable(Reason.SHAPE, where)
    name, strict = function.get("name"), bodies.optional(function, "strict", bool)
    deferred = tool.get("defer_loading") is not None or function.get("defer_loading") is not None
    if not isinstance(name, str) or deferred:
        raise Unrenderable(Reason.SHAPE, f"{where}.function")
    seen = {
        "name": name,
        "description": bodies.optional(function, "description", str),
        "parameters": bodies.optional(function, "parameters", dict),
    }
    return {"type": "function", "function": seen if strict is None else {**seen, "strict": strict}}


def _documents(body: Body) -> list[dict[str, str]] | None:
    documents = bodies.optional(body, "documents", list)
    for position, document in enumerate(documents or ()):
        if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
            raise Unrenderable(Reason.SHAPE, f"documents[{position}]")
    return documents


def _limit(body: Body) -> int | None:
    limit = body.get("truncate_prompt_tokens")
    if limit is None:
        return None
    if type(limit) is not int or limit < 0:  # -1 is the model's length, which isn't known here
        raise Unrenderable(Reason.TRUNCATED, "truncate_prompt_tokens")
    return limit


def _flag(body: Body, name: str, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise Unrenderable(Reason.SHAPE, name)
    return value


def _overlay(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's `merge_kwargs`: a value of None or "auto" leaves the default as it is."""
    return {
        **defaults,
        **{name: value for name, value in values.items() if value is not None and value != "auto"},
    }


def _knows_developers(template: ChatTemplate) -> bool:
    return '"developer"' in template.source or "'developer'" in template.source
