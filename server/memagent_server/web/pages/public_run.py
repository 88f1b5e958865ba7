"""The public page of a run, and its chart for the frames of other pages: read without a token.

1. They show name, status, figures, chart, components and scalars, of this run only. They leave out
   what may be confidential: user, host, project, configuration, environment, console, source,
   errors, notes and alerts.
2. They have no form and no link into the server, so other sites may frame the chart.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
from flask import Blueprint, Response, url_for

from memagent_server.alerts.event_rules import SCRIPT
from memagent_server.http.api_route import require_scope
from memagent_server.http.context import current
from memagent_server.schemas.runs import Run
from memagent_server.web import api, setup
from memagent_server.web.charted_run import read_charted_run, variables_of
from memagent_server.web.public_links import run_of_secret
from memagent_server.web.rendering import page_response
from memagent_server.web.shared_pages import share_refreshes

blueprint = Blueprint("public_run", __name__)


@blueprint.get("/public/<secret>")
@require_scope(None)
@share_refreshes()
def show_public_run(secret: str) -> Response:
    return _page(secret, is_embedded=False)


@blueprint.get("/public/<secret>/embed")
@require_scope(None)
@share_refreshes()
def show_embedded_run(secret: str) -> Response:
    response = _page(secret, is_embedded=True)
    response.headers["Content-Security-Policy"] = setup.FRAMED_CONTENT_SECURITY_POLICY
    response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    return response


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
        return run_of_secret(session, secret)


def _page(secret: str, *, is_embedded: bool) -> Response:
    with current().database.read() as session:
        charted = read_charted_run(session, run_of_secret(session, secret))
        charted = replace(charted, run=_without_own_words(charted.run))
        return page_response(
            "public_run.html",
            **variables_of(session, charted),
            is_embedded=is_embedded,
            now=current().clock(),
            page_url=url_for(".show_public_run", secret=secret),
            series_url=url_for(".get_public_series", secret=secret),
            ranks_url=url_for(".get_public_ranks", secret=secret),
            forecast_url=url_for(".get_public_forecast", secret=secret),
        )


def _without_own_words(run: Run) -> Run:
    """Return a run without the alerts whose titles the script has written: the chart shows them."""
    alerts = [alert for alert in run.alerts if alert.rule != SCRIPT.name]
    return msgspec.structs.replace(run, alerts=alerts)
