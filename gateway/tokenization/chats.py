"""Awkward requests: those on which a renderer or an encoder is likely to differ from the engine's.

They are short, hold nothing that needs an engine flag, and are sent to every engine at start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.tokenization.results import Endpoint


@dataclass(frozen=True, slots=True)
class AwkwardRequest:
    """A request's body under a name that can be shown in logs."""

    name: str
    endpoint: Endpoint
    body: Mapping[str, Any] = field(repr=False)


_SYSTEM = {"role": "system", "content": "You are terse."}
_DEVELOPER = {**_SYSTEM, "role": "developer"}
_USER = {"role": "user", "content": "What's the weather in Paris?"}
_OPEN = {"add_generation_prompt": False, "continue_final_message": True}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
            "name": "weather",
            "description": "Looks out of the <window> & says “what's there”",
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
_CALLS = [
    {
        "type": "function",
        "id": "call_1",
        "function": {"name": "weather", "arguments": '{"city": "Zürich", "n": 1.50}'},
    },
    {"type": "function", "id": "call_2", "function": {"name": "now", "arguments": ""}},
    {"type": "function", "id": "call_3", "function": {"name": "now", "arguments": "not JSON"}},
]
_ANSWER = {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": '{"sky": "grey"}'}


TELLING = frozenset({"one_user", "content_parts", "tools", "text_unicode"})
"""Names of those few that show another tokenizer, another template, or flags that change how it is used."""


def _parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def _assistant(content: object = "", **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def _chats(spelling: str) -> dict[str, dict[str, Any]]:
    """Bodies by name. `spelling` is the text of special tokens."""
    unicode = "é e\u0301 ﬁ \uff21 日本語 한국어 אב 👩\u200d👩\u200d👧 \u200d\ufeff \U0001f1e8\U0001f1ed\t\x07"
    return {
        "one_user": {"messages": [_USER]},
        "system_only": {"messages": [_SYSTEM]},
        "system_and_turns": {"messages": [_SYSTEM, _USER, _assistant("Grey."), _USER]},
        "no_generation_prompt": {"messages": [_SYSTEM, _USER], "add_generation_prompt": False},
        "empty_content": {"messages": [{"role": "user", "content": ""}, _assistant(""), _USER]},
        "missing_content": {"messages": [_USER, {"role": "assistant"}, _USER]},
        "null_content": {"messages": [_USER, _assistant(None), _USER]},
        "content_parts": {"messages": [{"role": "user", "content": _parts("One.", "", " Two. ")}]},
        "system_parts": {"messages": [{"role": "system", "content": _parts("a", "b")}, _USER]},
        "named_user": {"messages": [{**_USER, "name": "ann"}]},
        "developers": {"messages": [_DEVELOPER, _USER, _DEVELOPER, _USER]},
        "unicode": {"messages": [{"role": "user", "content": unicode}]},
        "spaces": {"messages": [{"role": "user", "content": "  \n\n a  b \n"}, _assistant("\n x \n"), _USER]},
        "special_spelling": {"messages": [{"role": "user", "content": f"a{spelling} b {spelling}\n"}]},
        "continued": {"messages": [_USER, _assistant("It is ")], **_OPEN},
        "continued_parts": {"messages": [_USER, _assistant(_parts("It", "is"))], **_OPEN},
        "added_special_tokens": {"messages": [_USER], "add_special_tokens": True},
        "tools": {"messages": [_USER], "tools": _TOOLS},
        "tool_turns": {"messages": [_USER, _assistant(None, tool_calls=_CALLS), _ANSWER], "tools": _TOOLS},
        "tool_parts": {
            "messages": [_USER, _assistant("", tool_calls=_CALLS), {**_ANSWER, "content": _parts("a", "b")}]
        },
        "no_tool_calls": {"messages": [_USER, _assistant("No.", tool_calls=[]), _USER]},
        "reasoning": {"messages": [_USER, _assistant("Grey.", reasoning="Hm.\nClouds?"), _USER]},
        "thoughts_left_out": {"messages": [_USER, _assistant("Grey."), _USER, _assistant("Wet."), _USER]},
        "thoughts_inline": {"messages": [_USER, _assistant("<think>\nHm.\n</think>\n\nGrey."), _USER]},
        "reasoning_of_calls": {
            "messages": [_USER, _assistant("", reasoning="Ask.", tool_calls=_CALLS), _ANSWER], "tools": _TOOLS
        },
        "reasoning_and_null": {"messages": [_USER, _assistant(None, reasoning="Ask.", tool_calls=_CALLS)]},
        "reasoning_and_refusal": {"messages": [_USER, _assistant("No.", refusal=None, reasoning="Hm.")]},
        "template_options": {"messages": [_USER], "chat_template_kwargs": {"enable_thinking": False}},
    }  # fmt: skip


def awkward_requests(special_tokens: Sequence[str]) -> list[AwkwardRequest]:
    """The requests for a model with these special tokens."""
    spelling = "".join(special_tokens[:4]) + (special_tokens[0][:-1] if special_tokens else "")
    chats = [AwkwardRequest(name, Endpoint.CHAT, body) for name, body in _chats(spelling).items()]
    texts = {
        "text": "Once upon a time",
        "text_spaces": "  \n x ",
        "text_special_spelling": f"a{spelling} b{spelling}",
        "text_unicode": "é e\u0301 日本語 👩\u200d👧",
    }
    completions = [
        AwkwardRequest(name, Endpoint.COMPLETIONS, {"prompt": text}) for name, text in texts.items()
    ]
    bare = AwkwardRequest(
        "text_without_special_tokens", Endpoint.COMPLETIONS, {"prompt": "Once", "add_special_tokens": False}
    )
    return [*chats, *completions, bare]
