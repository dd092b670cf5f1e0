"""vLLM's HTTP side."""

import re
from typing import Any

import orjson

from engine_adapters.base import Engine, Load, Metrics, Refusal
from engine_adapters.errors import EngineAnswerInvalid

_FIELD = re.compile(r"'loc': \('body', '([^']+)'")


class VllmEngine(Engine):
    """A `vllm serve` process, or one behind a proxy."""

    kind = "vllm"

    async def check_health(self, *, timeout_s: float) -> None:
        """Ask `/health`, which fails also when the engine core behind a living API server is dead."""
        status, _ = await self.connection.fetch("/health", timeout_s=timeout_s)
        if status != 200:
            raise EngineAnswerInvalid(f"{self.connection.url}/health answered {status}")

    async def load(self, *, timeout_s: float) -> Load:
        """Running, waiting and KV use, summed (use: the mean) over data-parallel ranks."""
        status, page = await self.connection.fetch("/metrics", timeout_s=timeout_s)
        if status != 200:
            raise EngineAnswerInvalid(f"{self.connection.url}/metrics answered {status}")
        metrics = Metrics(page)
        usage = metrics.values("vllm:kv_cache_usage_perc")
        return Load(
            running=int(sum(metrics.values("vllm:num_requests_running"))),
            waiting=int(sum(metrics.values("vllm:num_requests_waiting"))),
            kv_usage=sum(usage) / max(len(usage), 1),
        )

    def refusal(self, status: int, body: bytes) -> Refusal:
        """Read `{"error": {…}}`, older vLLM's flat `{"object": "error", …}`, or FastAPI's `{"detail": …}`."""
        try:
            answer: Any = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        error = answer.get("error", answer) if isinstance(answer, dict) else None
        if not isinstance(error, dict):
            error = {}
        message = error.get("message") or error.get("detail") or f"the engine answered {status}"
        if not isinstance(message, str):
            message = str(message)
        param = error.get("param")
        if not isinstance(param, str):
            named = _FIELD.search(message)
            param = named[1] if named else None
        return Refusal(message, _type(status), param, _code(status, message))


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
