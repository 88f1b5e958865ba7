"""The table of all metrics: name, type, help and labels.

The collector, docs/metrics.md and its test share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memagent_server.observability.self_metrics import METRICS as OWN_METRICS

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
           ("run_id", "project", "name", "user", "host", "status")),
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
