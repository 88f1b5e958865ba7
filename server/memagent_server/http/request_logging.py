"""One request and its answer, watched from outside: an id for both, a line in the log, and the server's own figures.

The id is the one that a proxy or an agent sent as X-Request-ID, where that is one, else made here; it is in the answer, in every
line that is logged meanwhile, and in problems. The access log never holds a token, a cookie, a query string or a header.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextlib import suppress
from typing import Any

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException

from memagent_server.observability import self_metrics
from memagent_server.observability.logs import FIELDS, REQUEST_ID

HEADER = "X-Request-ID"
_BEGAN = "memagent_began_at"
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
_SHORT_BYTES = 65_536
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_EVERY_FEW_SECONDS = (
    "/healthz",
    "/readyz",
    "/metrics",
    "/static/",
    "/api/v1/runs/<run_id>/batches",
)
"""Routes whose successes are logged at DEBUG: a line for each would drown the rest, and they are counted anyway."""
_log = logging.getLogger("memagent.access")


def install(app: Flask) -> None:
    """Watch every request of `app`. To be installed before whatever may refuse one."""
    app.extensions[self_metrics.EXTENSION] = self_metrics.Telemetry()
    app.before_request(_begin)
    app.after_request(_end)


def request_id() -> str | None:
    """The id of this request; None where the app is not watched."""
    found: str | None = g.get(REQUEST_ID)
    return found


def _begin() -> None:
    given = request.headers.get(HEADER, "")
    setattr(
        g,
        REQUEST_ID,
        given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else secrets.token_hex(8),
    )
    setattr(g, _BEGAN, time.perf_counter())


def _end(response: Response) -> Response:
    duration_s = time.perf_counter() - g.get(_BEGAN, time.perf_counter())
    _take_rest()
    response.headers.setdefault(HEADER, request_id() or "")
    method = request.method if request.method in _METHODS else "other"
    route = request.url_rule.rule if request.url_rule is not None else "none"
    self_metrics.current().note_request(method, route, response.status_code, duration_s)
    level = logging.DEBUG if _is_routine(route, response.status_code) else logging.INFO
    if _log.isEnabledFor(level):
        _log.log(
            level,
            "%s %s",
            request.method,
            request.path,
            extra={FIELDS: _facts(response, duration_s)},
        )
    return response


def _take_rest() -> None:
    """A short body that nobody has read: one that came after the answer would cost the client its connection, and its next request."""
    if request.method in _WITH_BODY and 0 < (request.content_length or 0) <= _SHORT_BYTES:
        with suppress(
            HTTPException, OSError
        ):  # it broke off, or is too long for its route: then the connection may go
            request.stream.read()


def _is_routine(route: str, status: int) -> bool:
    return status == 304 or (status < 400 and route.startswith(_EVERY_FEW_SECONDS))


def _facts(response: Response, duration_s: float) -> dict[str, Any]:
    access = g.get("memagent_access")
    return {
        "status": response.status_code,
        "duration_ms": round(1000 * duration_s, 2),
        "received_bytes": request.content_length,
        "sent_bytes": None if response.is_streamed else response.calculate_content_length(),
        "address": request.remote_addr,
        "token": access.name if access is not None else None,
    }
