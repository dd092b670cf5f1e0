"""The gateway's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from gateway.exchange import Exchange
    from gateway.fleet import Replica

# A creation time beside each counter doubles the page and says nothing to an operator.
disable_created_metrics()  # type: ignore[no-untyped-call]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class GatewayMetrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "hpkv_gateway_requests_total",
            "Requests answered; status 499: the client left first",
            ["endpoint", "model", "status"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "hpkv_gateway_request_duration_seconds",
            "From the request's headers to the answer's end",
            ["endpoint", "model"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._first_chunk = Histogram(
            "hpkv_gateway_time_to_first_chunk_seconds",
            "From the request's headers to the replica's first chunk",
            ["endpoint", "model", "replica"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._tokens = Counter(
            "hpkv_gateway_tokens_total",
            "Tokens as replicas counted them; cached ones are part of the prompt's",
            ["model", "replica", "kind"],
            registry=self.registry,
        )
        self._moved = Counter(
            "hpkv_gateway_moved_requests_total",
            "Requests which a replica failed before its first chunk and another took over",
            ["replica"],
            registry=self.registry,
        )
        self._broken = Counter(
            "hpkv_gateway_broken_answers_total",
            "Answers that a replica broke off in the middle",
            ["replica"],
            registry=self.registry,
        )

    def watch(self, fleet: Iterable[Replica]) -> None:
        """Show the replicas' state too."""
        self.registry.register(_FleetCollector(fleet))

    def observe(self, exchange: Exchange, seconds: float) -> None:
        """Count a finished request."""
        endpoint, model, replica = exchange.endpoint, exchange.model, exchange.replica
        self._requests.labels(endpoint, model, exchange.status).inc()
        self._duration.labels(endpoint, model).observe(seconds)
        if exchange.first_chunk_at:
            self._first_chunk.labels(endpoint, model, replica).observe(
                exchange.first_chunk_at - exchange.started
            )
        usage = exchange.usage
        if usage is not None:
            self._tokens.labels(model, replica, "prompt").inc(usage.prompt_tokens)
            self._tokens.labels(model, replica, "cached").inc(usage.cached_tokens or 0)
            self._tokens.labels(model, replica, "completion").inc(usage.completion_tokens)

    def moved(self, replica: str) -> None:
        """A request left this replica for another."""
        self._moved.labels(replica).inc()

    def broke(self, replica: str) -> None:
        """This replica broke off an answer."""
        self._broken.labels(replica).inc()

    def page(self) -> bytes:
        """The page in Prometheus's text format; takes milliseconds, so not on the event loop."""
        return generate_latest(self.registry)


class _FleetCollector(Collector):
    """Reads the replicas' state when asked, so that nothing has to be kept in step."""

    def __init__(self, fleet: Iterable[Replica]) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "hpkv_gateway_replica_up", "1 if the replica gets requests", labels=["replica"]
        )
        requests = GaugeMetricFamily(
            "hpkv_gateway_replica_requests", "Requests of this gateway at the replica", labels=["replica"]
        )
        for replica in self._fleet:
            up.add_metric([replica.name], float(replica.up))
            requests.add_metric([replica.name], replica.requests)
        yield up
        yield requests
