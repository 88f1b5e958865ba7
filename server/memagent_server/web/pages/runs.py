"""The list of runs with its filters, and actions on selected runs: tags, archive, restore,
delete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import parse_qsl, urlencode

from flask import Blueprint, Response, request

from memagent.errors import FilterError
from memagent.filters.columns import order_of
from memagent.filters.expression import Expression
from memagent.filters.parser import parse, rename_columns
from memagent_server.http import auth, credentials
from memagent_server.http.api_route import require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.schemas.base import RUN_STATUSES
from memagent_server.schemas.run_groups import RunGroup
from memagent_server.schemas.runs import RunSummary
from memagent_server.store.engine import Session
from memagent_server.store.incidents import endangered_runs
from memagent_server.store.rules import EVERY_PROJECT
from memagent_server.store.run_columns import (
    DIFFERING,
    ColumnTable,
    column_names,
    column_table,
    similar_columns,
    spelling_of,
    split_names,
    unknown_names,
)
from memagent_server.store.run_edits import MAX_NOTES, archive, change_tags, edit_runs
from memagent_server.store.run_groups import group_runs
from memagent_server.store.run_list import (
    MAX_COUNTED,
    MAX_SEARCHED,
    RunQuery,
    count_runs,
    list_projects,
    list_runs,
)
from memagent_server.store.run_views import list_views
from memagent_server.store.summaries import summarize
from memagent_server.web import labels, query
from memagent_server.web.group_view import group_rows
from memagent_server.web.rendering import REFRESH_S, redirect_to, render_page
from memagent_server.web.run_changes import MAX_NAME, delete_all, form_text, watch_runs
from memagent_server.web.shared_pages import share_refreshes

blueprint = Blueprint("runs", __name__)

PAGE_SIZE = 50
MAX_ENDANGERED = 200
MAX_SHOWN_ENDANGERED = 6
MAX_SELECTED = 200
MAX_RUNS_FOR_COLUMNS = 10
"""Newest runs of a page whose settings and scalars complete a filter: reading them takes time."""
MAX_TAG_LENGTH = 200
ACTIONS = ("tag", "untag", "rename", "note", "archive", "restore", "delete")
SORT_NAMES: dict[str, str] = {
    "-created_at": "Newest first",
    "created_at": "Oldest first",
    "-peak_ratio": "Highest memory",
    "peak_ratio": "Lowest memory",
    "name": "Name, A to Z",
    "-name": "Name, Z to A",
}


@blueprint.get("/")
@share_refreshes()
def show_runs() -> Response:
    where, columns = query.text("where"), query.text("columns")
    expression, mistake = _parse_filter(where)
    filters = replace(read_filters(), where=expression)
    by = query.text("group")
    filters, wrong_order = (filters, None) if by else _checked_order(filters)
    is_filtered = bool(where) or filters != RunQuery(limit=PAGE_SIZE, sort=filters.sort)
    context = current()
    with context.database.read() as session:
        grouping, wrong_group = _read_groups(session, filters, by, columns)
        listed = replace(filters, sort=RunQuery.sort) if by else filters
        page = list_runs(session, listed)
        runs = page.runs
        is_cut_short = bool(filters.q and page.next_cursor and len(runs) < PAGE_SIZE)
        table, wrong_columns = _read_columns(session, [run.id for run in runs], columns)
        endangered = [] if is_filtered else _endangered(session, context.clock())
        return render_page(
            "runs.html",
            session,
            runs=runs,
            filters=filters,
            may_change=auth.may_change(filters.project),
            may_save_view=auth.may_change(filters.project or EVERY_PROJECT),
            where=where,
            mistake=mistake,
            columns=columns,
            wrong_columns=wrong_columns,
            wrong_order=wrong_order,
            by=by,
            wrong_group=wrong_group,
            views=list_views(session, filters.project),
            view_query=_view_query(filters, where=where, columns=columns, group=by),
            grouping=grouping,
            groups=group_rows(grouping.groups, where) if grouping else [],
            table=table,
            differing=DIFFERING,
            names=column_names(session, [run.id for run in runs[:MAX_RUNS_FOR_COLUMNS]]),
            address=partial(list_address, filters, where=where, columns=columns, group=by),
            projects=list_projects(session, is_archived=filters.is_archived),
            statuses=RUN_STATUSES,
            sorts=SORT_NAMES,
            is_filtered=is_filtered,
            similar=_similar_columns(session, expression, where)
            if expression and where and not runs
            else [],
            endangered=endangered[:MAX_SHOWN_ENDANGERED],
            more_endangered=len(endangered[MAX_SHOWN_ENDANGERED:]),
            next_cursor=page.next_cursor,
            searched=MAX_SEARCHED if is_cut_short else None,
            total=count_runs(session, filters),
            max_counted=MAX_COUNTED,
            has_users=any(run.user for run in runs),
            has_forecasts=any(map(labels.forecast_badge, runs)),
            needs_token=not runs and credentials.has_admin_tokens(session, context.settings),
            refresh_s=REFRESH_S,
        )


def _similar_columns(
    session: Session, expression: Expression, where: str
) -> list[tuple[str, str, str]]:
    """Return columns that a filter names in vain, what the newest runs have instead of each, and
    the filter with that.
    """
    newest = list_runs(session, RunQuery(limit=MAX_RUNS_FOR_COLUMNS)).runs
    similar = similar_columns(session, [run.id for run in newest], expression)
    return [
        (spelling_of(column), other, rename_columns(where, {column: other}))
        for column, other in similar.items()
    ]


def _endangered(session: Session, now: float) -> list[RunSummary]:
    """Return the runs at risk, those with the least time left first."""
    runs = summarize(session, endangered_runs(session, now, MAX_ENDANGERED))
    return sorted(runs, key=labels.seconds_left)


def _parse_filter(text: str | None) -> tuple[Expression | None, str | None]:
    """Return a filter, or what is wrong with it: then the page lists the runs without it."""
    try:
        return parse(text) if text else None, None
    except FilterError as error:
        return None, str(error).removeprefix("where: ")


def _checked_order(filters: RunQuery) -> tuple[RunQuery, str | None]:
    """Return the filters, or those without their order and what is wrong with it."""
    try:
        order_of(filters.sort)
    except FilterError as error:
        return replace(filters, sort=RunQuery.sort), str(error).removeprefix("sort: ")
    return filters, None


@dataclass(frozen=True)
class Grouping:
    """Groups of the listed runs, what they are by, and the columns that they have figures of."""

    names: list[str]
    figures: list[str]
    order: str
    groups: list[RunGroup]
    total: int

    @property
    def numeric(self) -> set[str]:
        """The figures that are numbers in some group."""
        columns = (group.columns.items() for group in self.groups)
        return {name for items in columns for name, figure in items if figure.runs}


def _read_groups(
    session: Session, filters: RunQuery, by: str | None, columns: str | None
) -> tuple[Grouping | None, str | None]:
    """Return the groups that the address asks for, or what is wrong with them."""
    if not by:
        return None, None
    figures = [name for name in split_names(columns or "") if name != DIFFERING]
    order = filters.sort
    if order.removeprefix("-") not in ("runs", "value", *figures):
        order = "-runs"
    try:
        tree = group_runs(session, filters, by, columns=",".join(figures), order=order)
    except FilterError as error:
        return None, re.sub("^(by|columns): ", "", str(error))
    return Grouping(split_names(by), figures, order, tree.groups, tree.total), None


def _view_query(filters: RunQuery, **others: str | None) -> dict[str, str]:
    """Return the parameters that a view of this list has."""
    address = list_address(filters, **others)
    return dict(parse_qsl(address.partition("?")[2]))


def _read_columns(
    session: Session, run_ids: list[str], text: str | None
) -> tuple[ColumnTable, str | None]:
    """Return the chosen columns that there are, and what is wrong with the choice."""
    mistakes = unknown_names(text or "")
    known = [name for name in split_names(text or "") if name not in mistakes]
    wrong = next(iter(mistakes.values()), None)
    try:
        table = column_table(session, run_ids, ",".join(known))
    except FilterError as error:
        table, wrong = ColumnTable(), str(error)
    return table, re.sub("^(where|columns): ", "", wrong) if wrong else None


def read_filters() -> RunQuery:
    """Return the order and the filters that the address names, except `where`.

    Raises Problem 422.
    """
    return RunQuery(
        project=query.text("project"),
        status=query.choice("status", RUN_STATUSES),
        tag=query.text("tag"),
        q=query.text("q"),
        is_archived=query.choice("archived", ("1",)) is not None,
        sort=query.text("sort") or RunQuery.sort,
        limit=PAGE_SIZE,
        cursor=query.text("cursor"),
    )


def list_address(filters: RunQuery, **changes: str | None) -> str:
    """Return the address of the list's first page with some filters changed; None removes one."""
    params: dict[str, str | None] = {
        "project": filters.project,
        "status": filters.status,
        "tag": filters.tag,
        "q": filters.q,
        "sort": filters.sort if filters.sort != RunQuery.sort else None,
        "archived": "1" if filters.is_archived else None,
        **changes,
    }
    encoded = urlencode({name: value for name, value in params.items() if value})
    return f"/?{encoded}" if encoded else "/"


