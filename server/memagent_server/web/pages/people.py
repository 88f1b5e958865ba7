"""The people who logged in with the OpenID Connect provider, and the audit log of changes.

An admin ends their sessions.
"""

from __future__ import annotations

from flask import Blueprint, Response, request

from memagent_server.http import oidc
from memagent_server.http.api_route import require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.store.changes import list_changes
from memagent_server.store.people import end_sessions, list_people
from memagent_server.web import query
from memagent_server.web.rendering import render_page

blueprint = Blueprint("people", __name__, url_prefix="/settings")

MAX_CHANGES_SHOWN = 100


@blueprint.get("/people")
@require_scope("admin", of_server=True)
def show_people() -> Response:
    return _people_page()


@blueprint.post("/people")
@require_scope("admin", of_server=True)
def change_people() -> Response:
    """End the sessions of the person whose id the button `end` names."""
    number = request.form.get("end", "")
    if not number.isdecimal() or len(number) > 18:
        raise Problem(422, "end: expected the id of a person.", field="end")
    with current().database.write() as session:
        name = end_sessions(session, int(number))
        if name is None:
            raise Problem(404, f"Unknown person {number}.")
    return _people_page(f"All sessions of {name} have ended.")


@blueprint.get("/changes")
@require_scope("admin", of_server=True)
def show_changes() -> Response:
    """Show a page of the audit log. `before` is the id of the oldest change on the page before."""
    before = query.number("before", least=1, most=2**53)
    with current().database.read() as session:
        limit, before_id = MAX_CHANGES_SHOWN + 1, None if before is None else int(before)
        changes = list_changes(session, limit=limit, before_id=before_id)
        entries = changes[:MAX_CHANGES_SHOWN]
        older = entries[-1].id if len(changes) > len(entries) else None
        return render_page("changes.html", session, changes=entries, older=older)


def _people_page(message: str | None = None) -> Response:
    provider = oidc.current_provider()
    with current().database.read() as session:
        people, count = list_people(session)
        return render_page(
            "people.html",
            session,
            people=people,
            count=count,
            provider=provider.settings if provider is not None else None,
            message=message,
        )
