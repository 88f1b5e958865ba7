"""Projects' settings of alert rules, a row for each that differs from the default, and their own
rules about columns.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from memagent_server.store.models import ColumnRuleRow, RuleSettingRow, RunRow
from memagent_server.store.statements import upsert

EVERY_PROJECT = "*"
"""The key of settings for all projects without their own."""


def rule_settings(session: Session, project: str) -> dict[str, RuleSettingRow]:
    """Return {rule: setting} of a project: its own, else that of every project."""
    query = select(RuleSettingRow).where(RuleSettingRow.project.in_((EVERY_PROJECT, project)))
    rows = sorted(session.scalars(query), key=lambda row: row.project != EVERY_PROJECT)
    return {row.rule: row for row in rows}


def all_rule_settings(session: Session) -> list[RuleSettingRow]:
    """Return the settings of all projects."""
    return list(session.scalars(select(RuleSettingRow)))


def put_rule(
    session: Session,
    *,
    project: str,
    rule: str,
    is_on: bool,
    tells: str,
    thresholds: dict[str, Any],
    by: str | None,
    now: float,
) -> None:
    """Store a project's setting of a rule."""
    values = {
        "is_on": is_on,
        "tells": tells,
        "thresholds": thresholds,
        "updated_at": now,
        "updated_by": by,
    }
    key = {"project": project, "rule": rule}
    upsert(session, RuleSettingRow, {**key, **values}, update=tuple(values))


def forget_rules(session: Session, project: str, rule: str | None = None) -> None:
    """Restore the defaults of one rule or all."""
    query = delete(RuleSettingRow).where(RuleSettingRow.project == project)
    session.execute(query if rule is None else query.where(RuleSettingRow.rule == rule))


def known_projects(session: Session) -> list[str]:
    """Return the projects that have runs or settings, by name."""
    with_runs = set(session.scalars(select(RunRow.project).distinct()))
    with_settings = set(session.scalars(select(RuleSettingRow.project).distinct()))
    return sorted((with_runs | with_settings) - {EVERY_PROJECT})


# -- rules about columns --------------------------------------------------------------------------


def all_column_rules(session: Session) -> list[ColumnRuleRow]:
    """Return the rules of all projects by name."""
    return list(session.scalars(select(ColumnRuleRow).order_by(ColumnRuleRow.name)))


def column_rules(session: Session, project: str) -> list[ColumnRuleRow]:
    """Return a project's rules by name: its own, and those of every project."""
    query = select(ColumnRuleRow).where(ColumnRuleRow.project.in_((EVERY_PROJECT, project)))
    rows = sorted(session.scalars(query), key=lambda row: row.project != EVERY_PROJECT)
    by_name = {row.name: row for row in rows}
    return [by_name[name] for name in sorted(by_name)]


def put_column_rule(
    session: Session, *, project: str, name: str, by: str | None, now: float, **rule: Any
) -> None:
    """Store a rule of a project, in place of one with its name."""
    values = {**rule, "updated_at": now, "updated_by": by}
    key = {"project": project, "name": name}
    upsert(session, ColumnRuleRow, {**key, **values}, update=tuple(values))


def forget_column_rule(session: Session, project: str, name: str) -> None:
    session.execute(
        delete(ColumnRuleRow).where(ColumnRuleRow.project == project, ColumnRuleRow.name == name)
    )
