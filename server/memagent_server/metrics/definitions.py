"""Every metric: name, type, help and labels in one table, which the collector, docs/metrics.md and its test share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memagent_server.observability.self_metrics import FIGURES

STREAM_LABELS = ("run_id", "rank", "device")


@dataclass(frozen=True)
class Metric:
    """`column` is the sample column that a gauge of a stream shows, where it is one."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = STREAM_LABELS
    column: str | None = None


METRICS = (
    Metric("memagent_run_info", "gauge", "1 for each active run, with what describes it as labels.",
           ("run_id", "project", "name", "user", "host", "status")),
    Metric("memagent_allocated_bytes", "gauge", "Held by live tensors at the end of the step; on a host: by the process tree.",
           column="allocated_bytes"),
    Metric("memagent_reserved_bytes", "gauge", "Obtained by the caching allocator from the driver; on a host: writable memory mapped.",
           column="reserved_bytes"),
    Metric("memagent_peak_allocated_bytes", "gauge", "Most allocated within the newest step.", column="peak_allocated_bytes"),
    Metric("memagent_peak_reserved_bytes", "gauge", "Most reserved within the newest step.", column="peak_reserved_bytes"),
    Metric("memagent_device_used_bytes", "gauge", "Used on the device by everybody.", column="device_used_bytes"),
    Metric("memagent_limit_bytes", "gauge", "Most that the process can use of the device.", column="limit_bytes"),
    Metric("memagent_host_rss_bytes", "gauge", "Resident memory of the process tree.", column="host_rss_bytes"),
    Metric("memagent_step", "gauge", "Optimizer steps finished.", column="step"),
    Metric("memagent_step_seconds", "gauge", "Wall time of the newest step in seconds.", column="step_s"),
    Metric("memagent_alloc_retries_total", "counter", "Times the allocator had to flush its cache and try again.",
           column="alloc_retries_total"),
    Metric("memagent_ooms_total", "counter", "Out-of-memory errors that the allocator raised.", column="ooms_total"),
    Metric("memagent_last_sample_timestamp_seconds", "gauge", "When the newest sample arrived, Unix time."),
    Metric("memagent_oom_probability", "gauge", "Probability that the run runs out of memory, from the newest forecast."),
    Metric("memagent_oom_eta_timestamp_seconds", "gauge", "When memory is expected to run out, Unix time; absent where it is not."),
    Metric("memagent_component_bytes", "gauge", "Observed bytes by what they are for.", (*STREAM_LABELS, "component")),
    Metric("memagent_predicted_bytes", "gauge", "Predicted bytes by what they are for; component peak is the predicted peak.",
           (*STREAM_LABELS, "component")),
    Metric("memagent_phase_peak_bytes", "gauge", "Most allocated in a phase of the newest step.", (*STREAM_LABELS, "phase")),
    Metric("memagent_alerts_firing", "gauge", "Alerts that are firing.", ("rule", "severity")),
    Metric("memagent_runs", "gauge", "Runs by status, ended ones included.", ("status",)),
    Metric("memagent_ingested_samples_total", "counter", "Samples stored.", ()),
    Metric("memagent_dropped_samples_total", "counter", "Samples that agents had to drop.", ("reason",)),
    Metric("memagent_notifications_total", "counter", "Notifications by channel and outcome.", ("channel", "outcome")),
    Metric("memagent_series_capped", "gauge", "Streams left out of this exposition because of the cap.", ()),
    Metric("memagent_scrape_duration_seconds", "gauge", "Time it took to read the store for this exposition.", ()),
)  # fmt: skip

OF_PROCESSES = tuple(
    Metric(figure.name, figure.kind, figure.help, figure.labels) for figure in FIGURES
)
"""What each process counts of itself; all others are read from the store."""

BY_NAME = {metric.name: metric for metric in (*METRICS, *OF_PROCESSES)}
