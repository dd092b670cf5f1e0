"""Reading a request's body: what engines agree on."""

from typing import Any, TypeVar

from gateway.tokenization.dialects.base import Body, Unrenderable
from gateway.tokenization.results import Reason, Tokens, token_ids

_T = TypeVar("_T")


def named(body: Body, names: tuple[str, ...]) -> dict[str, Any]:
    """Those of these fields that it has."""
    return {name: body[name] for name in names if name in body}


def optional(body: Body, name: str, kind: type[_T]) -> _T | None:
    """A field that is of this type or null. Raises Unrenderable."""
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        raise Unrenderable(Reason.SHAPE, name)
    return value


def only_prompt(body: Body) -> object:
    """A completion's prompt, out of a list of one. Raises Unrenderable if there are several."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[0], str | list):
        return prompt
    if len(prompt) > 1:
        raise Unrenderable(Reason.SEVERAL_PROMPTS, "prompt")
    return prompt[0]


def ids(value: object, where: str) -> Tokens:
    """A prompt of token ids. Raises Unrenderable if it is no list of them, or empty."""
    if not isinstance(value, list) or not value:
        raise Unrenderable(Reason.SHAPE, where)
    try:
        return Tokens(token_ids(value))
    except (TypeError, OverflowError) as error:
        raise Unrenderable(Reason.SHAPE, where) from error
