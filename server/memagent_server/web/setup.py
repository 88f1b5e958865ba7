"""What every page is wrapped in: security headers, words for templates, error pages.

Nothing on a page is inline, neither script nor style, so the policy forbids both: text that slipped through escaping could not run.
"""

from __future__ import annotations

from typing import Any

from flask import Response, render_template
from flask.sansio.app import App
from markupsafe import Markup

from memagent.units import format_bytes, format_duration
from memagent_server.http.context import current
from memagent_server.http.csrf import FIELD, form_token
from memagent_server.http.problems import ERROR_PAGE
from memagent_server.http.request_logging import request_id
from memagent_server.web import assets, labels, view_models

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
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_A_YEAR_OF_TLS = "max-age=31536000"


def install(app: App) -> None:
    """Dress the app that the pages are registered on."""
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        bytes=format_bytes,
        duration=format_duration,
        count=labels.count,
        signed_bytes=labels.signed_bytes,
        words=labels.name_of,
        pairs=view_models.pairs,
    )
    app.jinja_env.globals.update(
        asset=assets.address,
        words=labels,
        figures=view_models,
        request_id=request_id,
        form_field=form_field,
    )
    app.extensions[ERROR_PAGE] = error_page
    app.after_request(add_headers)


def add_headers(response: Response) -> Response:
    """The same on every answer: an error or a JSON document is as good a place for an injection as a page."""
    response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
    response.headers.extend(_HEADERS)
    if current().settings.is_https:
        response.headers.setdefault("Strict-Transport-Security", _A_YEAR_OF_TLS)
    response.headers.setdefault("Cache-Control", "private, no-cache")
    return response


def form_field() -> Markup:
    """The hidden field that every form that posts begins with: see `forms`."""
    return Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, form_token())


def error_page(status: int, title: str, detail: str) -> str:
    """A page for people. It asks the database nothing, for that may be what failed."""
    facts: dict[str, Any] = {"status": status, "title": title, "detail": detail}
    return render_template("error.html", **facts)
