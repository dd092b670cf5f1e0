"""Engines' error answers, whatever their shape, in the terms of OpenAI's envelope."""

import re
from collections.abc import Collection
from typing import Any

import orjson

from engine_adapters.base import Refusal

_TEXT_CHARACTERS = 500
"""Of an error page that is kept as the message."""

_FIELD = re.compile(r"'loc': \('body', '([^']+)'")


def read(status: int, body: bytes, too_long: Collection[str]) -> Refusal:
    """Read an error answer; never raises.

    The shapes are OpenAI's `{"error": {…}}`, the flat `{"object": "error", …}` of SGLang and older vLLM, and
    FastAPI's `{"detail": …}`. Of what isn't JSON, the text is the message.

    Args:
        too_long: what this engine's messages contain when the prompt exceeds the context.
    """
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:  # a framework's plain 500, or the page of a proxy before the engine
        answer = body.decode("utf-8", "replace")
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        error = {}
    message = error.get("message") or error.get("detail") or _said(status, answer)
    if not isinstance(message, str):
        message = str(message)
    param = error.get("param")
    if not isinstance(param, str):
        named = _FIELD.search(message)
        param = named[1] if named else None
    exceeds = status == 400 and any(phrase in message for phrase in too_long)
    code = "context_length_exceeded" if exceeds else _code(status, message)
    return Refusal(message, _type(status), param, code)


def _said(status: int, answer: Any) -> str:
    """What an answer without a message field says, in one line of bounded length."""
    said = " ".join(answer.split()) if isinstance(answer, str) else ""
    more = " …" if len(said) > _TEXT_CHARACTERS else ""
    return f"the engine answered {status}" + (f": {said[:_TEXT_CHARACTERS]}{more}" if said else "")


def _type(status: int) -> str:
    if status == 404:
        return "not_found_error"
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_request_error" if status < 500 else "server_error"


def _code(status: int, message: str) -> str | None:
    if status == 404 and "model" in message:
        return "model_not_found"
    return "rate_limit_exceeded" if status == 429 else None
