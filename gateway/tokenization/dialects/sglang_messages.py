"""SGLang 0.5.23: from a request's messages and tools to those that the template sees.

Follows the request classes in `sglang/srt/entrypoints/openai/protocol.py`, which drop fields that they don't
know, and `process_content_for_template_format` and `normalize_*` after them.
"""

from types import NoneType
from typing import Any

import orjson

from gateway.tokenization.dialects.base import Unrenderable
from gateway.tokenization.dialects.content import ContentFormat
from gateway.tokenization.results import Reason
from gateway.tokenization.template import Message, Tool

_ROLES = frozenset({"system", "assistant", "tool", "function", "developer", "latest_reminder", "root"})

_FIELDS = ("role", "content", "tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "prefix")
"""Of a message that isn't the user's, in the order in which templates get them; unset ones are left out."""

_TEXT = (str, NoneType)
_KINDS = {
    **dict.fromkeys(("tool_call_id", "name", "reasoning_content"), _TEXT),
    "tool_calls": (list, NoneType),
    "prefix": (bool, NoneType),
}

_MEDIA = frozenset({"image_url", "video_url", "audio_url", "input_audio"})

_SCHEMA_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def conversation(messages: object, content_format: ContentFormat) -> list[Message]:
    """The messages that the template sees.

    Raises:
        Unrenderable: there is media in them, or something that SGLang refuses or that isn't modelled here.
    """
    if not isinstance(messages, list) or not messages:
        raise Unrenderable(Reason.SHAPE, "messages")
    return [_message(message, f"messages[{at}]", content_format) for at, message in enumerate(messages)]


def _message(message: object, where: str, content_format: ContentFormat) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unrenderable(Reason.SHAPE, where)
    if message["role"] == "user":
        if message.get("content") is None:
            raise Unrenderable(Reason.REFUSED, f"{where}.content")
        return {"role": "user", "content": _content(message, "user", where, content_format)}
    role = message["role"].lower()
    if role not in _ROLES:
        raise Unrenderable(Reason.REFUSED, f"{where}.role")
    for name, kind in _KINDS.items():
        if not isinstance(message.get(name), kind):
            raise Unrenderable(Reason.SHAPE, f"{where}.{name}")
    for name in ("tools", "phase"):
        if message.get(name) is not None:
            raise Unrenderable(Reason.SHAPE, f"{where}.{name}")
    own: Message = {**message, "role": role, "content": _content(message, role, where, content_format)}
    if message.get("tool_calls") is not None:
        own["tool_calls"] = [_call(call, role, f"{where}.tool_calls") for call in message["tool_calls"]]
    seen = {name: own[name] for name in _FIELDS if own.get(name) is not None}
    if content_format == "openai" and isinstance(message.get("content"), list):
        seen["content"] = seen.pop("content")  # a list is put behind the other fields
    return seen


def _content(message: Message, role: str, where: str, content_format: ContentFormat) -> str | list[Message]:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Unrenderable(Reason.SHAPE, f"{where}.content")
    texts = [text for at, part in enumerate(content) for text in _text(part, role, f"{where}.content[{at}]")]
    if content_format == "string" or role == "tool":
        return " ".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _text(part: object, role: str, where: str) -> list[str]:
    """A part's text, if the template is to see it."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str) or kind in _MEDIA:
        raise Unrenderable(Reason.MEDIA if isinstance(kind, str) else Reason.SHAPE, where)
    if kind in ("thinking", "reasoning") and role == "assistant":
        return []
    if kind != "text" or not isinstance(part.get("text"), str):
        raise Unrenderable(Reason.SHAPE, where)
    return [part["text"]]


def _call(call: object, role: str, where: str) -> dict[str, Any]:
    """One tool call: all fields of its class, unset ones as None; the assistant's arguments parsed."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise Unrenderable(Reason.SHAPE, where)
    name, arguments, index = function.get("name"), function.get("arguments"), call.get("index")
    known = (
        isinstance(call.get("id"), _TEXT)
        and isinstance(name, _TEXT)
        and type(index) in (int, NoneType)
        and call.get("type", "function") == "function"
        and isinstance(arguments, str | dict | None)
    )
    if not known:
        raise Unrenderable(Reason.SHAPE, where)
    if role == "assistant" and isinstance(arguments, str):
        arguments = _arguments(arguments, where)
    return {
        "id": call.get("id"),
        "index": index,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _arguments(text: str, where: str) -> dict[str, Any]:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Unrenderable(Reason.REFUSED, f"{where}.arguments") from error
    if not isinstance(parsed, dict):
        raise Unrenderable(Reason.REFUSED, f"{where}.arguments")
    return parsed


def tool(given: object, where: str) -> Tool:
    """One tool as the template sees it: the function's keys in their own order, then those left out.

    Raises:
        Unrenderable: SGLang refuses it, or would rewrite its types.
    """
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(function, dict):
        raise Unrenderable(Reason.SHAPE, where)
    kind, name, strict = given.get("type", "function"), function.get("name"), function.get("strict")
    deferred = given.get("defer_loading") is not None or function.get("defer_loading") is not None
    texts = isinstance(kind, str) and isinstance(name, str) and isinstance(function.get("description"), _TEXT)
    if not texts or deferred or not isinstance(strict, bool | None):
        raise Unrenderable(Reason.SHAPE, f"{where}.function")
    _check_types(function.get("parameters"), f"{where}.function.parameters")
    known = {"description": None, "name": name, "parameters": None}
    own = {
        key: value
        for key, value in function.items()
        if key in known or (key == "strict" and value is not None)
    }
    rest = {key: value for key, value in known.items() if key not in own}
    return {"type": kind, "function": own | rest, "defer_loading": None}


def _check_types(schema: object, where: str) -> None:
    """SGLang rewrites types that aren't JSON Schema's, such as "varchar"; such a schema isn't known here."""
    waiting = [schema]  # no recursion: clients choose how deep it is
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            kinds = one.get("type")
            for kind in kinds if isinstance(kinds, list) else [kinds]:
                if isinstance(kind, str) and kind not in _SCHEMA_TYPES:
                    raise Unrenderable(Reason.SHAPE, where)
            waiting += one.values()
