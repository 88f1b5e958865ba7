"""Sessions that see the runs of some projects only, and nothing of any other.

A token that is limited to projects must not lead to another project's run by any route, today's or tomorrow's. So it is not the routes
that filter but the session they are given: it adds to every statement, for every table in it, that the row belongs to one of the projects.

1. How a row belongs to a run is read off its table: by `project`, by `run_id`, or by the stream or alert that it refers to.
2. Tables with none of these are the server's own. SHARED ones are open to all; the others (tokens) show nothing to a limited session.
3. Rules of every project (`*`) are seen, for they apply, but not changed.
4. Inserts are not looked at: what is inserted belongs to a row that was found before, but for a run itself, whose project the route checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import event, false, select
from sqlalchemy.orm import LoaderCriteriaOption, ORMExecuteState, Session
from sqlalchemy.sql.elements import ColumnElement

from memagent_server.store.models import Alert, Base, DeviceContext, RuleSetting, Run, Stream
from memagent_server.store.rules import EVERY_PROJECT

SHARED: tuple[type[Base], ...] = (DeviceContext,)
"""Tables of the server's own that hold nothing of any one run."""

_OPTIONS = "memagent_limits"


class ProjectSession(Session):
    """A session whose statements see rows of some projects only; made by `limited_info`."""


def limited_info(projects: tuple[str, ...]) -> dict[Any, Any]:
    """What a ProjectSession of these projects carries in its `info`."""
    return {_OPTIONS: _criteria(projects)}


@event.listens_for(ProjectSession, "do_orm_execute")
def _limit(state: ORMExecuteState) -> None:
    reading, changing = state.session.info[_OPTIONS]
    if state.is_select or state.is_update or state.is_delete:
        state.statement = state.statement.options(*(reading if state.is_select else changing))


class _Limit(LoaderCriteriaOption):
    """A criterion that holds for an alias that is joined, too: SQLAlchemy (2.0 and 2.1) turns it to the alias in WHERE, but not in ON."""

    _traverse_internals = (
        LoaderCriteriaOption._traverse_internals
    )  # what tells it apart in the cache of statements, as its parent

    def _resolve_where_criteria(self, ext_info: Any) -> ColumnElement[bool]:
        criterion = super()._resolve_where_criteria(ext_info)
        turned: ColumnElement[bool] = (
            ext_info._adapter.traverse(criterion) if ext_info.is_aliased_class else criterion
        )
        return turned


@lru_cache(maxsize=256)
def _criteria(projects: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """Loader options for statements that read, and for those that change."""
    reading, changing = [], []
    for mapper in Base.registry.mappers:
        model: type[Base] = mapper.class_
        if model in SHARED:
            continue
        seen = (*projects, EVERY_PROJECT) if model is RuleSetting else projects
        reading.append(_Limit(model, belongs(model, seen), include_aliases=True))
        changing.append(_Limit(model, belongs(model, projects), include_aliases=True))
    return reading, changing


def belongs(model: type[Base], projects: Sequence[str]) -> ColumnElement[bool]:
    """Whether a row belongs to one of the projects; false for tables that do not say."""
    for name in ("project", "run_id", "stream_id", "alert_id"):
        if name in model.__table__.columns:
            found: ColumnElement[bool] = _points(getattr(model, name), name, projects)
            return found
    return false()


def _points(column: Any, name: str, projects: Sequence[str]) -> Any:
    """Whether a column of that name leads to one of the projects."""
    if name == "project":
        return column.in_(projects)
    model, further = _PARENTS[name]
    # in terms of the table, not of the class, and apart from the statement around it: what is inside a limit is not limited again
    table = model.__table__.alias()
    return column.in_(
        select(table.c["id"]).where(_points(table.c[further], further, projects)).correlate(None)
    )


_PARENTS: dict[str, tuple[type[Base], str]] = {
    "run_id": (Run, "project"),
    "stream_id": (Stream, "run_id"),
    "alert_id": (Alert, "run_id"),
}
"""What a column refers to, and which column of that leads on."""
