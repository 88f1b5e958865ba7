"""The page of one run.

It reads the store, lets `labels` and `view_models` turn the results into text and widths, and
renders a template.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from importlib.util import find_spec

from flask import Blueprint, Response, current_app
from msgspec.structs import replace

from memagent.diagnostics import display_frame, display_path, display_roots
from memagent.estimator.advice.by_cause import CauseAdvice, advice_for_cause
from memagent_server.http import auth
from memagent_server.http.context import current
from memagent_server.ingest.batch_pace import pace_of
from memagent_server.schemas.alerts import Incident
from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.predictions import Forecast
from memagent_server.schemas.runs import Run, Stream
from memagent_server.schemas.snapshots import SuspectByRank
from memagent_server.settings import SEVERITIES
from memagent_server.store.console import DEATHS, console_of
from memagent_server.store.engine import Session
from memagent_server.store.events import list_commands, list_events
from memagent_server.store.export import FORMATS
from memagent_server.store.predictions import advice_for
from memagent_server.store.public_links import link_of
from memagent_server.store.run_version import ended_run_version
from memagent_server.store.snapshots import list_snapshots, read_snapshot, suspects_of
from memagent_server.web import run_view
from memagent_server.web.chart_source import read_chart_source, variables_of
from memagent_server.web.failures import shared_failures
from memagent_server.web.headlines import suspect_share
from memagent_server.web.public_links import LIFETIMES, describe_link
from memagent_server.web.rendering import render_page
from memagent_server.web.run_view import flame
from memagent_server.web.shared_pages import share_refreshes

blueprint = Blueprint("run", __name__)

EXPORT_FORMATS = tuple(
    name for name in FORMATS if name != "parquet" or find_spec("pyarrow") is not None
)
"""The formats that this server can write: pyarrow is an optional package."""

LAST_LINES = 20
"""Lines of the console that the page of a death begins with."""
_NEXT_METHOD = " If memory still grows, another method follows."
"""The end of the agent's sentence (`memagent.leaks.diagnosis_report`) that a run's end outdates."""
_DIAGNOSES_UNDER_WAY = ("requested", "counting", "searching")


def _version(run_id: str) -> Hashable:
    with current().database.read() as session:
        return ended_run_version(session, run_id)


@blueprint.get("/runs/<run_id>")
@share_refreshes(_version)
def show_run(run_id: str) -> Response:
    with current().database.read() as session:
        source = read_chart_source(session, run_id)
        run, worst, oom_report = source.run, source.worst, source.oom_report
        roots = display_roots(source.stored.environment)
        # a report with a cause has its advice, too
        is_explained = oom_report is not None and oom_report.cause is not None
        cause = None if is_explained else _cause(run, worst, source.warning)
        snapshots = list_snapshots(session, run_id)
        with_stacks = next((item for item in snapshots if item.has_stacks), None)
        snapshot = read_snapshot(session, run_id, with_stacks.id) if with_stacks else None
        blocks, height = flame(_display_stacks(snapshot.stacks, roots)) if snapshot else ([], 0)
        advice = advice_for(session, run_id, source.row)
        suspects = suspects_of(session, run_id)
        console = console_of(session, run_id, last=LAST_LINES)
        newest = console.lines[-1] if console.lines else None
        variables = variables_of(session, source)
        link = link_of(session, run_id, current().clock())
        return render_page(
            "run.html",
            session,
            **variables,
            may_change=auth.may_change(run.project),
            incidents=sorted(source.incidents, key=_urgency),
            failures=shared_failures(session, [run.id]),
            cause=cause,
            advice=_advice(cause, advice, suspects, source.stream) if cause else None,
            oom_report=oom_report,
            snapshots=snapshots,
            suspects=[_display_suspect(item, roots) for item in suspects],
            suspect_share=suspect_share(suspects[0], worst) if suspects else "",
            diagnosis=_diagnosis_text(session, run),
            flame=blocks,
            flame_height=height,
            flame_of=snapshot,
            console=console,
            console_newest=f"{newest.number} {newest.at} {newest.text}" if newest else "",
            has_died=run.status in DEATHS,
            step_advice=advice,
            imbalance=run_view.imbalance(variables["ranks"]),
            rank_rows=run_view.rank_rows(variables["ranks"]),
            export_formats=EXPORT_FORMATS,
            batch_every_s=pace_of(current_app).interval_s if run.status == "running" else None,
            takes_commands=bool(source.stored.environment.get("takes_commands")),
            commands=list_commands(session, run_id),
            public_link=describe_link(link) if link is not None else None,
            link_lifetimes=LIFETIMES if current().settings.has_public_links else {},
        )


def _urgency(incident: Incident) -> tuple[bool, int]:
    """Order incidents: open ones first, the most severe of them before newer ones."""
    return incident.closed_at is not None, -SEVERITIES.index(incident.severity)


def _diagnosis_text(session: Session, run: Run) -> str | None:
    """Return what the newest leak diagnosis does or found, by its event.

    After the end of the run no method follows, and a diagnosis under way has no result.
    """
    events = list_events(session, run.id, kind="diagnosis", limit=1).events
    data = events[0].data if events else {}
    text = data.get("text")
    if not isinstance(text, str):
        return None
    if run.status == "running":
        return text
    if data.get("state") in _DIAGNOSES_UNDER_WAY:
        return "A leak diagnosis was under way when the run ended."
    return text.removesuffix(_NEXT_METHOD)


def _advice(
    cause: str,
    predicted: Sequence[JsonObject],
    suspects: Sequence[SuspectByRank],
    stream: Stream | None,
) -> CauseAdvice:
    on_host = stream is not None and stream.device == "host"
    return advice_for_cause(cause, predicted, next(iter(suspects), None), on_host=on_host)


def _display_suspect(suspect: SuspectByRank, roots: Sequence[str]) -> SuspectByRank:
    return replace(suspect, file=display_path(suspect.file, roots))


def _display_stacks(stacks: list[JsonObject], roots: Sequence[str]) -> list[JsonObject]:
    return [
        {**stack, "frames": [display_frame(frame, roots) for frame in stack["frames"]]}
        for stack in stacks
    ]


def _cause(run: Run, worst: Forecast | None, first_warning: Forecast | None) -> str | None:
    """Return why memory runs out, or ran out; None for a run that ended otherwise."""
    if run.status in ("completed", "stopped", "failed"):
        return None
    if worst is not None and worst.level != "ok":
        return worst.cause
    return first_warning.cause if first_warning is not None and run.status == "oom" else None
