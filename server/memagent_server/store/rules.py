"""How projects want their rules: what differs from the rules' own defaults, a row for each project and rule."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from memagent_server.store.models import RuleSetting, Run
from memagent_server.store.upsert import upsert

EVERY_PROJECT = "*"
"""Stands for all projects that say nothing themselves."""


def rule_settings(session: Session, project: str) -> dict[str, RuleSetting]:
    """{rule: setting} for a project: its own, else that of every project."""
    query = select(RuleSetting).where(RuleSetting.project.in_((EVERY_PROJECT, project)))
    found = sorted(session.scalars(query), key=lambda row: row.project != EVERY_PROJECT)
    return {row.rule: row for row in found}


def all_rule_settings(session: Session) -> list[RuleSetting]:
    """What every project has said, and what stands for all."""
    return list(session.scalars(select(RuleSetting)))


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
    """Keep how a project wants a rule."""
    values = {
        "project": project, "rule": rule, "is_on": is_on, "tells": tells, "thresholds": thresholds, "updated_at": now, "updated_by": by,
    }  # fmt: skip
    upsert(
        session,
        RuleSetting,
        values,
        update=("is_on", "tells", "thresholds", "updated_at", "updated_by"),
    )


def forget_rules(session: Session, project: str, rule: str | None = None) -> None:
    """Back to the defaults, for one rule or for all."""
    query = delete(RuleSetting).where(RuleSetting.project == project)
    session.execute(query if rule is None else query.where(RuleSetting.rule == rule))


def known_projects(session: Session) -> list[str]:
    """Projects that have runs, and those that have settings, by name."""
    with_runs = set(session.scalars(select(Run.project).distinct()))
    with_settings = set(session.scalars(select(RuleSetting.project).distinct()))
    return sorted((with_runs | with_settings) - {EVERY_PROJECT})
