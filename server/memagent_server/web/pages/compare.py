"""The compare page: runs beside each other, under an address that can be shared."""

from __future__ import annotations

from flask import Blueprint, Response, redirect, request, url_for

from memagent_server.compare import compare_runs
from memagent_server.compare.runs import FEWEST_RUNS, MOST_RUNS
from memagent_server.http.context import current
from memagent_server.http.permissions import permit
from memagent_server.http.problems import Problem
from memagent_server.store.runs import get_run
from memagent_server.web import compare_view, query
from memagent_server.web.pages.runs import REFRESH_ENDED_S, REFRESH_S, answer_page, shared_facts

blueprint = Blueprint("comparing", __name__)


@blueprint.get("/compare")
def show_comparison() -> Response:
    given = request.args.getlist("runs")
    ids = query.run_ids("runs", given, fewest=FEWEST_RUNS, most=MOST_RUNS)
    if given != [",".join(ids)]:
        return _go_to(ids)
    context = current()
    with context.database.read() as session:
        rows = [get_run(session, run_id) for run_id in ids]
        unknown = [run_id for run_id, row in zip(ids, rows, strict=True) if row is None]
        if unknown:
            raise Problem(
                404, f"no run {', '.join(map(repr, unknown))} is known; it may have been deleted"
            )
        found = compare_runs(session, [row for row in rows if row is not None])
        shared = shared_facts(session)
    runs = found["runs"]
    return answer_page(
        "compare.html",
        **shared,
        entrants=compare_view.entrants(runs),
        config=compare_view.differing(found["config_differences"]),
        environment=compare_view.differing(found["environment_differences"]),
        figure_rows=compare_view.figure_rows(runs, shared["now"]),
        component_rows=compare_view.component_rows(runs),
        bars=compare_view.bars(runs),
        curves=compare_view.curves(runs),
        chart=compare_view.chart_facts(runs),
        has_tokens=any(run["tokens_scalar"] for run in runs),
        fewest=FEWEST_RUNS,
        refresh_s=REFRESH_S if any(run["status"] == "running" for run in runs) else REFRESH_ENDED_S,
    )


@blueprint.post("/compare")
@permit("read")
def choose() -> Response:
    """What the list's form sends: the token of its page must not stand in an address."""
    return _go_to(
        query.run_ids("runs", request.form.getlist("runs"), fewest=FEWEST_RUNS, most=MOST_RUNS)
    )


def _go_to(ids: list[str]) -> Response:
    """The address as people share it: all runs in one parameter, and what else was asked for."""
    by, curve = query.text("by"), query.text("curve")
    response = redirect(
        url_for("comparing.show_comparison", runs=",".join(ids), by=by, curve=curve), 303
    )
    return Response(response.get_data(), response.status_code, response.headers)
