"""vLLM 0.32: from a request's messages to those that the template sees.

Follows `parse_chat_messages` in `vllm/renderers/chat_utils.py`, and pydantic's validation before it: that
keeps unknown fields, but puts the known ones of a tool call in front of them, in the order of OpenAI's types.
"""

import json
from collections.abc import Iterable
from types import NoneType
from typing import Any

from gateway.tokenization.dialects.base import Unrenderable
from gateway.tokenization.dialects.content import ContentFormat
from gateway.tokenization.results import Reason
from gateway.tokenization.template import Message

# The text of a part is in the field of this name. `thinking` parts are text to vLLM.
_TEXT_FIELD = {"text": "text", "refusal": "refusal", "thinking": "thinking"}

_MEDIA = frozenset(
    {
        *("image_url", "input_image", "image_pil", "image_embeds", "prompt_embeds", "file"),
        *("audio_url", "input_audio", "audio_embeds", "video_url", "video_embeds"),
    }
)

# Fields of some type of part: the template doesn't see them, unlike those that no type knows.
_PART_FIELDS = _MEDIA - {"input_image"} | {
    *("type", "text", "refusal", "thinking", "closed", "name", "uuid", "data", "prompt_cache_breakpoint"),
}

_TEXT = (str, NoneType)
_KINDS = {
    **dict.fromkeys(("tool_call_id", "reasoning", "reasoning_content", "refusal"), _TEXT),
    "tool_calls": (list, NoneType),
}

_PLAIN_ROLES = ("user", "assistant")  # no set: a client's role may be what can't be hashed

_BILLING_HEADER = "x-anthropic-billing-header"


def conversation(messages: object, content_format: ContentFormat) -> list[Message]:
    """The messages that the template sees.

    Raises:
        Unrenderable: there is media in them, or something that vLLM refuses or that isn't modelled here.
    """
    if not isinstance(messages, list) or not messages:
        raise Unrenderable(Reason.SHAPE, "messages")
    return [
        _plain(message, content_format)
        if _is_plain(message)
        else _message(message, f"messages[{at}]", content_format)
        for at, message in enumerate(messages)
    ]


def system_only(messages: Iterable[Message]) -> list[Message]:
    """Developers become systems; these become one at the start, unless there is just one, and first."""
    systems, others, scattered = [], [], False
    for position, message in enumerate(messages):
        if message["role"] not in ("developer", "system"):
            others.append(message)
            continue
        systems.append({**message, "role": "system"})
        systems[-1].pop("tools", None)
        scattered |= position > 0
    if not scattered:
        return [*systems, *others]
    texts = (text for system in systems if (text := _joined(system["content"])))
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _joined(content: str | list[Message]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _is_plain(message: Any) -> bool:
    """Whether it is the most common shape, which is worth a shorter way."""
    return (
        type(message) is dict
        and len(message) == 2
        and message.get("role") in _PLAIN_ROLES
        and type(message.get("content")) is str
    )


def _plain(message: Message, content_format: ContentFormat) -> Message:
    content = message["content"]
    seen = content if content_format == "string" else [{"type": "text", "text": content}]
    return {"role": message["role"], "content": seen}


def _message(message: object, where: str, content_format: ContentFormat) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unrenderable(Reason.SHAPE, where)
    role = message["role"]
    _check_fields(message, where)
    seen: Message = {"role": role, "content": _content(message, where, content_format)}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            seen["tool_calls"] = [_call(call, f"{where}.tool_calls") for call in calls]
        if (reasoning := _reasoning(message)) is not None:
            seen["reasoning"] = seen["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            seen["tool_call_id"] = message["tool_call_id"]
        if isinstance(seen["content"], list):  # most templates take a tool's answer as text only
            seen["content"] = _joined(seen["content"])
    elif role == "developer":
        seen["tools"] = None
    if "name" in message:
        seen["name"] = message["name"]
    return seen


def _check_fields(message: dict[str, Any], where: str) -> None:
    """Refuse what the request class refuses, and two rare fields that some templates read."""
    role = message["role"]
    if "name" in message and not isinstance(message["name"], str):
        raise Unrenderable(Reason.SHAPE, f"{where}.name")
    for name, kind in _KINDS.items():
        if not isinstance(message.get(name), kind):
            raise Unrenderable(Reason.SHAPE, f"{where}.{name}")
    for name in ("tools", "task"):
        if message.get(name) is not None:
            raise Unrenderable(Reason.SHAPE, f"{where}.{name}")
    if "content" in message and message["content"] is None:
        null_calls = "tool_calls" in message and message["tool_calls"] is None
        if not (role == "assistant" and not null_calls) and not (role == "function" and "name" in message):
            raise Unrenderable(Reason.REFUSED, f"{where}.content")


def _content(message: Message, where: str, content_format: ContentFormat) -> str | list[Message]:
    listed = _listed(message.get("content"), f"{where}.content")
    if message["role"] == "system":
        listed = [kept for part in listed if (kept := _without_billing(part)) != ""]
    parts = [_part(part, f"{where}.content[{at}]") for at, part in enumerate(listed)]
    return parts if content_format == "openai" else "\n".join(part["text"] for part in parts if part["text"])


def _listed(content: object, where: str) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or (content and not any(isinstance(part, dict) for part in content)):
        raise Unrenderable(Reason.SHAPE, where)
    return content


def _without_billing(part: Any) -> Any:
    """vLLM drops this line of one client's, because it changes with every request. Empty if that is all."""
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
    if not isinstance(text, str) or not text.startswith(_BILLING_HEADER):
        return part
    rest = text.partition("\n")[2]
    return rest and ({**part, "text": rest} if isinstance(part, dict) else rest)


def _part(part: object, where: str) -> Message:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str) or part.get("uuid") is not None:
        raise Unrenderable(Reason.SHAPE, where)
    text = part.get(_TEXT_FIELD.get(kind, ""))
    if not isinstance(text, str):
        raise Unrenderable(Reason.MEDIA if kind in _MEDIA else Reason.SHAPE, where)
    unknown = {name: value for name, value in part.items() if name not in _PART_FIELDS}
    return {"type": "text", "text": text, **unknown}


def _call(call: object, where: str) -> dict[str, Any]:
    """One tool call: keys in the order of OpenAI's type, arguments parsed, as templates expect them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type") != "function":
        raise Unrenderable(Reason.SHAPE, where)
    identity, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if not (isinstance(identity, str) and isinstance(name, str) and isinstance(arguments, str)):
        raise Unrenderable(Reason.SHAPE, where)
    known = {"arguments": _arguments(arguments, where), "name": name}
    return _known_first({"id": identity, "function": _known_first(known, function), "type": "function"}, call)


def _known_first(known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    return {**known, **{name: value for name, value in given.items() if name not in known}}


def _arguments(text: str, where: str) -> dict[str, Any]:
    """Arguments that are no JSON object become an empty one. Raises Unrenderable for too deep ones."""
    try:
        parsed = json.loads(text) if text else {}
    except ValueError:
        return {}
    except RecursionError as error:
        raise Unrenderable(Reason.SHAPE, f"{where}.arguments") from error
    return parsed if isinstance(parsed, dict) else {}


def _reasoning(message: dict[str, Any]) -> str | None:
    reasoning: str | None = message.get("reasoning")
    return message.get("reasoning_content") if reasoning is None else reasoning
