"""The compare page: runs side by side, at an address that can be shared."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Blueprint, Response, request, url_for

from memagent_server.compare import compare_runs
from memagent_server.compare.runs import MAX_RUNS, MIN_RUNS
from memagent_server.http.api_route import require_scope
from memagent_server.http.context import current
from memagent_server.store.models import RunRow
from memagent_server.store.run_list import RunQuery, list_runs
from memagent_server.store.runs import get_run
from memagent_server.store.summaries import summarize
from memagent_server.web import compare_view, query
from memagent_server.web.rendering import REFRESH_ENDED_S, REFRESH_S, redirect_to, render_page
from memagent_server.web.shared_pages import share_refreshes

_MAX_CHOICE = 20
"""Runs to choose from: a screen or two."""

blueprint = Blueprint("compare", __name__, url_prefix="/compare")


@blueprint.get("")
@share_refreshes()
def show_comparison() -> Response:
    names = request.args.getlist("runs")
    ids = query.run_ids("runs", names, fewest=0, most=MAX_RUNS)
    if len(ids) < MIN_RUNS:
        return _show_choice(ids)
    if names != [",".join(ids)]:
        return _redirect(ids)
    context = current()
    with context.database.read() as session:
        rows = [row for run_id in ids if (row := get_run(session, run_id)) is not None]
        unknown = _unknown(ids, rows)
        if len(rows) < MIN_RUNS:
            return _show_choice(ids)
        comparison = compare_runs(session, rows)
        figure_rows = compare_view.figure_rows(comparison.runs, context.clock())
        runs = comparison.runs
        is_running = any(run.status == "running" for run in runs)
        return render_page(
            "compare.html",
            session,
            compared_runs=compare_view.compared_runs(runs),
            config=compare_view.differing(comparison.config_differences),
            has_config=any(row.config for row in rows),
            environment=compare_view.differing(comparison.environment_differences),
            unknown=unknown,
            figure_rows=figure_rows,
            shared_device=compare_view.shared_device(figure_rows),
            component_rows=compare_view.component_rows(runs),
            bars=compare_view.bars(runs),
            curves=compare_view.curves(runs),
            chart=compare_view.chart_facts(runs),
            has_tokens=any(run.tokens_scalar for run in runs),
            min_runs=MIN_RUNS,
            refresh_s=REFRESH_S if is_running else REFRESH_ENDED_S,
        )


def _unknown(ids: Sequence[str], rows: Sequence[RunRow]) -> list[str]:
    known = {row.id for row in rows}
    return [run_id for run_id in ids if run_id not in known]


def _show_choice(ids: Sequence[str]) -> Response:
    """Show the newest runs to choose from: the address names too few. Its own come first."""
    with current().database.read() as session:
        named = [row for name in ids if (row := get_run(session, name)) is not None]
        newest = list_runs(session, RunQuery(limit=_MAX_CHOICE)).runs
        return render_page(
            "compare_choice.html",
            session,
            runs=[*summarize(session, named), *(run for run in newest if run.id not in ids)],
            chosen=[row.id for row in named],
            unknown=_unknown(ids, named),
            min_runs=MIN_RUNS,
            max_runs=MAX_RUNS,
        )


@blueprint.post("")
@require_scope("read")
def choose_runs() -> Response:
    """Turn the form of the list into an address: POST, so that its CSRF token stays out of it."""
    names = request.form.getlist("runs")
    return _redirect(query.run_ids("runs", names, fewest=0, most=MAX_RUNS))


def _redirect(ids: list[str]) -> Response:
    """Redirect to the address as people share it: all runs in one parameter."""
    by, curve = query.text("by"), query.text("curve")
    return redirect_to(url_for("compare.show_comparison", runs=",".join(ids), by=by, curve=curve))
