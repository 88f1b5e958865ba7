"""Give every request an id, log it, and count it in the server's own metrics.

A valid X-Request-ID of a proxy or an agent is kept, otherwise a new id is generated. The id is in
the response, in every line that is logged during the request, and in problems. The access log never
contains a token, a public link, a cookie, a query string or a header.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import Any

from flask import Flask, Response, g, request

from memagent_server.observability import self_metrics
from memagent_server.observability.logs import FIELDS, REQUEST_ID

HEADER = "X-Request-ID"
_STARTED_AT = "memagent_started_at"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_FREQUENT_ROUTES = ("/healthz", "/readyz", "/metrics", "/static/", "/api/v1/runs/<run_id>/batches")
"""Routes called every few seconds. Their successes are logged at DEBUG: they would drown all other
lines, and are counted anyway.
"""
PUBLIC_LINKS = "/public/"
"""Addresses below it have a secret: see `web/public_links.py`."""
_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger("memagent.access")


def install(app: Flask) -> None:
    """Log every request of `app`. Install before anything that can refuse one."""
    app.extensions[self_metrics.EXTENSION] = self_metrics.ServerMetrics()
    app.before_request(_start)
    app.after_request(_finish)


def request_id() -> str | None:
    """Return the id of this request, None if requests aren't logged."""
    current_id: str | None = g.get(REQUEST_ID)
    return current_id


def id_of(value: str) -> str:
    """Return the id that a request brings if it is valid, else a new one."""
    return value if _VALID_ID.fullmatch(value) else secrets.token_hex(8)


def is_every_success_logged() -> bool:
    """Check whether successes of frequent routes are logged, too."""
    return _log.isEnabledFor(logging.DEBUG)


def _start() -> None:
    setattr(g, REQUEST_ID, id_of(request.headers.get(HEADER, "")))
    setattr(g, _STARTED_AT, time.perf_counter())


def _finish(response: Response) -> Response:
    duration_s = time.perf_counter() - g.get(_STARTED_AT, time.perf_counter())
    response.headers.setdefault(HEADER, request_id() or "")
    method = request.method if request.method in _METHODS else "other"
    route = request.url_rule.rule if request.url_rule is not None else "none"
    self_metrics.current().count_request(method, route, response.status_code, duration_s)
    level = logging.DEBUG if _is_frequent_success(route, response.status_code) else logging.INFO
    if _log.isEnabledFor(level):
        _log.log(
            level,
            "%s %s",
            request.method,
            _logged_path(),
            extra={FIELDS: _log_fields(response, duration_s)},
        )
    return response


def _logged_path() -> str:
    """Return the path, without the secret of a public link."""
    if not request.path.startswith(PUBLIC_LINKS):
        return request.path
    return request.url_rule.rule if request.url_rule is not None else PUBLIC_LINKS


def _is_frequent_success(route: str, status: int) -> bool:
    return status == 304 or (status < 400 and route.startswith(_FREQUENT_ROUTES))


def _log_fields(response: Response, duration_s: float) -> dict[str, Any]:
    access = g.get("memagent_access")
    return {
        "status": response.status_code,
        "duration_ms": round(1000 * duration_s, 2),
        "received_bytes": request.content_length,
        "sent_bytes": None if response.is_streamed else response.calculate_content_length(),
        "address": request.remote_addr,
        "token": access.name if access is not None else None,
    }
