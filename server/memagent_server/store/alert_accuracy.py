"""Accuracy of the forecaster's warnings by project and cause: how many came true, how early, and
how many were false alarms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from memagent.forecast.levels import PAGE_COST
from memagent.units import DAY_S
from memagent_server.schemas.alerts import NamedScore, Score, Scoreboard
from memagent_server.store.models import (
    UNCONFIRMED_STATES,
    AlertRow,
    FeedbackRow,
    IncidentRow,
    RunRow,
)
from memagent_server.store.page_costs import ended_runs, threshold_costs

COUNTS = (
    "warnings",
    "came_true",
    "averted",
    "finished",
    "lost_contact",
    "open",
    "called_false",
    "unforeseen",
)
_COUNT_OF_STATE = {"oom": "came_true", "firing": "open"}


@dataclass(frozen=True)
class ForecastWarning:
    """A warning that people got, or an OOM if `rule` is oom. Times are UTC epoch seconds."""

    project: str
    rule: str
    cause: str | None
    state: str
    fired_at: float
    closed_at: float | None
    first_step: int
    step: int


def scoreboard(
    session: Session,
    *,
    now: float,
    days: int,
    project: str | None = None,
    page_cost: float = PAGE_COST,
) -> Scoreboard:
    """Return the accuracy of the warnings of the last `days`.

    page_cost: cost of a page to the team, as a share of a lost run.
    """
    since = now - days * DAY_S
    runs = ended_runs(session, since, project)
    warnings = _warnings(session, since, project)
    false_alarms = _false_alarms(session, since, project)
    by_project: dict[str, int] = defaultdict(int)
    by_cause: dict[str, int] = defaultdict(int)
    for (of_project, cause), count in false_alarms.items():
        by_project[of_project] += count
        by_cause[cause] += count
    # an OOM without a warning has no known cause
    with_cause = [item for item in warnings if item.rule != "oom"]
    return Scoreboard(
        days=days,
        project=project,
        total=Score(**_score(warnings, sum(false_alarms.values()))),
        ended_runs=len(runs),
        costs=threshold_costs(runs, page_cost),
        by_project=_named_scores(warnings, by_project, lambda item: item.project),
        by_cause=_named_scores(with_cause, by_cause, lambda item: item.cause or "unknown"),
    )


def _score(warnings: Iterable[ForecastWarning], called_false: int) -> dict[str, Any]:
    """Return the fields of `Score`.

    `true_ratio` counts the warnings whose outcome is known; leads are medians of those that came
    true.
    """
    counts = dict.fromkeys(COUNTS, 0)
    lead_steps: list[int] = []
    lead_s: list[float] = []
    for item in warnings:
        if item.rule == "oom":
            counts["unforeseen"] += 1
            continue
        counts["warnings"] += 1
        counts[_COUNT_OF_STATE.get(item.state, item.state)] += 1
        if item.state == "oom" and item.closed_at is not None:
            # runs report the last step that they completed: the next one failed
            lead_steps.append(max(0, item.step + 1 - item.first_step))
            lead_s.append(max(0.0, item.closed_at - item.fired_at))
    counts["called_false"] = called_false
    count = counts["came_true"] + counts["averted"] + counts["finished"]
    ooms = counts["came_true"] + counts["unforeseen"]
    return {
        **counts,
        "true_ratio": counts["came_true"] / count if count else None,
        "foreseen_ratio": counts["came_true"] / ooms if ooms else None,
        "lead_steps": median(lead_steps) if lead_steps else None,
        "lead_s": median(lead_s) if lead_s else None,
    }


def _warnings(session: Session, since: float, project: str | None) -> list[ForecastWarning]:
    query = (
        select(IncidentRow, RunRow.project, func.min(AlertRow.first_step), func.max(AlertRow.step))
        .join(RunRow, RunRow.id == IncidentRow.run_id)
        .join(AlertRow, AlertRow.incident_id == IncidentRow.id)
        .where(
            IncidentRow.rule.in_(("oom_forecast", "oom")),
            IncidentRow.fired_at >= since,
            AlertRow.state.not_in(UNCONFIRMED_STATES),
        )
        .group_by(IncidentRow.id, RunRow.project)
    )
    if project is not None:
        query = query.where(RunRow.project == project)
    return [
        ForecastWarning(
            project=of_project,
            rule=incident.rule,
            cause=incident.cause,
            state=incident.state,
            fired_at=incident.fired_at or since,
            closed_at=incident.closed_at,
            first_step=first_step,
            step=step,
        )
        for incident, of_project, first_step, step in session.execute(query)
        if incident.rule != "oom" or not _was_warned(session, incident)
    ]


def _was_warned(session: Session, oom: IncidentRow) -> bool:
    """Return True if an averted warning came before this OOM."""
    data = (
        session.scalar(select(AlertRow.data).where(AlertRow.incident_id == oom.id).limit(1)) or {}
    )
    return bool(data.get("was_warned"))


def _false_alarms(
    session: Session, since: float, project: str | None
) -> dict[tuple[str, str], int]:
    """Return {(project, cause): warnings that people marked as false}."""
    query = (
        select(FeedbackRow.project, FeedbackRow.cause, func.count())
        .where(
            FeedbackRow.kind == "false_alarm",
            FeedbackRow.rule == "oom_forecast",
            FeedbackRow.at >= since,
        )
        .group_by(FeedbackRow.project, FeedbackRow.cause)
    )
    if project is not None:
        query = query.where(FeedbackRow.project == project)
    return {
        (of_project, cause or "unknown"): count
        for of_project, cause, count in session.execute(query)
    }


def _named_scores(
    warnings: Iterable[ForecastWarning],
    false_alarms: dict[str, int],
    name_of: Callable[[ForecastWarning], str],
) -> list[NamedScore]:
    """Return a score for each name, most warnings first."""
    groups: dict[str, list[ForecastWarning]] = defaultdict(list)
    for item in warnings:
        groups[name_of(item)].append(item)
    scores = [
        NamedScore(name=name, **_score(groups[name], false_alarms.get(name, 0)))
        for name in [*groups, *(false_alarms.keys() - groups.keys())]
    ]
    return sorted(scores, key=lambda item: (-item.warnings, item.name))
