"""The collector: a fixed number of queries a scrape, whatever the number of runs; capped, with a count of what the cap left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from memagent.wire.fields import COMPONENTS, SCALARS_STREAM
from memagent_server.metrics.definitions import METRICS
from memagent_server.store.engine import Database
from memagent_server.store.models import RUN_STATUSES, Alert, Dropped, Forecast, Prediction, Run, Stream
from memagent_server.store.outbox import count_by_outcome
from memagent_server.store.streams import phase_of

MOST_STREAMS = 2_000
LINGER_S = 300.0
"""An ended run stays this long, so that its last state is scraped: a run that is gone looks like one that is well."""

Family = GaugeMetricFamily | CounterMetricFamily
Labels = tuple[str, str, str]


class StoreCollector(Collector):
    """See `prometheus_client.registry.Collector`. `now` is Unix time; one instance serves one scrape."""

    def __init__(self, database: Database, now: float, most_streams: int = MOST_STREAMS) -> None:
        self._database, self._now, self._most = database, now, most_streams

    def collect(self) -> Iterator[Metric]:
        began = time.perf_counter()
        families = {metric.name: _family(metric) for metric in METRICS}
        with self._database.read() as session:
            self._runs_and_streams(session, families)
            _server_figures(session, families)
        families["memagent_scrape_duration_seconds"].add_metric((), time.perf_counter() - began)
        yield from families.values()

    def _runs_and_streams(self, session: Session, families: dict[str, Family]) -> None:
        active = or_(Run.status == "running", Run.finished_at > self._now - LINGER_S)
        query = (
            select(Stream, Run)
            .join(Run, Run.id == Stream.run_id)
            .where(active, Stream.is_current, Stream.kind != SCALARS_STREAM)
            .order_by(Run.created_at.desc(), Stream.id)
        )
        found = session.execute(query.limit(self._most)).all()
        total = (
            len(found)
            if len(found) < self._most
            else session.scalar(select(func.count()).select_from(query.subquery())) or 0
        )
        families["memagent_series_capped"].add_metric((), total - len(found))
        for run in {run.id: run for _, run in found}.values():
            info = (run.id, run.project, run.name, run.user or "", run.host or "", run.status)
            families["memagent_run_info"].add_metric(info, 1)
        labels = {stream.id: (stream.run_id, str(stream.rank), stream.device) for stream, _ in found}
        for stream, _ in found:
            _stream_figures(families, stream, labels[stream.id])
        _forecasts(session, families, labels)
        _predictions(session, families, set(labels.values()))


def _family(metric: Any) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)


def _stream_figures(families: dict[str, Family], stream: Stream, labels: Labels) -> None:
    latest = {"limit_bytes": stream.limit_bytes, **stream.latest}
    for metric in METRICS:
        if metric.column is not None and latest.get(metric.column) is not None:
            families[metric.name].add_metric(labels, latest[metric.column])
    if stream.last_sample_at is not None:
        families["memagent_last_sample_timestamp_seconds"].add_metric(labels, stream.last_sample_at)
    for component in COMPONENTS:
        value = latest.get(f"{component}_bytes")
        if value is not None:
            families["memagent_component_bytes"].add_metric((*labels, component), value)
    for name, value in latest.items():
        if value is not None and (phase := phase_of(name)):
            families["memagent_phase_peak_bytes"].add_metric((*labels, phase), value)


def _forecasts(session: Session, families: dict[str, Family], labels: dict[int, Labels]) -> None:
    newest = select(func.max(Forecast.id)).where(Forecast.stream_id.in_(labels)).group_by(Forecast.stream_id)
    for forecast in session.scalars(select(Forecast).where(Forecast.id.in_(newest))):
        of = labels[forecast.stream_id]
        families["memagent_oom_probability"].add_metric(of, forecast.oom_probability)
        if forecast.eta_s is not None:
            families["memagent_oom_eta_timestamp_seconds"].add_metric(of, forecast.at + forecast.eta_s)


def _predictions(session: Session, families: dict[str, Family], wanted: set[Labels]) -> None:
    runs = {labels[0] for labels in wanted}
    seen: set[Labels] = set()
    for prediction in session.scalars(
        select(Prediction).where(Prediction.run_id.in_(runs)).order_by(Prediction.id.desc())
    ):
        labels = (prediction.run_id, str(prediction.rank), prediction.device)
        if labels not in wanted or labels in seen:
            continue
        seen.add(labels)
        for component, value in {**prediction.components, "peak": prediction.peak_allocated_bytes}.items():
            families["memagent_predicted_bytes"].add_metric((*labels, component), value)


def _server_figures(session: Session, families: dict[str, Family]) -> None:
    firing = (
        select(Alert.rule, Alert.severity, func.count())
        .where(Alert.state == "firing")
        .group_by(Alert.rule, Alert.severity)
    )
    counts = {(rule, severity): count for rule, severity, count in session.execute(firing)}
    for rule, severity in {("oom_forecast", "warning"): 0, ("oom_forecast", "critical"): 0, **counts}:
        families["memagent_alerts_firing"].add_metric((rule, severity), counts.get((rule, severity), 0))
    by_status = session.execute(select(Run.status, func.count()).group_by(Run.status))
    runs: dict[str, int] = {status: count for status, count in by_status}  # noqa: C416 - a row is no tuple to the type checker
    for status in RUN_STATUSES:
        families["memagent_runs"].add_metric((status,), runs.get(status, 0))
    families["memagent_ingested_samples_total"].add_metric((), session.scalar(select(func.sum(Stream.samples))) or 0)
    dropped = select(Dropped.reason, func.sum(Dropped.count)).group_by(Dropped.reason)
    for reason, count in session.execute(dropped):
        families["memagent_dropped_samples_total"].add_metric((reason,), count)
    for (channel, outcome), count in count_by_outcome(session).items():
        families["memagent_notifications_total"].add_metric((channel, outcome), count)
