"""Asking an engine for the ids that it computes: to compare them with ours, or where only it can render."""

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol

from gateway.tokenization.dialects.base import Dialect, Question, Unrenderable
from gateway.tokenization.errors import EngineRefused, EngineUnreachable, RouteNotServed
from gateway.tokenization.results import Endpoint, Reason, TokenIds, Tokens, Unknown, token_ids

# vLLM answers 403 on its render routes unless it was started with --enable-scale-out. A 404 is about a model.
_NOT_SERVED = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})

# How long a route that isn't served is left alone; the engine may be started again with it.
_RETRY_S = 60.0


class EngineCall(Protocol):
    """POSTs a JSON body to one healthy engine that serves the model, and returns the parsed answer.

    Raises:
        EngineRefused: the engine answered with a status of 400 or more.
        EngineUnreachable: it didn't answer.
    """

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send one request."""


class Engine:
    """Tells the ids that a model's engine computes. Routes that it doesn't serve are left alone."""

    def __init__(self, call: EngineCall) -> None:
        self._call = call
        self._closed_until: dict[str, float] = {}

    async def ids(self, question: Question) -> TokenIds:
        """The ids that the engine computes for a question.

        Raises:
            EngineRefused, EngineUnreachable: as `EngineCall`; the latter also if the answer has no ids.
            RouteNotServed: the engine has to be started otherwise.
            Unrenderable: the prompt has media, so its ids alone don't tell it.
        """
        path = question.path
        if time.monotonic() < self._closed_until.get(path, 0.0):
            raise RouteNotServed(path)
        try:
            answer = await self._call(path, question.body)
        except EngineRefused as refused:
            if refused.status not in _NOT_SERVED:
                raise
            self._closed_until[path] = time.monotonic() + _RETRY_S
            raise RouteNotServed(path) from refused
        return _ids(answer, question)


def _ids(answer: object, question: Question) -> TokenIds:
    ids = answer.get(question.field) if isinstance(answer, Mapping) else None
    if not isinstance(answer, Mapping) or not isinstance(ids, list):
        raise EngineUnreachable(question.path, f"no list under {question.field!r} in it")
    if answer.get("features") is not None:
        raise Unrenderable(Reason.MEDIA, question.path)
    try:
        return token_ids(ids)
    except (TypeError, OverflowError) as error:
        raise EngineUnreachable(question.path, f"{question.field!r} in it aren't token ids") from error


class EngineRenderer:
    """Prompts of endpoints that only the engine can render.

    The request waits for the answer, so at most `at_once` are asked at a time, none longer than `deadline_s`:
    beyond that the ids are unknown rather than late.
    """

    def __init__(self, dialect: Dialect, engine: Engine | None, *, at_once: int, deadline_s: float) -> None:
        self._dialect = dialect
        self._engine = engine
        self._free = at_once
        self._deadline_s = deadline_s

    async def tokens(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Tokens | Unknown:
        """The ids of a body, if the engine tells them in time."""
        question = next(iter(self._dialect.questions(endpoint, body)), None)
        if self._engine is None or question is None:
            return Unknown(Reason.NOT_RENDERED_HERE, endpoint)
        if self._free == 0:
            return Unknown(Reason.ENGINE_BUSY, question.path)
        self._free -= 1
        try:
            return await self._ask(self._engine, question)
        finally:
            self._free += 1

    async def _ask(self, engine: Engine, question: Question) -> Tokens | Unknown:
        try:
            async with asyncio.timeout(self._deadline_s):
                return Tokens(await engine.ids(question))
        except Unrenderable as unrenderable:
            return Unknown(unrenderable.reason, unrenderable.detail)
        except RouteNotServed:
            return Unknown(Reason.NOT_RENDERED_HERE, question.path)
        except EngineRefused as refused:
            failed = refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            return Unknown(Reason.ENGINE_SILENT if failed else Reason.REFUSED, question.path)
        except (EngineUnreachable, TimeoutError):
            return Unknown(Reason.ENGINE_SILENT, question.path)
