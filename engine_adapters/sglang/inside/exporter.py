"""Our metrics in SGLang's `/metrics`, which collects what all of its processes write to files."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from engine_adapters.metrics import BUCKETS, COUNTERS, GAUGES, HISTOGRAMS, Meter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

EVERY_S: Final = 1.0


class Exporter:
    """A thread that tells Prometheus' client of what has grown."""

    def __init__(
        self, meter: Meter, labels: Mapping[str, str], registry: "CollectorRegistry | None" = None
    ) -> None:
        """`labels` are this process's, on each metric. A registry of its own lets it be made again."""
        from prometheus_client import (  # SGLang says where to first
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
        )

        registry = registry or CollectorRegistry()
        own = tuple(labels)
        self._meter = meter
        self._labels = tuple(labels.values())
        self._counters = {
            name: Counter(name, text, (*own, *more), registry=registry)
            for name, (text, more) in COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(name, text, (*own, *more), registry=registry, multiprocess_mode="mostrecent")
            for name, (text, more) in GAUGES.items()
        }
        self._histograms = {
            name: Histogram(name, text, (*own, "tier"), registry=registry, buckets=BUCKETS)
            for name, text in HISTOGRAMS.items()
        }
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpkv-metrics", daemon=True)
        self._thread.start()

    def tell(self) -> None:
        """Once."""
        growth = self._meter.take()
        if growth is None:
            return
        for (name, labels), value in growth.counters.items():
            self._counters[name].labels(*self._labels, *labels).inc(value)
        for (name, labels), value in growth.gauges.items():
            self._gauges[name].labels(*self._labels, *labels).set(value)
        for (name, labels), seconds in growth.observations.items():
            histogram = self._histograms[name].labels(*self._labels, *labels)
            for each in seconds:
                histogram.observe(each)

    def close(self) -> None:
        """Tell no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.tell()
