"""Schedules of channels, the state of their digests, and what a digest reports.

A digest is due by its schedule. It is leased by an attempt: `begin_digest` counts one and sets the
time of the next, so that a worker that is killed meanwhile sends it again, and two never at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import ColumnElement, CursorResult, Result, delete, func, select, true, update
from sqlalchemy.orm import Session

from memagent_server.schemas.schedules import ChannelSchedule, Digest, DigestKind
from memagent_server.store.models import (
    AlertRow,
    ChannelScheduleRow,
    DigestRow,
    IncidentRow,
    NotificationRow,
    RunRow,
)
from memagent_server.store.reading import to_schema
from memagent_server.store.statements import insert_if_missing, upsert

MAX_NAMED = 10
"""Runs that a digest names; the rest are a number."""
_FIELDS = tuple(ChannelSchedule.__struct_fields__)


@dataclass(frozen=True)
class DayReport:
    """Runs and incidents of a time, for some projects.

    - ends: runs that ended, by status.
    - deaths: (run, status, failure) of the newest.
    - incidents: confirmed ones, by rule.
    - firing: (run, summary) of incidents that still fire.
    """

    started: int
    running: int
    ends: dict[str, int]
    deaths: list[tuple[str, str, str]]
    incidents: dict[str, int]
    firing: list[tuple[str, str]]


def list_schedules(session: Session) -> dict[str, ChannelSchedule]:
    """Return the schedules by channel."""
    rows = session.scalars(select(ChannelScheduleRow).order_by(ChannelScheduleRow.channel))
    return {row.channel: _schedule(row) for row in rows}


def get_schedule(session: Session, channel: str) -> ChannelSchedule | None:
    row = session.get(ChannelScheduleRow, channel)
    return None if row is None else _schedule(row)


def put_schedule(
    session: Session, channel: str, schedule: ChannelSchedule | None, now: float
) -> None:
    """Store a channel's schedule, or remove it. Digests begin with the first time after `now`."""
    if schedule is None:
        session.execute(delete(ChannelScheduleRow).where(ChannelScheduleRow.channel == channel))
        session.execute(delete(DigestRow).where(DigestRow.channel == channel))
        return
    values = msgspec.to_builtins(schedule)
    upsert(session, ChannelScheduleRow, {"channel": channel, **values}, update=tuple(values))
    kinds: dict[DigestKind, bool] = {
        "daily": schedule.daily,
        "waste": schedule.waste_day is not None,
    }
    for kind, is_on in kinds.items():
        of_kind = (DigestRow.channel == channel, DigestRow.kind == kind)
        if not is_on:
            # one that's switched on again must not report the time between
            session.execute(delete(DigestRow).where(*of_kind))
            continue
        # a changed time keeps what is done, or the change would send another digest today
        values = {
            "channel": channel,
            "kind": kind,
            "done_until": now,
            "attempts": 0,
            "next_attempt_at": now,
        }
        insert_if_missing(session, DigestRow, values)


def list_digests(session: Session) -> list[Digest]:
    """Return the state of all digests."""
    rows = session.scalars(select(DigestRow).order_by(DigestRow.channel, DigestRow.kind))
    return [to_schema(Digest, row) for row in rows]


def digests_of(session: Session, channel: str) -> list[DigestRow]:
    return list(session.scalars(select(DigestRow).where(DigestRow.channel == channel)))


def begin_digest(session: Session, digest: DigestRow, retry_at: float) -> bool:
    """Count an attempt; return False if another worker was faster."""
    return _change(session, digest, attempts=digest.attempts + 1, next_attempt_at=retry_at)


def end_digest(
    session: Session, digest: DigestRow, *, until: float | None, error: str | None, now: float
) -> None:
    """Note how an attempt ended; with `until`, the digest up to that time is done or given up."""
    values: dict[str, object] = {"last_error": None if error is None else error[:500]}
    if until is not None:
        values |= {"done_until": until, "attempts": 0, "next_attempt_at": now}
    if error is None:
        values["sent_at"] = now
    session.execute(
        update(DigestRow)
        .where(DigestRow.channel == digest.channel, DigestRow.kind == digest.kind)
        .values(**values)
    )


