"""Write every change by a person or a token to the audit log, for all routes in one place.

What agents post isn't logged, nor are bodies: a row has the route, the ids in its path or address,
and the status of the response.
"""

from __future__ import annotations

import logging

from flask import Flask, Response, current_app, request

from memagent_server.http import auth
from memagent_server.http.context import EXTENSION, Context
from memagent_server.store.changes import add_change
from memagent_server.store.errors import BusyError, DBAPIError, PoolTimeoutError

_READING = ("api_predictions.post_estimate", "compare.choose_runs", "routes.post_preview")
"""Routes that take a body and change nothing."""
_NAMING = ("project", "runs", "revoke", "end", "test", "retry", "route", "channel")
"""Fields of forms and queries that name what is changed; none is secret."""
_log = logging.getLogger(__name__)


def install(app: Flask) -> None:
    app.after_request(_record)


def _record(response: Response) -> Response:
    access = auth.current_access()
    if access is None or request.method in auth.SAFE_METHODS or request.url_rule is None:
        return response
    if auth.required_scope().scope == "ingest" or request.endpoint in _READING:
        return response
    # the context of the request may be limited to projects; the log is the server's
    context: Context = current_app.extensions[EXTENSION]
    try:
        with context.database.write() as session:
            add_change(
                session,
                name=access.name,
                email=access.person.email if access.person is not None else None,
                method=request.method,
                route=request.url_rule.rule,
                subject=_subject(response.status_code),
                status=response.status_code,
                now=context.clock(),
            )
    except (BusyError, DBAPIError, PoolTimeoutError):
        _log.exception("a change by %s is missing in the audit log", access.name)
    return response


def _subject(status: int) -> str:
    """Return the ids of the path, and the project or the runs that a query or a form names."""
    parts = [str(value) for value in (request.view_args or {}).values()]
    # the body of a refused request may be too large to read
    sources = (request.args, request.form) if status < 400 else (request.args,)
    parts += [source[key] for source in sources for key in _NAMING if key in source]
    return " ".join("".join(filter(str.isprintable, text)) for text in parts)
