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
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_adapters.events import Tier
from engine_adapters.subscriber import Subscriber

if TYPE_CHECKING:
    from gateway.exchange import Exchange
    from gateway.fleet import Replica
    from gateway.knowledge.model import ModelKnowledge
    from gateway.routing import Candidate

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
        self._unknown = Counter(
            "hpkv_tokenization_unknown_prompts_total",
            "Requests routed without prefix knowledge, by why",
            ["model", "reason"],
            registry=self.registry,
        )
        self._predicted = Counter(
            "hpkv_gateway_predicted_cached_tokens_total",
            "Cached tokens, by tier, predicted for requests whose replica reported how many there were",
            ["model", "tier"],
            registry=self.registry,
        )
        self._mispredicted = Counter(
            "hpkv_gateway_mispredicted_cached_tokens_total",
            "Sum of |predicted - reported| over the same requests",
            ["model"],
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

    def watch(self, fleet: Iterable[Replica], knowledge: Iterable[ModelKnowledge]) -> None:
        """Show the state of replicas and of prefix knowledge too."""
        self.registry.register(_StateCollector(fleet, knowledge))

    def observe(self, exchange: Exchange, seconds: float) -> None:
        """Count a finished request."""
        endpoint, model = exchange.endpoint, exchange.model
        self._requests.labels(endpoint, model, exchange.status).inc()
        self._duration.labels(endpoint, model).observe(seconds)
        if exchange.chosen is not None:
            self._observe_answer(exchange, exchange.chosen)

    def _observe_answer(self, exchange: Exchange, chosen: Candidate) -> None:
        endpoint, model, replica = exchange.endpoint, exchange.model, chosen.replica.name
        if exchange.first_chunk_at:
            self._first_chunk.labels(endpoint, model, replica).observe(
                exchange.first_chunk_at - exchange.started
            )
        usage = exchange.usage
        if usage is not None:
            self._tokens.labels(model, replica, "prompt").inc(usage.prompt_tokens)
            self._tokens.labels(model, replica, "cached").inc(usage.cached_tokens or 0)
            self._tokens.labels(model, replica, "completion").inc(usage.completion_tokens)
        if usage is not None and usage.cached_tokens is not None:
            predicted = sum(chosen.cached)
            for tier in Tier:
                if chosen.cached[tier] or tier is Tier.GPU:
                    self._predicted.labels(model, tier.name.lower()).inc(chosen.cached[tier])
            self._mispredicted.labels(model).inc(abs(predicted - usage.cached_tokens))

    def unknown(self, model: str, reason: str) -> None:
        """A request's prompt isn't known."""
        self._unknown.labels(model, reason).inc()

    def moved(self, replica: str) -> None:
        """A request left this replica for another."""
        self._moved.labels(replica).inc()

    def broke(self, replica: str) -> None:
        """This replica broke off an answer."""
        self._broken.labels(replica).inc()

    def forget(self, replica: str) -> None:
        """Show no more of a replica that is gone for good."""
        for metric in (self._first_chunk, self._tokens, self._moved, self._broken):
            metric.remove_by_labels({"replica": replica})

    def page(self) -> bytes:
        """The page in Prometheus's text format; takes milliseconds, so not on the event loop."""
        return generate_latest(self.registry)


class _StateCollector(Collector):
    """Reads the parts' state when asked, so that nothing has to be kept in step."""

    def __init__(self, fleet: Iterable[Replica], knowledge: Iterable[ModelKnowledge]) -> None:
        self._fleet = fleet
        self._knowledge = knowledge

    def collect(self) -> Iterator[Metric]:
        yield from self._replicas()
        yield from self._streams()
        yield from self._agents()
        yield from self._models()

    def _replicas(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "hpkv_gateway_replica_up", "1 if the replica gets requests", labels=["replica"]
        )
        requests = GaugeMetricFamily(
            "hpkv_gateway_replica_requests", "Requests of this gateway at the replica", labels=["replica"]
        )
        rate = GaugeMetricFamily(
            "hpkv_gateway_replica_prefill_tokens_per_second",
            "As learned from its answers",
            labels=["replica"],
        )
        for replica in self._fleet:
            up.add_metric([replica.name], float(replica.up))
            requests.add_metric([replica.name], replica.requests)
            if replica.speed.measured:
                rate.add_metric([replica.name], replica.speed.rate)
        yield from (up, requests, rate)

    def _streams(self) -> Iterator[Metric]:
        streams = (pair for model in self._knowledge for pair in model.streams().items())
        yield from _stream_metrics("hpkv_events", "KV events", streams)

    def _agents(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "hpkv_agent_up", "1 while the replica's agent answers and is believed", labels=["replica"]
        )
        rate = GaugeMetricFamily(
            "hpkv_agent_load_tokens_per_second",
            "What each of its tiers is believed to load",
            labels=["replica", "tier"],
        )
        followers = [pair for model in self._knowledge for pair in model.followers().items()]
        for replica, follower in followers:
            up.add_metric([replica], float(follower.agent.alive))
            for tier, tokens_per_s in follower.agent.rates.items():
                rate.add_metric([replica, tier.name.lower()], tokens_per_s)
        yield from (up, rate)
        streams = [(replica, stream) for replica, one in followers if (stream := one.stream) is not None]
        yield from _stream_metrics("hpkv_agent_events", "what its tiers hold", streams)

    def _models(self) -> Iterator[Metric]:
        gauges = {
            name: GaugeMetricFamily(f"hpkv_index_{name}", text, labels=["model"])
            for name, text in (
                ("blocks", "Distinct prefixes in the index"),
                ("bytes", "Memory that the index takes"),
                ("backlog_blocks", "Blocks told by events and not applied yet"),
            )
        }
        evicted = CounterMetricFamily(
            "hpkv_index_evicted_blocks", "Blocks that fell to the bound", labels=["model"]
        )
        orphans = CounterMetricFamily(
            "hpkv_index_orphan_blocks", "Blocks stored with an unknown parent", labels=["model"]
        )
        silent = GaugeMetricFamily(
            "hpkv_index_silent_replica",
            "1 for a replica without KV events after traffic that must cause some",
            labels=["model", "replica"],
        )
        parity = GaugeMetricFamily(
            "hpkv_tokenization_parity",
            "1 for what comparing with the engine showed",
            labels=["model", "engine", "verdict"],
        )
        differed = CounterMetricFamily(
            "hpkv_tokenization_differed",
            "Prompts whose ids were found to differ from the engine's",
            labels=["model", "engine"],
        )
        for model in self._knowledge:
            state = model.index.state()
            gauges["blocks"].add_metric([model.name], state.blocks)
            gauges["bytes"].add_metric([model.name], state.bytes)
            gauges["backlog_blocks"].add_metric([model.name], state.backlog)
            evicted.add_metric([model.name], state.evicted)
            orphans.add_metric([model.name], state.orphans)
            for origin in state.silent:
                silent.add_metric([model.name, origin.replica], 1)
            for kind, tokenizer in model.tokenizers():
                parity.add_metric([model.name, kind, str(tokenizer.parity.verdict)], 1)
                differed.add_metric([model.name, kind], tokenizer.parity.differed)
        yield from (*gauges.values(), evicted, orphans, silent, parity, differed)


def _stream_metrics(prefix: str, what: str, streams: Iterable[tuple[str, Subscriber]]) -> Iterator[Metric]:
    """How well each replica's stream of one kind is followed."""
    connected = GaugeMetricFamily(
        f"{prefix}_connected", f"1 while the replica's stream of {what} is followed", labels=["replica"]
    )
    counters = {
        name: CounterMetricFamily(f"{prefix}_{name}", text, labels=["replica"])
        for name, text in (
            ("messages", f"Messages of {what}"),
            ("gaps", "Gaps in their sequence"),
            ("lost", "Gaps that no replay could fill"),
            ("snapshots", "Times that a snapshot told everything"),
            ("restarts", "Engines found to have restarted"),
            ("invalid", "Messages that could not be read"),
        )
    }
    for replica, stream in streams:
        connected.add_metric([replica], float(stream.state.connected))
        for name, counter in counters.items():
            counter.add_metric([replica], getattr(stream.state, name))
    yield from (connected, *counters.values())