def held_counts(session: Session, now: float) -> dict[str, int]:
    """Return the notifications that wait for the end of quiet hours, by channel."""
    query = (
        select(NotificationRow.channel, func.count())
        .where(NotificationRow.state == "waiting", NotificationRow.held_until > now)
        .group_by(NotificationRow.channel)
    )
    return _counts(session.execute(query))


def replace_held(session: Session, incident_id: int, channels: Collection[str], now: float) -> None:
    """Skip what waits for the end of quiet hours about an incident: something newer comes."""
    session.execute(
        update(NotificationRow)
        .where(
            NotificationRow.incident_id == incident_id,
            NotificationRow.channel.in_(channels),
            NotificationRow.state == "waiting",
            NotificationRow.held_until > now,
        )
        .values(
            state="skipped", last_error="it was held in quiet hours, and a newer message followed"
        )
    )


def projects_between(session: Session, since: float, until: float) -> list[str]:
    """Return the projects with runs that had contact in a time."""
    query = select(RunRow.project).where(RunRow.last_seen_at >= since, RunRow.created_at < until)
    return sorted(session.scalars(query.distinct()))


def day_report(
    session: Session, since: float, until: float, projects: Sequence[str] | None
) -> DayReport:
    """Return what happened in a time, to runs of some projects or, with None, of all."""
    of_projects = true() if projects is None else RunRow.project.in_(projects)
    started = (RunRow.created_at >= since, RunRow.created_at < until)
    ended = (RunRow.finished_at >= since, RunRow.finished_at < until)
    confirmed = (IncidentRow.fired_at >= since, IncidentRow.fired_at < until)
    runs = select(func.count()).select_from(RunRow).where(of_projects)
    by_status = select(RunRow.status, func.count()).where(of_projects, *ended)
    by_rule = (
        select(IncidentRow.rule, func.count())
        .join(RunRow, RunRow.id == IncidentRow.run_id)
        .where(of_projects, *confirmed, IncidentRow.severity != "note")
    )
    return DayReport(
        started=session.scalar(runs.where(*started)) or 0,
        running=session.scalar(runs.where(RunRow.status == "running")) or 0,
        ends=_counts(session.execute(by_status.group_by(RunRow.status))),
        deaths=_deaths(session, of_projects, *ended),
        incidents=_counts(session.execute(by_rule.group_by(IncidentRow.rule))),
        firing=_firing(session, of_projects),
    )


def _deaths(session: Session, *conditions: ColumnElement[bool]) -> list[tuple[str, str, str]]:
    query = (
        select(RunRow.name, RunRow.status, RunRow.failure_title)
        .where(RunRow.status.in_(("oom", "lost_contact", "failed")), *conditions)
        .order_by(RunRow.finished_at.desc(), RunRow.id)
        .limit(MAX_NAMED)
    )
    return [(name, status, title or "") for name, status, title in session.execute(query)]


def _firing(session: Session, of_projects: ColumnElement[bool]) -> list[tuple[str, str]]:
    query = (
        select(RunRow.name, func.max(AlertRow.summary))
        .join(IncidentRow, IncidentRow.run_id == RunRow.id)
        .join(AlertRow, AlertRow.incident_id == IncidentRow.id)
        .where(of_projects, IncidentRow.state == "firing", IncidentRow.severity != "note")
        .group_by(IncidentRow.id, RunRow.name)
        .order_by(IncidentRow.id.desc())
        .limit(MAX_NAMED)
    )
    return [(name, summary) for name, summary in session.execute(query)]


def _counts(rows: Result[str, int]) -> dict[str, int]:
    """Return the counts, the largest first."""
    counts = {row[0]: row[1] for row in rows}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _schedule(row: ChannelScheduleRow) -> ChannelSchedule:
    return msgspec.convert({name: getattr(row, name) for name in _FIELDS}, ChannelSchedule)


def _change(session: Session, digest: DigestRow, **values: object) -> bool:
    """Change a digest if no attempt was counted meanwhile."""
    result = session.execute(
        update(DigestRow)
        .where(
            DigestRow.channel == digest.channel,
            DigestRow.kind == digest.kind,
            DigestRow.attempts == digest.attempts,
            DigestRow.done_until == digest.done_until,
        )
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
