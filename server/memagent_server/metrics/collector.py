"""The table of all metrics, and their values, read with a fixed number of queries.

The number of streams is capped; one metric counts those left out. docs/metrics.md and its test
share the table of names, types, help and labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from prometheus_client import Metric as MetricFamily
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.samples import Sample

from memagent.wire.fields import COMPONENTS
from memagent_server.observability.self_metrics import METRICS as OWN_METRICS
from memagent_server.schemas.base import RUN_STATUSES
from memagent_server.store.alerts import count_firing
from memagent_server.store.engine import Database, Session
from memagent_server.store.notifications import count_by_outcome
from memagent_server.store.predictions import newest_components
from memagent_server.store.streams import JOB_FACTS, active_streams, job_facts, phase_of
from memagent_server.store.usage import count_runs_by_status, count_samples, dropped_samples

STREAM_LABELS = ("run_id", "rank", "device")


@dataclass(frozen=True)
class Metric:
    """A metric. `column` is the sample column that a stream's gauge exposes, if any."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = STREAM_LABELS
    column: str | None = None


METRICS = (
    Metric("memagent_run_info", "gauge",
           "1 for each active run, described by its labels.",
           ("run_id", "project", "name", "user", "host", "status", *JOB_FACTS)),
    Metric("memagent_allocated_bytes", "gauge",
           "Bytes of live tensors at the end of the step; on a host: of the process tree.",
           column="allocated_bytes"),
    Metric("memagent_reserved_bytes", "gauge",
           "Bytes reserved by the caching allocator; on a host: writable memory mapped.",
           column="reserved_bytes"),
    Metric("memagent_peak_allocated_bytes", "gauge",
           "Highest allocated bytes within the newest step.", column="peak_allocated_bytes"),
    Metric("memagent_peak_reserved_bytes", "gauge",
           "Highest reserved bytes within the newest step.", column="peak_reserved_bytes"),
    Metric("memagent_device_used_bytes", "gauge",
           "Used on the device by all processes.", column="device_used_bytes"),
    Metric("memagent_limit_bytes", "gauge",
           "Memory of the device that the process can use.", column="limit_bytes"),
    Metric("memagent_host_rss_bytes", "gauge",
           "Resident memory of the process tree.", column="host_rss_bytes"),
    Metric("memagent_step", "gauge", "Optimizer steps finished.", column="step"),
    Metric("memagent_step_seconds", "gauge",
           "Wall time of the newest step in seconds.", column="step_s"),
    Metric("memagent_alloc_retries_total", "counter",
           "Times the allocator flushed its cache and retried.", column="alloc_retries_total"),
    Metric("memagent_ooms_total", "counter",
           "Out-of-memory errors raised by the allocator.", column="ooms_total"),
    Metric("memagent_energy_joules_total", "counter",
           "Energy drawn by the device since the run was attached.", column="energy_j"),
    Metric("memagent_last_sample_timestamp_seconds", "gauge",
           "When the newest sample arrived, Unix time."),
    Metric("memagent_oom_probability", "gauge",
           "Probability that the run runs out of memory, from the newest forecast."),
    Metric("memagent_oom_eta_timestamp_seconds", "gauge",
           "When memory is expected to run out, Unix time; absent if it is not."),
    Metric("memagent_component_bytes", "gauge",
           "Observed bytes by component.", (*STREAM_LABELS, "component")),
    Metric("memagent_predicted_bytes", "gauge",
           "Predicted bytes by component; the component peak is the predicted peak.",
           (*STREAM_LABELS, "component")),
    Metric("memagent_phase_peak_bytes", "gauge",
           "Highest allocated bytes in a phase of the newest step.", (*STREAM_LABELS, "phase")),
    Metric("memagent_alerts_firing", "gauge", "Alerts that are firing.", ("rule", "severity")),
    Metric("memagent_runs", "gauge", "Runs by status, ended ones included.", ("status",)),
    Metric("memagent_ingested_samples_total", "counter", "Samples stored.", ()),
    Metric("memagent_dropped_samples_total", "counter",
           "Samples that agents dropped.", ("reason",)),
    Metric("memagent_notifications_total", "counter",
           "Notifications by channel and outcome.", ("channel", "outcome")),
    Metric("memagent_series_capped", "gauge",
           "Streams left out of this exposition because of the cap.", ()),
    Metric("memagent_scrape_duration_seconds", "gauge",
           "Time to read the store for this exposition.", ()),
)  # fmt: skip

PROCESS_METRICS = tuple(
    Metric(spec.name, spec.kind, spec.help, spec.labels) for spec in OWN_METRICS
)
"""The metrics that each process counts itself. All others are read from the store."""

BY_NAME = {metric.name: metric for metric in (*METRICS, *PROCESS_METRICS)}


ENDED_RUN_S = 300.0
"""An ended run is exposed this long, so that its last state is scraped: a run that vanishes looks
healthy.
"""
REREAD_FACTOR = 20.0
"""A slow value is cached for this many times as long as reading it took: reading takes 5 % of the
time at most.
"""

Labels = Mapping[str, str]
_NAMES_BY_COLUMN = {metric.column: metric.name for metric in METRICS if metric.column is not None}
_COMPONENTS_BY_COLUMN = {f"{component}_bytes": component for component in COMPONENTS}
_INFO_LABELS = BY_NAME["memagent_run_info"].labels


