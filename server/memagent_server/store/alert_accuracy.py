"""How good the forecaster's warnings were: how many came true, how early, how many were called false. By project and cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from memagent_server.store.models import Alert, Feedback, Incident, Run

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
_COLUMN = {"oom": "came_true", "firing": "open"}


@dataclass(frozen=True)
class Warned:
    """One warning that people could hear of, or (`rule` is oom) a death. Times in seconds since the epoch."""

    project: str
    rule: str
    cause: str | None
    state: str
    fired_at: float
    closed_at: float | None
    first_step: int
    step: int


def scoreboard(session: Session, *, since: float, project: str | None = None) -> dict[str, Any]:
    """The answer of GET /scoreboard: what was warned of after `since`."""
    warned = _warned(session, since, project)
    called_false = _called_false(session, since, project)
    return {
        "total": score(warned, sum(called_false.values())),
        "by_project": _grouped(warned, called_false, lambda item: item.project, 0),
        "by_cause": _grouped(warned, called_false, lambda item: item.cause or "unknown", 1),
    }


def score(warned: Iterable[Warned], called_false: int) -> dict[str, Any]:
    """Counts, `true_ratio` of the warnings whose end is known, and median leads of those that came true."""
    counts = dict.fromkeys(COUNTS, 0)
    steps: list[int] = []
    seconds: list[float] = []
    for item in warned:
        if item.rule == "oom":
            counts["unforeseen"] += 1
            continue
        counts["warnings"] += 1
        counts[_COLUMN.get(item.state, item.state)] += 1
        if item.state == "oom" and item.closed_at is not None:
            steps.append(max(0, item.step - item.first_step))
            seconds.append(max(0.0, item.closed_at - item.fired_at))
    counts["called_false"] = called_false
    known = counts["came_true"] + counts["averted"] + counts["finished"]
    deaths = counts["came_true"] + counts["unforeseen"]
    return {
        **counts,
        "true_ratio": counts["came_true"] / known if known else None,
        "foreseen_ratio": counts["came_true"] / deaths if deaths else None,
        "lead_steps": median(steps) if steps else None,
        "lead_s": median(seconds) if seconds else None,
    }


def _warned(session: Session, since: float, project: str | None) -> list[Warned]:
    first, last = func.min(Alert.first_step), func.max(Alert.step)
    query = (
        select(Incident, Run.project, first, last)
        .join(Run, Run.id == Incident.run_id)
        .join(Alert, Alert.incident_id == Incident.id)
        .where(Incident.rule.in_(("oom_forecast", "oom")), Incident.fired_at >= since)
        .group_by(Incident.id, Run.project)
    )
    if project is not None:
        query = query.where(Run.project == project)
    return [
        Warned(
            of_project, incident.rule, incident.cause, incident.state, incident.fired_at or since, incident.closed_at, first_step, step
        )
        for incident, of_project, first_step, step in session.execute(query)
        if incident.rule != "oom" or not _was_warned(session, incident)
    ]  # fmt: skip


def _was_warned(session: Session, incident: Incident) -> bool:
    """Whether the death came after a warning that had been averted."""
    data = session.scalar(select(Alert.data).where(Alert.incident_id == incident.id).limit(1)) or {}
    return bool(data.get("was_warned"))


def _called_false(
    session: Session, since: float, project: str | None
) -> dict[tuple[str, str], int]:
    """{(project, cause): warnings that somebody called false}."""
    query = (
        select(Feedback.project, Feedback.cause, func.count())
        .where(
            Feedback.kind == "false_alarm", Feedback.rule == "oom_forecast", Feedback.at >= since
        )
        .group_by(Feedback.project, Feedback.cause)
    )
    if project is not None:
        query = query.where(Feedback.project == project)
    return {
        (of_project, cause or "unknown"): count
        for of_project, cause, count in session.execute(query)
    }


def _grouped(
    warned: list[Warned], called_false: dict[tuple[str, str], int], name_of: Any, part: int
) -> list[dict[str, Any]]:
    """A score for each name, most warnings first. A cause has no deaths without warning: nobody said why they would come."""
    groups: dict[str, list[Warned]] = defaultdict(list)
    for item in warned:
        if part == 0 or item.rule != "oom":
            groups[name_of(item)].append(item)
    false: dict[str, int] = defaultdict(int)
    for key, count in called_false.items():
        false[key[part]] += count
    rows = [
        {"name": name, **score(groups[name], false[name])} for name in groups.keys() | false.keys()
    ]
    return sorted(rows, key=lambda row: (-row["warnings"], row["name"]))
