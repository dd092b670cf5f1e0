"""vLLM 0.32: from a request's messages to those that the template sees.

Follows `parse_chat_messages` in `vllm/renderers/chat_utils.py`, and what pydantic makes of the messages
before it: each is tried as OpenAI's type for its role and as vLLM's own looser type, the one with more known
fields wins, and fields that the winner doesn't have are dropped.
"""

import json
from collections.abc import Iterable
from typing import Any

from gateway.tokenization.dialects.base import Unrenderable
from gateway.tokenization.dialects.vllm_content import ContentFormat
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

_OPENAI_ASSISTANT = frozenset({"role", "audio", "content", "function_call", "name", "refusal", "tool_calls"})
_VLLM_MESSAGE = frozenset(
    {"role", "content", "name", "tool_call_id", "tool_calls", "reasoning", "tools", "task"}
)
_FIELDS_OF_A_CALL = 5  # id, function, type, and the function's name and arguments
_FIELDS_OF_A_PART = 2  # type and text

_BILLING_HEADER = "x-anthropic-billing-header"


def conversation(messages: object, content_format: ContentFormat) -> list[Message]:
    """The messages that the template sees.

    Raises:
        Unrenderable: there is media in them, or something that vLLM refuses or that isn't modelled here.
    """
    if not isinstance(messages, list) or not messages:
        raise Unrenderable(Reason.SHAPE, "messages")
    return [_message(message, f"messages[{at}]", content_format) for at, message in enumerate(messages)]


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


def _joined(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


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
    """Refuse what the request class refuses, and the rare fields that would change the message's type."""
    role, calls = message["role"], message.get("tool_calls")
    if "name" in message and not isinstance(message["name"], str):
        raise Unrenderable(Reason.SHAPE, f"{where}.name")
    for name, kinds in (
        ("tool_call_id", str),
        ("reasoning", str),
        ("reasoning_content", str),
        ("refusal", str),
        ("tool_calls", list),
    ):
        if not isinstance(message.get(name), kinds | None):
            raise Unrenderable(Reason.SHAPE, f"{where}.{name}")
    for name in ("audio", "function_call", "tools", "task"):
        if message.get(name) is not None:
            raise Unrenderable(Reason.SHAPE, f"{where}.{name}")
    if calls and role != "assistant":
        raise Unrenderable(Reason.SHAPE, f"{where}.tool_calls")
    if "content" in message and message["content"] is None:
        emptied = role == "assistant" and not ("tool_calls" in message and calls is None)
        if not emptied and not (role == "function" and "name" in message):
            raise Unrenderable(Reason.REFUSED, f"{where}.content")


def _content(
    message: dict[str, Any], where: str, content_format: ContentFormat
) -> str | list[dict[str, str]]:
    content = message.get("content")
    if isinstance(content, str) and content_format == "string" and not content.startswith(_BILLING_HEADER):
        return content  # by far the most common shape
    texts = _texts(content, f"{where}.content")
    if message["role"] == "system":
        texts = [kept for text in texts if (kept := _without_billing(text)) is not None]
    if content_format == "openai":
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(text for text in texts if text)


def _texts(content: object, where: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise Unrenderable(Reason.SHAPE, where)
    if content and not any(isinstance(part, dict) for part in content):
        raise Unrenderable(Reason.SHAPE, where)
    return [_text(part, f"{where}[{at}]") for at, part in enumerate(content)]


def _text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise Unrenderable(Reason.SHAPE, where)
    text = part.get(_TEXT_FIELD.get(kind, ""))
    if not isinstance(text, str):
        raise Unrenderable(Reason.MEDIA if kind in _MEDIA else Reason.SHAPE, where)
    return text


def _without_billing(text: str) -> str | None:
    """vLLM drops this line of one client's, because it changes with every request."""
    if not text.startswith(_BILLING_HEADER):
        return text
    return text.partition("\n")[2] or None


def _call(call: object, where: str) -> dict[str, Any]:
    """One tool call: keys in the order of OpenAI's type, arguments parsed, as templates expect them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type") != "function":
        raise Unrenderable(Reason.SHAPE, where)
    identity, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if not (isinstance(identity, str) and isinstance(name, str) and isinstance(arguments, str)):
        raise Unrenderable(Reason.SHAPE, where)
    return {
        "id": identity,
        "function": {"arguments": _arguments(arguments), "name": name},
        "type": "function",
    }


def _arguments(text: str) -> dict[str, Any]:
    """Arguments that are no JSON object become an empty one."""
    try:
        parsed = json.loads(text) if text else {}
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _reasoning(message: dict[str, Any]) -> str | None:
    """An assistant's reasoning, unless its message passes as OpenAI's own type, which has no such field."""
    reasoning: str | None = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is None or ("content" in message and message["content"] is None):
        return None
    if "tool_calls" in message and message["tool_calls"] is None:  # not OpenAI's type
        return reasoning
    fields = {*message, "reasoning"}
    content = message.get("content")
    parts = sum(isinstance(part, dict) for part in content) if isinstance(content, list) else 0
    calls = len(message.get("tool_calls", ()))
    vllm = len(fields & _VLLM_MESSAGE) + _FIELDS_OF_A_CALL * calls + _FIELDS_OF_A_PART * parts
    return reasoning if vllm > len(fields & _OPENAI_ASSISTANT) else None
