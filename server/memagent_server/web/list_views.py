"""Saved views of the list of runs: the API, and the form of the page."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from memagent.filters.columns import column_of, order_of
from memagent.filters.parser import MAX_LENGTH, parse
from memagent_server.http import auth
from memagent_server.http.api_route import operation, require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, json_answer
from memagent_server.ingest.body import read_message
from memagent_server.schemas.base import RunStatus
from memagent_server.schemas.queries import ViewQuery, ViewsQuery
from memagent_server.schemas.run_groups import RunView, RunViews
from memagent_server.store.rules import EVERY_PROJECT
from memagent_server.store.run_columns import DIFFERING, MAX_COLUMNS, split_names
from memagent_server.store.run_groups import MAX_LEVELS
from memagent_server.store.run_views import delete_view, list_views, save_view
from memagent_server.web import query
from memagent_server.web.rendering import redirect_to

blueprint = Blueprint("list_views", __name__)

_Text = Annotated[str, Meta(max_length=MAX_LENGTH, pattern=r"^[^\x00]*$")]
NAME_PATTERN = r"^[^\x00-\x1f]*[^\s\x00-\x1f][^\x00-\x1f]*$"


class ListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters of the list's address."""

    q: _Text = ""
    where: _Text = ""
    project: Annotated[str, Meta(max_length=200, pattern=r"^[^\x00]*$")] = ""
    status: RunStatus | None = None
    tag: _Text = ""
    archived: Annotated[str, Meta(pattern="^1?$", max_length=1)] = ""
    sort: _Text = ""
    columns: _Text = ""
    group: _Text = ""


class ViewEdit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A view to save. `if_saved_at` is that of the view as read, empty for a new one."""

    name: Annotated[str, Meta(min_length=1, max_length=100, pattern=NAME_PATTERN)]
    query: ListQuery
    project: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00]*$")] = (
        EVERY_PROJECT
    )
    if_saved_at: Annotated[str, Meta(max_length=40)] | None = None


@blueprint.get("/api/v1/views")
@operation("runs", "read", RunViews, query=ViewsQuery)
def get_views() -> Response:
    """List the saved views of a project and those of every project; without one, all."""
    project = query.read(ViewsQuery).project
    with current().database.read() as session:
        return json_answer(RunViews(list_views(session, project)))


@blueprint.put("/api/v1/views")
@operation("runs", "admin", RunView, body=ViewEdit, problems=(409,))
def put_view() -> Response:
    """Save a view under a name, or replace it.

    409 if `if_saved_at` is no longer its time, or if its project has 100 views.
    """
    return json_answer(_save(read_message(request, ViewEdit)))


@blueprint.delete("/api/v1/views")
@operation("runs", "admin", {204: None}, query=ViewQuery, problems=(404,))
def delete_one_view() -> Response:
    """Delete a view."""
    params = query.read(ViewQuery)
    _delete(params.project, params.name)
    return Response(status=204)


@blueprint.post("/views")
@require_scope("admin")
def change_views() -> Response:
    """Save the list that the page shows as a new view, or delete a view."""
    form, project = request.form, request.form.get("project") or EVERY_PROJECT
    if form.get("what") == "delete":
        _delete(project, form.get("name", ""))
        return redirect_to(form.get("next"))
    values = {name: form.get(f"list-{name}") for name in ListQuery.__struct_fields__}
    edit = {
        "name": form.get("name", "").strip(),
        "project": project,
        "query": {name: value for name, value in values.items() if value},
        # another person's view of this name stays
        "if_saved_at": "",
    }
    try:
        _save(msgspec.convert(edit, ViewEdit))
    except msgspec.ValidationError as error:
        raise Problem(422, f"name: enter 1 to 100 characters ({error}).", field="name") from error
    return redirect_to(form.get("next"))


def address_of(view: RunView) -> str:
    """Return the address of a view's list."""
    return f"/?{urlencode(view.query)}"


def _save(edit: ViewEdit) -> RunView:
    auth.check_project(edit.project)
    if not re.fullmatch(NAME_PATTERN, edit.name):
        raise Problem(422, "name: use letters that print.", field="name")
    _check(edit.query)
    access, context = auth.current_access(), current()
    with context.database.write() as session:
        return save_view(
            session,
            project=edit.project,
            name=edit.name,
            query=msgspec.to_builtins(edit.query),
            by=access.name if access is not None else None,
            now=context.clock(),
            if_saved_at=edit.if_saved_at,
        )


def _check(listed: ListQuery) -> None:
    """Raise FilterError for a filter, an order or a column that isn't one."""
    if listed.where:
        parse(listed.where)
    names = [name for name in split_names(listed.columns) if name != DIFFERING]
    groups = split_names(listed.group)
    for argument, some in (("columns", names), ("group", groups)):
        for name in some:
            column_of(name, argument)
    if len(names) > MAX_COLUMNS or len(groups) > MAX_LEVELS:
        raise Problem(
            422, f"query: at most {MAX_COLUMNS} columns and {MAX_LEVELS} groups.", field="query"
        )
    if listed.sort and not groups:
        order_of(listed.sort)


def _delete(project: str, name: str) -> None:
    auth.check_project(project)
    with current().database.write() as session:
        if not delete_view(session, project, name):
            raise Problem(404, f"There is no view {name!r:.120} of the project {project!r:.220}.")
