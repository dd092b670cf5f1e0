"""vLLM seen from outside: its HTTP side, and where its KV events are."""

import re
from typing import Any

import orjson
import zmq.asyncio

from engine_adapters.base import Engine, Load, Metrics, Refusal
from engine_adapters.errors import EngineAnswerInvalid
from engine_adapters.events import Origin, Sink
from engine_adapters.http import Headers
from engine_adapters.subscriber import Endpoints, Subscriber
from engine_adapters.vllm.events import VllmEvents

_TEXT_CHARACTERS = 500
"""Of an error page that is kept as the message."""

_FIELD = re.compile(r"'loc': \('body', '([^']+)'")


class VllmEngine(Engine):
    """A `vllm serve` process, or one behind a proxy."""

    kind = "vllm"

    @property
    def headers(self) -> Headers:
        """The rank, where the server has several; without it, the server would choose one itself."""
        address = self.address
        return [(b"x-data-parallel-rank", b"%d" % address.rank)] if address.ranks > 1 else []

    def events(self, origin: Origin, sink: Sink, context: zmq.asyncio.Context) -> Subscriber | None:
        """What follows this rank's KV events; rank r publishes at rank 0's port + r."""
        endpoints = self.address.events
        if endpoints is None:
            return None
        return Subscriber(origin, _of_rank(endpoints, self.address.rank), VllmEvents(), sink, context)

    async def check_health(self, *, timeout_s: float) -> None:
        """Ask `/health`, which fails also when the engine core behind a living API server is dead."""
        status, _ = await self.connection.fetch("/health", timeout_s=timeout_s)
        if status != 200:
            raise EngineAnswerInvalid(f"{self.connection.url}/health answered {status}")

    async def load(self, *, timeout_s: float) -> Load:
        """Running, waiting and KV use of this rank, which vLLM calls an engine on its metrics page."""
        status, page = await self.connection.fetch("/metrics", timeout_s=timeout_s)
        if status != 200:
            raise EngineAnswerInvalid(f"{self.connection.url}/metrics answered {status}")
        metrics = Metrics(page)
        rank = b'engine="%d"' % self.address.rank
        usage = metrics.values("vllm:kv_cache_usage_perc", rank)
        return Load(
            running=int(sum(metrics.values("vllm:num_requests_running", rank))),
            waiting=int(sum(metrics.values("vllm:num_requests_waiting", rank))),
            kv_usage=sum(usage) / max(len(usage), 1),
        )

    def refusal(self, status: int, body: bytes) -> Refusal:
        """Read `{"error": {…}}`, older vLLM's flat `{"object": "error", …}`, FastAPI's `{"detail": …}`.

        Of what isn't JSON, the text is the message.
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
        return Refusal(message, _type(status), param, _code(status, message))


def _said(status: int, answer: Any) -> str:
    """What an answer without a message field says, in one line of bounded length."""
    said = " ".join(answer.split()) if isinstance(answer, str) else ""
    more = " …" if len(said) > _TEXT_CHARACTERS else ""
    return f"the engine answered {status}" + (f": {said[:_TEXT_CHARACTERS]}{more}" if said else "")


def _of_rank(endpoints: Endpoints, rank: int) -> Endpoints:
    return endpoints._replace(
        events=_offset(endpoints.events, rank),
        replay=_offset(endpoints.replay, rank) if endpoints.replay else None,
    )


def _offset(endpoint: str, rank: int) -> str:
    if not rank:
        return endpoint
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{int(port) + rank}"


def _type(status: int) -> str:
    if status == 404:
        return "not_found_error"
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_request_error" if status < 500 else "server_error"


def _code(status: int, message: str) -> str | None:
    if status == 400 and ("maximum context length" in message or "max_model_len" in message):
        return "context_length_exceeded"
    if status == 404 and "model" in message:
        return "model_not_found"
    return "rate_limit_exceeded" if status == 429 else None
