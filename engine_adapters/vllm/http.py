"""vLLM seen from outside: its HTTP side, and where its KV events are."""

import zmq.asyncio

from engine_adapters import refusals
from engine_adapters.base import Engine, Load, Metrics, Refusal
from engine_adapters.errors import EngineAnswerInvalid
from engine_adapters.events import Origin, Sink
from engine_adapters.subscriber import Subscriber
from engine_adapters.vllm.events import VllmEvents

_TOO_LONG = ("maximum context length", "max_model_len")


class VllmEngine(Engine):
    """A `vllm serve` process, or one behind a proxy."""

    kind = "vllm"

    def events(self, origin: Origin, sink: Sink, context: zmq.asyncio.Context) -> Subscriber | None:
        """As `Engine.events`."""
        endpoints = self.address.rank_events
        return None if endpoints is None else Subscriber(origin, endpoints, VllmEvents(), sink, context)

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
        """As `Engine.refusal`."""
        return refusals.read(status, body, _TOO_LONG)
