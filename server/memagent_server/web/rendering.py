"""Build the responses of pages: a rendered template with an ETag, or a redirect within this server.

Pages refresh themselves by requesting themselves again (`static/live.js`). The ETag turns that into
an empty 304 while nothing changes.
"""

from __future__ import annotations

from typing import Any

from flask import Response, redirect, render_template, request

from memagent_server.http import auth
from memagent_server.http.context import current
from memagent_server.store.engine import Session
from memagent_server.store.incidents import count_firing_incidents

REFRESH_S = 3
REFRESH_ENDED_S = 15
"""An ended run no longer changes, except for the notifications about it."""


def render_page(template: str, session: Session, **variables: Any) -> Response:
    """Render a page. `session` is read for what the frame around every page shows."""
    return page_response(template, **frame_variables(session), **variables)


def page_response(template: str, **variables: Any) -> Response:
    """Render a template, with an ETag that makes refreshing cheap."""
    response = Response(render_template(template, **variables), mimetype="text/html")
    response.headers["Cache-Control"] = "private, no-cache"
    response.add_etag(weak=True)
    response.make_conditional(request)
    return response


def frame_variables(session: Session) -> dict[str, Any]:
    """Return the variables of the frame around every page."""
    access = auth.current_access()
    return {
        "open_alerts": count_firing_incidents(session),
        "now": current().clock(),
        "may_change": access is not None and access.allows("admin"),
        "may_read": access is not None and access.allows("read"),
        "is_logged_in": auth.has_session_cookie(),
        "server_url": current().settings.public_url,
    }


def redirect_to(target: str | None) -> Response:
    """Redirect to a path of this server with GET; to the list of runs for anything else."""
    response = redirect(safe_path(target), 303)
    return Response(response.get_data(), response.status_code, response.headers)


def safe_path(path: str | None) -> str:
    """Return `path` if it's one of this server, else `/`: an open redirect would serve phishing."""
    is_own = bool(path) and path is not None and path.startswith("/")
    if not is_own or path is None or path.startswith(("//", "/\\")) or not path.isprintable():
        return "/"
    return path
