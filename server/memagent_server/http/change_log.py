"""Write every change by a person or a token to the audit log, for all routes in one place.

Requests of agents are left out, and bodies but for the fields that name what is changed: a row has
the route, the ids in its path or address, those fields, and the status of the response. Logins and
logouts of known people and tokens are logged, too. Handlers of settings and runs add the values
before and after by `watch`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flask import Flask, Response, current_app, g, request

from memagent_server.http import auth
from memagent_server.http.context import EXTENSION, Context
from memagent_server.http.credentials import Access
from memagent_server.http.value_changes import changed_values
from memagent_server.store.changes import add_change
from memagent_server.store.engine import Session
from memagent_server.store.errors import BusyError, DBAPIError, PoolTimeoutError

READING = ("api_predictions.post_estimate", "compare.choose_runs", "routes.post_preview")
"""Routes that take a body and change nothing."""
_BUTTONS = ("remove", "revoke", "end", "test_channel", "retry")
"""Buttons of forms. Their value names what is changed."""
_NAMING = ("what", "kind", "project", "runs", "name", "route", "channel")
"""Fields of forms and queries that say what is changed; none is secret."""
_LOGIN = "memagent_login"
_VALUES = "memagent_changed_values"
_log = logging.getLogger(__name__)


def install(app: Flask) -> None:
    app.after_request(_record)


def add_login(name: str, email: str | None) -> None:
    """Log this request as a login or logout of a person or token, or a refused one."""
    setattr(g, _LOGIN, (name, email))


@contextmanager
def watch(session: Session, read: Callable[[], object]) -> Iterator[None]:
    """Add to this request's entry what differs in two readings, before and after the block.

    - read: returns schemas, or dicts and lists of them (see `changed_values`).
    """
    before = read()
    # rows that were read above are read again by those who change them
    session.expire_all()
    yield
    session.flush()
    session.expire_all()
    values = changed_values(before, read())
    setattr(g, _VALUES, [*getattr(g, _VALUES, ()), *values])


def _record(response: Response) -> Response:
    who = getattr(g, _LOGIN, None) or _author()
    if who is None or request.url_rule is None:
        return response
    name, email = who
    # the context of the request may be limited to projects; the log is the server's
    context: Context = current_app.extensions[EXTENSION]
    try:
        with context.database.write() as session:
            add_change(
                session,
                name=name,
                email=email,
                method=request.method,
                route=request.url_rule.rule,
                subject=_subject(response.status_code),
                status=response.status_code,
                now=context.clock(),
                values=getattr(g, _VALUES, ()) if response.status_code < 400 else (),
            )
    except (BusyError, DBAPIError, PoolTimeoutError):
        _log.exception("a change by %s is missing in the audit log", name)
    return response


def _author() -> tuple[str, str | None] | None:
    """Return the name and e-mail of who changes something by this request, None if it doesn't."""
    access = auth.current_access()
    if access is None or request.method in auth.SAFE_METHODS or request.url_rule is None:
        return None
    if auth.required_scope().scope == "ingest" or request.endpoint in READING:
        return None
    return author_of(access)


def author_of(access: Access) -> tuple[str, str | None]:
    """Return the name and e-mail of a person, or the name of a token."""
    return access.name, access.person.email if access.person is not None else None


def _subject(status: int) -> str:
    """Return the ids of the path, and what a query or a form says of the change."""
    parts = [str(value) for value in (request.view_args or {}).values()]
    # the body of a refused request may be too large to read
    sources = (request.args, request.form) if status < 400 else (request.args,)
    for source in sources:
        parts += [f"{key.partition('_')[0]} {source[key]}" for key in _BUTTONS if key in source]
        parts += [text for key in _NAMING for text in source.getlist(key) if text.strip("*")]
    return " ".join("".join(filter(str.isprintable, text)) for text in parts)
