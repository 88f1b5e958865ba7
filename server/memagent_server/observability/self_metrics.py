"""The server's own metrics. Every process counts separately; a scrape returns the sums.

`memagent serve` gives its processes a common folder (PROMETHEUS_MULTIPROC_DIR). prometheus-client
keeps the counts in files there, and the process that answers a scrape adds up all files, including
those of dead processes: see docs/adr/0006. Without the folder there is one process, which counts in
memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from flask import current_app
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

EXTENSION = "memagent_telemetry"
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""A setting of prometheus-client, which reads it at import."""

_SECOND_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
_SAMPLE_BUCKETS = (1.0, 8.0, 64.0, 512.0, 4096.0, 32768.0)
_BYTE_BUCKETS = (1e3, 1e4, 1e5, 1e6, 8e6)
_INTERVAL_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)


@dataclass(frozen=True)
class MetricSpec:
    """A counter, or a histogram if it has buckets."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def kind(self) -> Literal["counter", "histogram"]:
        return "histogram" if self.buckets else "counter"


REQUESTS = MetricSpec(
    "memagent_http_requests_total", "HTTP requests.", ("method", "route", "status")
)
REQUEST_SECONDS = MetricSpec(
    "memagent_http_request_seconds",
    "Time from the headers of a request to the start of its response.",
    ("route",),
    _SECOND_BUCKETS,
)
BATCH_SAMPLES = MetricSpec(
    "memagent_batch_samples", "Samples in a stored batch.", buckets=_SAMPLE_BUCKETS
)
BATCH_BYTES = MetricSpec("memagent_batch_bytes", "Size of a batch as sent.", buckets=_BYTE_BUCKETS)
BATCH_STORE_SECONDS = MetricSpec(
    "memagent_batch_store_seconds",
    "Time to commit a validated batch, including the wait for the write lock.",
    buckets=_SECOND_BUCKETS,
)
BATCH_INTERVAL_SECONDS = MetricSpec(
    "memagent_batch_interval_seconds",
    "Interval of batches that replies request.",
    buckets=_INTERVAL_BUCKETS,
)
BATCH_METRICS = (BATCH_SAMPLES, BATCH_BYTES, BATCH_STORE_SECONDS, BATCH_INTERVAL_SECONDS)
METRICS = (REQUESTS, REQUEST_SECONDS, *BATCH_METRICS)


class ServerMetrics:
    """The counters and histograms of one process."""

    def __init__(self) -> None:
        # Each counter's creation time would double the number of series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self.requests = self._counter(REQUESTS)
        self.request_seconds = self._histogram(REQUEST_SECONDS)
        self.batches = [self._histogram(spec) for spec in BATCH_METRICS]
        self._by_request: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        """By method, route and status: looking up the labels takes prometheus-client longer than
        counting.
        """

    def count_request(self, method: str, route: str, status: int, duration_s: float) -> None:
        key = (method, route, status)
        if key not in self._by_request:
            self._by_request[key] = (
                self.requests.labels(method, route, str(status)),
                self.request_seconds.labels(route),
            )
        count, seconds = self._by_request[key]
        count.inc()
        seconds.observe(duration_s)

    def count_batch(
        self, samples: int, sent_bytes: int | None, store_s: float, interval_s: float
    ) -> None:
        for histogram, value in zip(
            self.batches, (samples, sent_bytes or 0, store_s, interval_s), strict=True
        ):
            histogram.observe(value)

    def _counter(self, spec: MetricSpec) -> Counter:
        return Counter(spec.name, spec.help, spec.labels, registry=self.registry)

    def _histogram(self, spec: MetricSpec) -> Histogram:
        return Histogram(
            spec.name, spec.help, spec.labels, registry=self.registry, buckets=spec.buckets
        )

    def collector(self) -> Collector:
        """Return the collector of all processes that share the folder, or of this one without a
        folder.
        """
        folder = os.environ.get(FOLDER)
        if not folder:
            return self.registry
        return MultiProcessCollector(CollectorRegistry(), folder)  # type: ignore[no-untyped-call]


def current() -> ServerMetrics:
    """Return the metrics of the app that serves this request."""
    metrics: ServerMetrics = current_app.extensions[EXTENSION]
    return metrics