@blueprint.post("/runs")
@require_scope("admin")
def change_runs() -> Response:
    action, run_ids = request.form.get("what", ""), _selected_runs()
    if action not in ACTIONS:
        raise Problem(422, f"what: {action!r} is not one of {', '.join(ACTIONS)}.", field="what")
    if action == "delete":
        delete_all(run_ids)
    else:
        with current().database.write() as session, watch_runs(session, run_ids):
            _change_runs(session, action, run_ids)
    return redirect_to(request.form.get("next"))


def _change_runs(session: Session, action: str, run_ids: list[str]) -> None:
    if action == "tag":
        change_tags(session, run_ids, add=_form_tags())
    elif action == "untag":
        change_tags(session, run_ids, remove=_form_tags())
    elif action == "rename":
        edit_runs(session, run_ids, name=form_text("name", 1, MAX_NAME))
    elif action == "note":
        edit_runs(session, run_ids, add_notes=form_text("notes", 1, MAX_NOTES))
    else:
        archive(session, run_ids, is_archived=action == "archive")


def _selected_runs() -> list[str]:
    run_ids = list(dict.fromkeys(request.form.getlist("runs")))
    if not 1 <= len(run_ids) <= MAX_SELECTED:
        raise Problem(
            422, f"runs: select 1 to {MAX_SELECTED} runs, not {len(run_ids)}.", field="runs"
        )
    if any("\0" in run_id for run_id in run_ids):
        raise Problem(422, "runs: ids cannot contain NUL characters.", field="runs")
    return run_ids


def _form_tags() -> list[str]:
    tags = [part.strip() for part in request.form.get("tag", "").split(",") if part.strip()]
    if not tags or any("\0" in tag or len(tag) > MAX_TAG_LENGTH for tag in tags):
        raise Problem(
            422,
            f"tag: enter tags of 1 to {MAX_TAG_LENGTH} characters, separated by commas.",
            field="tag",
        )
    return tags
