"""The version of an ended run: equal as long as nothing that its page shows has changed.

Every table that the refreshed parts of the page read has a part in it, read by an index of the run:
the newest id of rows that are only added, a sum of times or counters of rows that change.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select
from sqlalchemy.orm import Session

from memagent_server.store.failures import failures_of
from memagent_server.store.incidents import count_firing_incidents
from memagent_server.store.models import (
    AlertRow,
    ConsoleRow,
    EventRow,
    ForecastRow,
    IncidentRow,
    NotificationRow,
    PredictionRow,
    RankRow,
    RunRow,
    SnapshotRow,
    StreamRow,
)

RunVersion = tuple[Any, ...]
_ADDED = (EventRow, ForecastRow, PredictionRow, SnapshotRow)


_UNCHANGED = ("config", "environment")
"""Large, and sent at the start of a launch: that changes `attempt`, too."""


def ended_run_version(session: Session, run_id: str) -> RunVersion | None:
    """Return the version of a run that has ended, None for any other."""
    row = session.execute(_VERSION, {"run_id": run_id}).first()
    if row is None or row.status == "running":
        return None
    # other runs with the same failure change what a page says about it
    failure = failures_of(session, [row.failure]).get(row.failure or "")
    occurrences = (failure.runs, failure.state, failure.resolved_by) if failure else None
    return (*map(_hashable, row), count_firing_incidents(session), occurrences)


def _query() -> Select[Any]:
    columns = [column for column in RunRow.__table__.columns if column.name not in _UNCHANGED]
    # a retry counts before it is sent, and its time counts once it was
    sends = NotificationRow.attempts + func.coalesce(NotificationRow.sent_at, 1)
    return select(
        *columns,
        *(_of_run(kind, func.max(kind.id)) for kind in _ADDED),
        _of_run(ConsoleRow, func.sum(ConsoleRow.seq + ConsoleRow.size)),
        _of_run(StreamRow, func.sum(StreamRow.samples + StreamRow.attempt)),
        _of_run(RankRow, func.sum(RankRow.last_seen_at + func.coalesce(RankRow.finished_at, 1))),
        _of_run(AlertRow, func.sum(AlertRow.version + 1)),
        _of_run(IncidentRow, func.sum(_changes_of_incident())),
        select(func.sum(sends))
        .join(AlertRow, AlertRow.id == NotificationRow.alert_id)
        .where(AlertRow.run_id == bindparam("run_id"))
        .scalar_subquery(),
    ).where(RunRow.id == bindparam("run_id"))


def _of_run(kind: Any, value: ColumnElement[Any]) -> Any:
    return select(value).where(kind.run_id == bindparam("run_id")).scalar_subquery()


def _changes_of_incident() -> ColumnElement[float]:
    times = (
        IncidentRow.acked_at,
        IncidentRow.snoozed_until,
        IncidentRow.false_alarm_at,
        IncidentRow.closed_at,
    )
    # a missing time counts 1, so that no change is lost in a sum of NULL
    return sum((func.coalesce(time, 1) for time in times), start=IncidentRow.updated_at + 0)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_VERSION = _query()
"""Built once: that takes longer than to run it."""
