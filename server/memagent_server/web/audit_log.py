"""The API and the page of the audit log."""

from __future__ import annotations

from flask import Blueprint, Response

from memagent_server.http.api_route import operation, require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import page_answer
from memagent_server.schemas.changes import ChangePage
from memagent_server.schemas.queries import Paged
from memagent_server.store.changes import list_changes, page_of_changes
from memagent_server.web import change_text, query
from memagent_server.web.rendering import render_page

blueprint = Blueprint("audit_log", __name__)

MAX_SHOWN = 100


@blueprint.get("/api/v1/changes")
@operation("operation", "admin", ChangePage, of_server=True, query=Paged)
def get_changes() -> Response:
    """List the audit log, newest first: requests that changed something, and refused ones."""
    params = query.read(Paged)
    with current().database.read() as session:
        page = page_of_changes(session, limit=params.limit, cursor=params.cursor)
    return page_answer(page)


@blueprint.get("/settings/changes")
@require_scope("admin", of_server=True)
def show_changes() -> Response:
    """Show a page of the audit log. `before` is the id of the oldest change on the page before."""
    before = query.number("before", least=1, most=2**53)
    with current().database.read() as session:
        limit, before_id = MAX_SHOWN + 1, None if before is None else int(before)
        changes = list_changes(session, limit=limit, before_id=before_id)
        entries = changes[:MAX_SHOWN]
        older = entries[-1].id if len(changes) > len(entries) else None
        return render_page(
            "changes.html",
            session,
            changes=entries,
            older=older,
            describe=change_text.describe,
            problem_of=change_text.problem_of,
            value_text=change_text.value_text,
        )
