"""Set up the app for pages: security headers, template filters and globals, static files, and error
pages.

Pages contain no inline script or style, and the policy forbids both: text that slipped through
escaping could not run.
"""

from __future__ import annotations

from flask import Blueprint, Response, render_template, request
from flask.blueprints import BlueprintSetupState
from markupsafe import Markup

from memagent.units import format_bytes, format_duration, format_step_time
from memagent_server.http.context import current
from memagent_server.http.csrf import FIELD, form_token
from memagent_server.http.problems import ERROR_PAGE
from memagent_server.http.request_logging import request_id
from memagent_server.settings import Settings
from memagent_server.store.reading import iso
from memagent_server.web import (
    bars,
    column_text,
    headlines,
    incident_views,
    labels,
    rendering,
    run_view,
    view_models,
)
from memagent_server.web.markdown import render_notes

blueprint = Blueprint("web", __name__, template_folder="templates")

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
FRAMED = "public_run.show_embedded_run"
"""The page that other sites may show in a frame, and its errors."""
_FRAMED_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY.replace(
        "frame-ancestors 'none'", "frame-ancestors *"
    ),
    "Cross-Origin-Resource-Policy": "cross-origin",
}
_SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cache-Control": "private, no-cache",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_HSTS_ONE_YEAR = "max-age=31536000"


@blueprint.record_once
def _install(state: BlueprintSetupState) -> None:
    app = state.app
    app.jinja_env.trim_blocks = True
    app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        bytes=format_bytes,
        duration=format_duration,
        step_time=format_step_time,
        count=labels.count,
        signed_bytes=labels.signed_bytes,
        humanize=labels.humanize,
        with_code=labels.with_code,
        as_code=labels.as_code,
        card_name=labels.card_name,
        channel_name=labels.channel_name,
        without_indent=labels.without_indent,
        pairs=view_models.pairs,
        notes=render_notes,
        iso=iso,
    )
    app.jinja_env.globals.update(
        asset=rendering.address,
        scripts=rendering.bundle_address,
        bars=bars,
        incident_views=incident_views,
        headlines=headlines,
        labels=labels,
        view_models=view_models,
        column_text=column_text,
        run_view=run_view,
        request_id=request_id,
        form_field=form_field,
    )
    app.extensions[ERROR_PAGE] = error_page
    app.after_request(add_security_headers)


@blueprint.get("/static/<path:filename>", endpoint="static")
@blueprint.get("/static/at-<digest>/<path:filename>", endpoint="static")
def send_static(filename: str, digest: str | None = None) -> Response:
    return rendering.send(filename, digest)


def add_security_headers(response: Response) -> Response:
    """Add the same headers to every response: errors and JSON can carry an injection, too."""
    headers = security_headers(current().settings)
    if request.endpoint == FRAMED:
        headers |= _FRAMED_HEADERS
        del headers["X-Frame-Options"]
    for name, value in headers.items():
        response.headers.setdefault(name, value)
    return response


def security_headers(settings: Settings) -> dict[str, str]:
    """Return the headers of every response that doesn't set its own."""
    https = {"Strict-Transport-Security": _HSTS_ONE_YEAR} if settings.is_https else {}
    return {**_SECURITY_HEADERS, **https}


def form_field() -> Markup:
    """Return the hidden field that every form that posts begins with: see `csrf`."""
    return Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, form_token())


def error_page(status: int, title: str, detail: str) -> str:
    """Render an error without asking the database, which may be what failed."""
    return render_template("error.html", status=status, title=title, detail=detail)
