"""The public page of a run, and its chart for the frames of other pages: read without a token.

1. They show id, name, status, figures, chart, components, phases and scalars, of this run only.
   They leave out what may be confidential: user, host, project, configuration, environment,
   console, source, errors, notes, and alerts and events of the script.
2. They change nothing and have no link into the server, so other sites may frame the chart.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
from flask import Blueprint, Response, url_for

from memagent_server.alerts.event_rules import SCRIPT
from memagent_server.http.api_route import require_scope
from memagent_server.http.context import current
from memagent_server.http.rate_limits import check_public_link
from memagent_server.schemas.runs import Run
from memagent_server.web import api
from memagent_server.web.chart_source import read_chart_source, variables_of
from memagent_server.web.public_links import run_of_secret
from memagent_server.web.rendering import page_response
from memagent_server.web.shared_pages import share_refreshes

blueprint = Blueprint("public_run", __name__)

_PUBLIC_EVENTS = ("oom",)
"""Kinds of events that the chart marks: a script may name others as it likes."""


@blueprint.get("/public/<secret>")
@require_scope(None)
def show_public_run(secret: str) -> Response:
    return _page(secret=secret, run_id=_run_id(secret))


@blueprint.get("/public/<secret>/embed")
@require_scope(None)
def show_embedded_run(secret: str) -> Response:
    return _embedded_page(secret=secret, run_id=_run_id(secret))


@blueprint.get("/public/<secret>/series")
@require_scope(None)
def get_public_series(secret: str) -> Response:
    return api.get_series(_run_id(secret))


@blueprint.get("/public/<secret>/ranks")
@require_scope(None)
def get_public_ranks(secret: str) -> Response:
    return api.get_ranks(_run_id(secret))


@blueprint.get("/public/<secret>/forecast")
@require_scope(None)
def get_public_forecast(secret: str) -> Response:
    return api.get_forecast(_run_id(secret))


def _run_id(secret: str) -> str:
    with current().database.read() as session:
        run_id = run_of_secret(session, secret)
    check_public_link(run_id)
    return run_id


# the link is checked before, so that a revoked one isn't answered from a shared rendering
@share_refreshes(audience="public")
def _page(secret: str, run_id: str) -> Response:
    return _render(secret, run_id, is_embedded=False)


@share_refreshes(audience="public")
def _embedded_page(secret: str, run_id: str) -> Response:
    return _render(secret, run_id, is_embedded=True)


def _render(secret: str, run_id: str, *, is_embedded: bool) -> Response:
    with current().database.read() as session:
        source = read_chart_source(session, run_id)
        source = replace(source, run=_without_script_text(source.run))
        return page_response(
            "public_run.html",
            **variables_of(session, source),
            is_embedded=is_embedded,
            now=current().clock(),
            page_url=url_for(".show_public_run", secret=secret),
            series_url=url_for(".get_public_series", secret=secret),
            ranks_url=url_for(".get_public_ranks", secret=secret),
            forecast_url=url_for(".get_public_forecast", secret=secret),
        )


def _without_script_text(run: Run) -> Run:
    """Return a run without alerts and events that the script names: the chart shows them."""
    alerts = [alert for alert in run.alerts if alert.rule != SCRIPT.name]
    events = [event for event in run.events if event.kind in _PUBLIC_EVENTS]
    return msgspec.structs.replace(run, alerts=alerts, events=events)