class Collected(NamedTuple):
    """`streams` counts all active streams, including those above the cap."""

    families: list[MetricFamily]
    streams: int


class SlowValues:
    """A cache of values about everything that was ever stored, whose cost grows with the store."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._cache: dict[str, tuple[Any, float]] = {}

    def get(self, name: str, read: Callable[[], Any]) -> Any:
        """Return the cached value of `name`, or read it now."""
        value, valid_until = self._cache.get(name, (None, float("-inf")))
        started_at = self._steady()
        if started_at < valid_until:
            return value
        value = read()
        ended_at = self._steady()
        self._cache[name] = (value, ended_at + REREAD_FACTOR * (ended_at - started_at))
        return value


def collect(database: Database, now: float, slow_values: SlowValues, max_streams: int) -> Collected:
    """Collect everything that is exposed at `now`."""
    started_at = time.perf_counter()
    families = _Families()
    with database.read() as session:
        streams = _add_runs(session, families, now, max_streams)
        _add_server_values(session, families, slow_values)
    families.add("memagent_scrape_duration_seconds", time.perf_counter() - started_at)
    return Collected(families.all(), streams)


class _Families:
    """All metric families by name.

    The samples of a stream share one dict of labels: see `exposition.write`.
    """

    def __init__(self) -> None:
        self._families: dict[str, MetricFamily] = {}
        self._samples: dict[str, list[Sample]] = {}
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            self._families[metric.name], self._samples[metric.name] = family, family.samples

    def add(self, name: str, value: float, labels: Labels | None = None) -> None:
        self._samples[name].append(
            Sample(name, labels or {}, value, None, None)  # type: ignore[arg-type]
        )

    def all(self) -> list[MetricFamily]:
        return list(self._families.values())


def _add_runs(session: Session, families: _Families, now: float, max_streams: int) -> int:
    rows, streams = active_streams(session, now - ENDED_RUN_S, max_streams)
    families.add("memagent_series_capped", streams - len(rows))
    labels: dict[tuple[str, int, str], dict[str, str]] = {}
    jobs = job_facts(session, dict.fromkeys(row.run_id for row in rows))
    described_runs = set()
    for row in rows:
        if row.run_id not in described_runs:
            described_runs.add(row.run_id)
            info = (
                row.run_id,
                row.project,
                row.name,
                row.user or "",
                row.host or "",
                row.status,
                *jobs[row.run_id],
            )
            families.add("memagent_run_info", 1, dict(zip(_INFO_LABELS, info, strict=True)))
        stream_labels = {"run_id": row.run_id, "rank": str(row.rank), "device": row.device}
        labels[row.run_id, row.rank, row.device] = stream_labels
        _add_stream(families, row, stream_labels)
    _add_predictions(session, families, labels)
    return streams


def _add_stream(families: _Families, row: Any, labels: dict[str, str]) -> None:
    latest = {"limit_bytes": row.limit_bytes, **row.latest}
    for column, value in latest.items():
        if value is None:
            continue
        if column in _NAMES_BY_COLUMN:
            families.add(_NAMES_BY_COLUMN[column], value, labels)
        elif column in _COMPONENTS_BY_COLUMN:
            families.add(
                "memagent_component_bytes",
                value,
                {**labels, "component": _COMPONENTS_BY_COLUMN[column]},
            )
        elif phase := phase_of(column):
            families.add("memagent_phase_peak_bytes", value, {**labels, "phase": phase})
    if row.last_sample_at is not None:
        families.add("memagent_last_sample_timestamp_seconds", row.last_sample_at, labels)
    if row.oom_probability is not None:
        families.add("memagent_oom_probability", row.oom_probability, labels)
        if row.eta_s is not None:
            families.add("memagent_oom_eta_timestamp_seconds", row.at + row.eta_s, labels)


def _add_predictions(
    session: Session, families: _Families, labels: Mapping[tuple[str, int, str], dict[str, str]]
) -> None:
    run_ids = dict.fromkeys(run_id for run_id, _, _ in labels)
    for key, components in newest_components(session, run_ids).items():
        if key in labels:
            for component, value in components.items():
                families.add(
                    "memagent_predicted_bytes", value, {**labels[key], "component": component}
                )


def _add_server_values(session: Session, families: _Families, slow_values: SlowValues) -> None:
    counts = count_firing(session)
    for rule, severity in {
        ("oom_forecast", "warning"): 0,
        ("oom_forecast", "critical"): 0,
        **counts,
    }:
        number = counts.get((rule, severity), 0)
        families.add("memagent_alerts_firing", number, {"rule": rule, "severity": severity})
    runs = slow_values.get("runs", lambda: count_runs_by_status(session))
    for status in RUN_STATUSES:
        families.add("memagent_runs", runs.get(status, 0), {"status": status})
    samples = slow_values.get("samples", lambda: count_samples(session))
    families.add("memagent_ingested_samples_total", samples)
    for reason, count in slow_values.get("dropped", lambda: dropped_samples(session)).items():
        families.add("memagent_dropped_samples_total", count, {"reason": reason})
    for (channel, outcome), count in slow_values.get(
        "notifications", lambda: count_by_outcome(session)
    ).items():
        families.add(
            "memagent_notifications_total", count, {"channel": channel, "outcome": outcome}
        )
