"""What the server counts of itself. Every process counts for itself; a scrape sums them up.

`memagent serve` gives its processes a common folder (PROMETHEUS_MULTIPROC_DIR): prometheus-client then keeps the counts in files there,
and whichever process answers a scrape adds up everybody's, those of processes that died included. docs/adr/0010 says why.
Without the folder there is one process, which counts in memory.
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
"""prometheus-client's own setting, which it reads when it is imported."""

_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
_SAMPLES = (1.0, 8.0, 64.0, 512.0, 4096.0, 32768.0)
_BYTES = (1e3, 1e4, 1e5, 1e6, 8e6)


@dataclass(frozen=True)
class MetricSpec:
    """A counter, or a histogram where it has buckets."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def kind(self) -> Literal["counter", "histogram"]:
        return "histogram" if self.buckets else "counter"


REQUESTS = MetricSpec(
    "memagent_http_requests_total", "Requests answered.", ("method", "route", "status")
)
REQUEST_SECONDS = MetricSpec(
    "memagent_http_request_seconds", "Time from a request's headers to the beginning of its answer.", ("route",), _SECONDS
)  # fmt: skip
BATCH_SAMPLES = MetricSpec(
    "memagent_batch_samples", "Samples of a batch that was stored.", buckets=_SAMPLES
)
BATCH_BYTES = MetricSpec("memagent_batch_bytes", "Size of a batch as it was sent.", buckets=_BYTES)
BATCH_STORE_SECONDS = MetricSpec(
    "memagent_batch_store_seconds", "Time from a checked batch to its commit, with the wait for its turn.", buckets=_SECONDS
)  # fmt: skip
FIGURES = (REQUESTS, REQUEST_SECONDS, BATCH_SAMPLES, BATCH_BYTES, BATCH_STORE_SECONDS)


class Telemetry:
    """The counters of one process."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody asks for
        self.registry = CollectorRegistry(auto_describe=False)
        self.requests = self._counter(REQUESTS)
        self.request_seconds = self._histogram(REQUEST_SECONDS)
        self.batch_samples = self._histogram(BATCH_SAMPLES)
        self.batch_bytes = self._histogram(BATCH_BYTES)
        self.batch_store_seconds = self._histogram(BATCH_STORE_SECONDS)
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        """By method, route and status: to ask prometheus-client each time takes longer than to count."""

    def note_request(self, method: str, route: str, status: int, duration_s: float) -> None:
        key = (method, route, status)
        found = self._known.get(key)
        if found is None:
            found = (
                self.requests.labels(method, route, str(status)),
                self.request_seconds.labels(route),
            )
            self._known[key] = found
        count, seconds = found
        count.inc()
        seconds.observe(duration_s)

    def note_batch(self, samples: int, sent_bytes: int | None, store_s: float) -> None:
        self.batch_samples.observe(samples)
        self.batch_bytes.observe(sent_bytes or 0)
        self.batch_store_seconds.observe(store_s)

    def _counter(self, figure: MetricSpec) -> Counter:
        return Counter(figure.name, figure.help, figure.labels, registry=self.registry)

    def _histogram(self, figure: MetricSpec) -> Histogram:
        return Histogram(
            figure.name, figure.help, figure.labels, registry=self.registry, buckets=figure.buckets
        )

    def collector(self) -> Collector:
        """Of all processes that share the folder, or of this one where there is none."""
        folder = os.environ.get(FOLDER)
        if not folder:
            return self.registry
        return MultiProcessCollector(CollectorRegistry(), folder)  # type: ignore[no-untyped-call]


def current() -> Telemetry:
    """The counters of the app that serves this request."""
    telemetry: Telemetry = current_app.extensions[EXTENSION]
    return telemetry
