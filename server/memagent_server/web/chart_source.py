"""The part of a run that its page and its public page show alike: headline, chart, figures and
components of one rank, read from the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memagent.forecast.types import LEVELS
from memagent.oom.report import OomReport
from memagent_server.compare import components, median_step_s, oom_report_of
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.schemas.alerts import Incident
from memagent_server.schemas.predictions import Forecast
from memagent_server.schemas.runs import Run, Stream
from memagent_server.store.engine import Session
from memagent_server.store.forecasts import first_warning, forecasts_of
from memagent_server.store.incidents import list_incidents
from memagent_server.store.models import PredictionRow, RunRow, StreamRow
from memagent_server.store.predictions import prediction_for
from memagent_server.store.runs import get_run
from memagent_server.store.streams import current_streams
from memagent_server.store.summaries import describe
from memagent_server.web import headlines, query, run_view, view_models
from memagent_server.web.rendering import REFRESH_ENDED_S, REFRESH_S


@dataclass(frozen=True)
class ChartSource:
    """A run and the stream whose chart is shown; `row` is the stream's in the database."""

    run: Run
    stored: RunRow
    incidents: list[Incident]
    streams: list[Stream]
    stream: Stream | None
    row: StreamRow | None
    forecasts: Sequence[Forecast]
    worst: Forecast | None
    warning: Forecast | None
    prediction: PredictionRow | None
    oom_report: OomReport | None

    @property
    def headline(self) -> headlines.Headline:
        moment = headlines.Moment(
            current().clock(),
            warning_steps=view_models.warning_steps(self.incidents, self.warning),
            failed_step=self.oom_report.failed_step if self.oom_report else None,
            newest=view_models.stream_of(self.streams, self.worst),
        )
        return headlines.headline(self.run, self.worst, moment)


def read_chart_source(session: Session, run_id: str) -> ChartSource:
    """Read a run; the request's `rank` and `device` choose the stream. Raises Problem 404."""
    rank, device = query.number("rank", least=0, most=2**31 - 1), query.text("device")
    run, incidents = _describe_run(session, run_id)
    stored = session.get_one(RunRow, run_id)
    streams = [item for item in run.streams if item.is_current and item.kind != "scalars"]
    forecasts = forecasts_of(session, run_id).forecasts
    worst = max(forecasts, key=_severity, default=None)
    subject = view_models.subject_of(run, worst, rank, device)
    stream = view_models.choose_stream(streams, *subject)
    row = _stream_row(session, run_id, stream)
    return ChartSource(
        run=run,
        stored=stored,
        incidents=incidents,
        streams=streams,
        stream=stream,
        row=row,
        forecasts=forecasts,
        worst=worst,
        warning=first_warning(session, run_id),
        prediction=prediction_for(session, run_id, row),
        oom_report=oom_report_of(session, stored, row),
    )


def variables_of(session: Session, source: ChartSource) -> dict[str, Any]:
    """Return what the templates of chart, figures, components and scalars take."""
    run, stream, prediction = source.run, source.stream, source.prediction
    warning = (
        first_warning(session, run.id, rank=stream.rank, device=stream.device) if stream else None
    )
    subject = stream or view_models.scalars_only(run)
    compared = components(session, run.id, source.row)
    predicted = prediction.peak_allocated_bytes if prediction else None
    return {
        "run": run,
        "headline": source.headline,
        "streams": source.streams,
        "stream": stream,
        "prediction": prediction,
        "chart": view_models.chart_facts(run, subject, source.forecasts, warning, predicted)
        if subject
        else None,
        "compared_groups": view_models.compared_groups(compared) if compared else [],
        "compared": compared,
        "step_s": median_step_s(session, source.row) if source.row is not None else None,
        "ranks": run_view.compared_ranks(source.streams),
        "even_ratio": run_view.EVEN_RATIO,
        "has_scalars": any(item.is_current and item.kind == "scalars" for item in run.streams),
        "refresh_s": REFRESH_S if run.status == "running" else REFRESH_ENDED_S,
    }


def _describe_run(session: Session, run_id: str) -> tuple[Run, list[Incident]]:
    run = get_run(session, run_id)
    if run is None:
        raise Problem(404, f"Unknown run {run_id!r}. It may have been deleted.")
    incidents = list_incidents(session, run_id=run_id).incidents
    alerts = [alert for incident in incidents for alert in incident.alerts]
    return describe(session, run, alerts, current().settings.gpu_prices), incidents


def _stream_row(session: Session, run_id: str, stream: Stream | None) -> StreamRow | None:
    if stream is None:
        return None
    key = (stream.rank, stream.device)
    rows = current_streams(session, [run_id])
    return next((row for row in rows if (row.rank, row.device) == key), None)


def _severity(forecast: Forecast) -> tuple[int, float]:
    return LEVELS.index(forecast.level), forecast.oom_probability
