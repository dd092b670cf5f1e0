"""Asking an engine for the ids that it computes: to compare them with ours, or where only it can render."""

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol

from gateway.tokenization.dialects.base import Dialect, Question, Unrenderable
from gateway.tokenization.errors import EngineRefused, EngineUnreachable
from gateway.tokenization.results import Endpoint, Reason, TokenIds, Tokens, Unknown, token_ids

# vLLM answers 403 on its render routes unless it was started with --enable-scale-out.
_NOT_SERVED = frozenset(
    {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
)

# How long a route that isn't served is left alone; the engine may be started again with it.
_RETRY_S = 60.0


class EngineCall(Protocol):
    """POSTs a JSON body to a path of one healthy engine that serves the model, and returns the parsed JSON
    answer.

    Raises:
        EngineRefused: the engine answered with a status of 400 or more.
        EngineUnreachable: it didn't answer.
    """

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send one request."""


async def ask(call: EngineCall, question: Question) -> TokenIds:
    """The ids that the engine computes for a question.

    Raises:
        EngineRefused, EngineUnreachable: as `EngineCall`; the latter also if the answer has no ids.
        Unrenderable: the prompt has media, so its ids alone don't tell it.
    """
    answer = await call(question.path, question.body)
    if not isinstance(answer, Mapping):
        raise EngineUnreachable(question.path, "it isn't an object")
    if answer.get("features") is not None:
        raise Unrenderable(Reason.MEDIA, question.path)
    try:
        return token_ids(answer.get(question.field, ()))
    except (TypeError, OverflowError) as error:
        raise EngineUnreachable(question.path, f"{question.field!r} in it aren't token ids") from error


def not_served(refused: EngineRefused) -> bool:
    """Whether the engine refused because it doesn't serve the route."""
    return refused.status in _NOT_SERVED


class EngineRenderer:
    """Prompts of endpoints that only the engine can render.

    The request waits for the answer, so at most `at_once` are asked at a time, none longer than `deadline_s`:
    beyond that the ids are unknown rather than late.
    """

    def __init__(self, dialect: Dialect, call: EngineCall | None, *, at_once: int, deadline_s: float) -> None:
        self._dialect = dialect
        self._call = call
        self._free = at_once
        self._deadline_s = deadline_s
        self._retry_at: dict[str, float] = {}

    async def tokens(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Tokens | Unknown:
        """The ids of a body, if the engine tells them in time."""
        question = next(iter(self._dialect.questions(endpoint, body)), None)
        if (
            self._call is None
            or question is None
            or time.monotonic() < self._retry_at.get(question.path, 0.0)
        ):
            return Unknown(Reason.NOT_RENDERED_HERE, endpoint)
        if self._free == 0:
            return Unknown(Reason.ENGINE_BUSY, question.path)
        self._free -= 1
        try:
            return await self._ask(self._call, question)
        finally:
            self._free += 1

    async def _ask(self, call: EngineCall, question: Question) -> Tokens | Unknown:
        try:
            async with asyncio.timeout(self._deadline_s):
                return Tokens(await ask(call, question))
        except Unrenderable as unrenderable:
            return Unknown(unrenderable.reason, unrenderable.detail)
        except EngineRefused as refused:
            if not_served(refused):
                self._retry_at[question.path] = time.monotonic() + _RETRY_S
                return Unknown(Reason.NOT_RENDERED_HERE, question.path)
            failed = refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            return Unknown(Reason.ENGINE_SILENT if failed else Reason.REFUSED, question.path)
        except (EngineUnreachable, TimeoutError):
            return Unknown(Reason.ENGINE_SILENT, question.path)
