"""Which prompt a tenant means: that of a request to come, or the beginning that many requests will share."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.dispatch import Dispatch, Dispatcher, Request
from gateway.errors import InvalidRequest

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
SOURCES: Final = ("messages", "prompt", "token_ids")

_ASKED_NEXT: Final = ("user", "tool")
_QUESTIONS: Final = ("0", "x")
"""Two users' first words. With what a chat has in common, whichever comes next, all later chats begin."""


async def look_up(dispatcher: Dispatcher, request_id: str, body: Mapping[str, Any], size: int) -> Dispatch:
    """Who holds how much of the prompt that a body means.

    A chat that ends with a question is the prompt of a request, read as the chat endpoint reads it. One that
    ends otherwise, say with its system prompt, is a beginning: a template may do other things with it alone,
    so it is read with two different questions behind it, and cut to what both have in common.

    Args:
        size: of the body in bytes.

    Raises:
        InvalidRequest: not one prompt, or one whose tokens aren't known here.
        ModelNotFound, Overloaded
    """
    path, bodies = _bodies(body)
    requests = [Request(request_id, path, body["model"], each, size) for each in bodies]
    dispatch = await dispatcher.common(*requests)
    prompt = dispatch.context.prompt
    if prompt.keys is None and body.get("token_ids") is not None and prompt.unknown == "shape":
        raise InvalidRequest("'token_ids' must be one or more ids, from 0 to 4294967295.", param="token_ids")
    if prompt.keys is None:
        raise InvalidRequest(
            f"The prompt's tokens aren't known here ({prompt.unknown}): send text only, or its 'token_ids'."
        )
    if not len(prompt.keys):
        raise InvalidRequest("The prompt is empty.")
    return dispatch


def _bodies(body: Mapping[str, Any]) -> tuple[str, list[Mapping[str, Any]]]:
    given = [source for source in SOURCES if body.get(source) is not None]
    if len(given) != 1:
        raise InvalidRequest(f"Give one of 'messages', 'prompt' and 'token_ids', not {len(given)} of them.")
    if given == ["token_ids"]:
        if body["token_ids"] and type(body["token_ids"][0]) is not int:
            raise InvalidRequest("'token_ids' must be integers.", param="token_ids")
        return COMPLETIONS, [{**body, "prompt": body["token_ids"]}]
    if given == ["prompt"]:
        return COMPLETIONS, [body]
    messages = body["messages"]
    if not messages:
        raise InvalidRequest("'messages' is empty.", param="messages")
    if messages[-1].get("role") in _ASKED_NEXT or body.get("continue_final_message"):
        return CHAT, [body]
    asking = [{"role": "user", "content": question} for question in _QUESTIONS]
    plain = {name: value for name, value in body.items() if name != "add_generation_prompt"}
    return CHAT, [{**plain, "messages": [*messages, question]} for question in asking]
