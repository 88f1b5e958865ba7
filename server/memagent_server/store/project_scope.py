"""Sessions that see the runs of some projects only.

A token that is limited to projects must not reach another project's run by any route, present or
future. So the session filters, not the routes: it adds to every statement, for every table in it,
that the row belongs to one of the projects.

1. A table's columns show how its rows belong to a run: by `project`, by `run_id`, or by the stream
   or alert that they refer to.
2. Tables with none of these are the server's own. SHARED_TABLES are open to all; the others
   (tokens) are empty for a scoped session.
3. Rules and views of every project (`*`) can be read, since they apply, but not changed.
4. Inserts aren't filtered: a new row belongs to a row that was found before. Only for a new run the
   route checks the project.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import event, false, select
from sqlalchemy.orm import LoaderCriteriaOption, ORMExecuteState, Session
from sqlalchemy.sql.elements import ColumnElement

from memagent_server.store.models import (
    AlertRow,
    Base,
    ColumnRuleRow,
    DeviceContextRow,
    RuleSettingRow,
    RunRow,
    RunViewRow,
    StreamRow,
)
from memagent_server.store.rules import EVERY_PROJECT

SHARED_TABLES: tuple[type[Base], ...] = (DeviceContextRow,)
"""Tables of the server's own that hold nothing of a single run."""
OF_EVERY_PROJECT: tuple[type[Base], ...] = (RuleSettingRow, ColumnRuleRow, RunViewRow)
"""Tables whose rows of EVERY_PROJECT anyone may read."""
_INFO_KEY = "memagent_project_scope"
_PROJECTS_KEY = "memagent_projects"


class ProjectSession(Session):
    """Session that sees rows of some projects only; its `info` comes from `scope_info`."""


def scope_info(projects: tuple[str, ...]) -> dict[Any, Any]:
    """Return the `info` of a ProjectSession of these projects."""
    return {_INFO_KEY: _criteria(projects), _PROJECTS_KEY: projects}


def projects_of(session: Session) -> tuple[str, ...] | None:
    """Return the projects that a session sees, None if it sees all."""
    projects: tuple[str, ...] | None = session.info.get(_PROJECTS_KEY)
    return projects


@event.listens_for(ProjectSession, "do_orm_execute")
def _add_criteria(state: ORMExecuteState) -> None:
    read_criteria, write_criteria = state.session.info[_INFO_KEY]
    if state.is_select or state.is_update or state.is_delete:
        criteria = read_criteria if state.is_select else write_criteria
        state.statement = state.statement.options(*criteria)


class _ProjectCriterion(LoaderCriteriaOption):
    """A criterion that also holds for a joined alias.

    SQLAlchemy (2.0 and 2.1) adapts criteria to aliases in WHERE, but not in ON.
    """

    # identifies the option in SQLAlchemy's statement cache, as for its parent
    _traverse_internals = LoaderCriteriaOption._traverse_internals

    def _resolve_where_criteria(self, ext_info: Any) -> ColumnElement[bool]:
        criterion = super()._resolve_where_criteria(ext_info)
        if ext_info.is_aliased_class:
            criterion = ext_info._adapter.traverse(criterion)
        return criterion


@lru_cache(maxsize=256)
def _criteria(projects: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """Return the loader options of statements that read, and of those that write."""
    read_criteria, write_criteria = [], []
    for mapper in Base.registry.mappers:
        model: type[Base] = mapper.class_
        if model in SHARED_TABLES:
            continue
        readable = (*projects, EVERY_PROJECT) if model in OF_EVERY_PROJECT else projects
        read_criteria.append(
            _ProjectCriterion(model, belongs(model, readable), include_aliases=True)
        )
        write_criteria.append(
            _ProjectCriterion(model, belongs(model, projects), include_aliases=True)
        )
    return read_criteria, write_criteria


def belongs(model: type[Base], projects: Sequence[str]) -> ColumnElement[bool]:
    """Build the condition that a row is of the projects; false for the server's tables."""
    for name in ("project", "run_id", "stream_id", "alert_id"):
        if name in model.__table__.columns:
            condition: ColumnElement[bool] = _leads_to(getattr(model, name), name, projects)
            return condition
    return false()


def _leads_to(column: Any, name: str, projects: Sequence[str]) -> Any:
    if name == "project":
        return column.in_(projects)
    parent, parent_column = _PARENTS[name]
    # an alias of the table, not of the class, and uncorrelated: criteria must not filter themselves
    table = parent.__table__.alias()
    condition = _leads_to(table.c[parent_column], parent_column, projects)
    return column.in_(select(table.c["id"]).where(condition).correlate(None))


_PARENTS: dict[str, tuple[type[Base], str]] = {
    "run_id": (RunRow, "project"),
    "stream_id": (StreamRow, "run_id"),
    "alert_id": (AlertRow, "run_id"),
}
"""The table that a column refers to, and that table's column that leads on to the project."""
