"""Unused GPU memory: the page for those who assign GPUs, and the route of the API."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from math import ceil
from urllib.parse import urlencode

from flask import Blueprint, Response

from memagent.units import DAY_S
from memagent_server.http.api_route import operation
from memagent_server.http.context import current
from memagent_server.http.problems import json_answer
from memagent_server.schemas import runs
from memagent_server.schemas.queries import WasteQuery
from memagent_server.schemas.runs import Waste, WasteKey, WasteRow, WasteSort
from memagent_server.store.engine import Session
from memagent_server.store.run_list import list_projects
from memagent_server.store.waste import SORTS, WasteSelection, waste
from memagent_server.web import query
from memagent_server.web.group_view import narrowed
from memagent_server.web.rendering import render_page

blueprint = Blueprint("waste", __name__)

MAX_ROWS = 50
WINDOW_S = 600.0
DAYS = {1: "A day", 7: "7 days", 30: "30 days", 90: "90 days", 365: "A year"}
GROUPS: dict[str, tuple[str, tuple[WasteKey, ...]]] = {
    "": ("User, project, card", ("user", "project", "card")),
    "user": ("User", ("user",)),
    "project": ("Project", ("project",)),
    "card": ("Card", ("card",)),
    "run": ("Run", ("run", "user", "project", "card")),
}
"""Rows by the value of `by` in the page's address: their name, and their keys."""
COLUMNS: dict[WasteSort, str] = {
    "gpu_hours": "GPU-hours",
    "available_gib_hours": "Available",
    "needed_gib_hours": "Needed",
    "unused_gib_hours": "Unused",
    "cost": "Cost",
    "too_large_gpu_hours": "Card too large",
}
DEFAULT_DAYS, DEFAULT_SORT = 7, SORTS[0]
_Chosen = dict[str, str | int | None]


@blueprint.get("/api/v1/waste")
@operation("runs", "read", runs.Waste, query=WasteQuery)
def get_waste() -> Response:
    """Return the GPU memory that runs had, needed and left unused, by user, project, card or run.

    Cards that are larger than a need are named with the smallest that would have done.
    """
    params = query.read(WasteQuery)
    with current().database.read() as session:
        since, until = _window(params.days)
        selection = WasteSelection(
            since, until, params.project, params.by, params.sort, params.limit
        )
        return json_answer(_read(session, selection))


@blueprint.get("/waste")
def show_waste() -> Response:
    days = query.number("days", least=1, most=3650) or DEFAULT_DAYS
    by = query.choice("by", GROUPS) or ""
    sort: WasteSort = query.choice("sort", COLUMNS) or DEFAULT_SORT  # type: ignore[assignment]
    project = query.text("project")
    chosen: _Chosen = {"days": days, "by": by, "project": project, "sort": sort}
    with current().database.read() as session:
        keys = GROUPS[by][1]
        since, until = _window(days)
        selection = WasteSelection(since, until, project, keys, sort, MAX_ROWS)
        return render_page(
            "waste.html",
            session,
            waste=_read(session, selection),
            keys=[key for key in keys if key != "run"],
            by=by,
            days=days,
            sort=sort,
            project=project,
            projects=list_projects(session),
            windows=DAYS if days in DAYS else {**DAYS, days: f"{days} days"},
            groups=GROUPS,
            columns=COLUMNS,
            address=partial(_address, chosen),
            runs_of=partial(_runs_of, keys=keys, project=project),
        )


def _window(days: int) -> tuple[float, float]:
    """Return the days up to the next WINDOW_S: until then, an unchanged answer isn't sent again."""
    until = ceil(current().clock() / WINDOW_S) * WINDOW_S
    return until - days * DAY_S, until


def _read(session: Session, selection: WasteSelection) -> Waste:
    return waste(session, selection, current().settings.gpu_prices)


def _runs_of(row: WasteRow, keys: Collection[WasteKey], project: str | None) -> str | None:
    """Return the address of the runs of a row's user and project, None for rows by card alone."""
    key = {name: getattr(row, name) for name in ("user", "project") if name in keys}
    where = narrowed(None, key) if key else None
    if where is None:
        return None
    query = {"project": project} if project and "project" not in key else {}
    return f"/?{urlencode({**query, 'where': where, 'sort': 'peak_ratio'})}"


def _address(chosen: _Chosen, **changes: str) -> str:
    """Return the page's address with changes, without what is so by default."""
    defaults = {"days": DEFAULT_DAYS, "sort": DEFAULT_SORT}
    wanted = {
        name: value
        for name, value in {**chosen, **changes}.items()
        if value and value != defaults.get(name)
    }
    return f"/waste?{urlencode(wanted)}" if wanted else "/waste"
