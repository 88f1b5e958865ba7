"""Ends and milestones of runs without an alert of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select
from sqlalchemy.orm import Session, aliased

from memagent_server.store.alerts import IS_STREAM_OF_ALERT
from memagent_server.store.citus import is_distributed
from memagent_server.store.models import AlertRow, RankRow, RunRow, StreamRow

UNREPORTED_STATUSES = ("oom", "lost_contact")
"""Ends of a run that notify people even if no alert was open."""


def was_warned(session: Session, run_id: str) -> bool:
    """Return True if people were notified that the newest launch would run out of memory."""
    query = (
        select(AlertRow.id)
        .join(StreamRow, IS_STREAM_OF_ALERT)
        .where(
            AlertRow.run_id == run_id,
            AlertRow.rule == "oom_forecast",
            AlertRow.severity != "note",
            AlertRow.state.not_in(("pending", "ok")),
            StreamRow.is_current,
        )
    )
    return session.scalar(query.limit(1)) is not None


def unreported_ends(
    session: Session, run_id: str | None = None, *, seen_after: float | None = None
) -> list[RunRow]:
    """Return runs whose newest launch ended in an OOM or lost contact without an alert of that end.

    1. The result covers one run, or all runs seen after `seen_after`.
    2. Replayed launches were uploaded after their end and are never reported.
    3. A launch that lost contact, came back and lost contact again counts as reported only if an
       alert is as new as the last loss.
    4. An alert reports the end if it's the end's own, or a forecast that sent notifications.
    """
    query = _unreported_ends(
        is_correlated=not is_distributed(session),
        is_of_run=run_id is not None,
        is_recent=seen_after is not None,
    )
    return list(session.scalars(query, {"run_id": run_id, "seen_after": seen_after}))


@cache
def _unreported_ends(*, is_correlated: bool, is_of_run: bool, is_recent: bool) -> Select[Any]:
    """Return a statement, made once: a worker asks three times a second.

    On Citus alerts are the coordinator's: a subquery of them can't refer to a run around it.
    """
    dead = RunRow if is_correlated else aliased(RunRow)
    report = select(AlertRow.run_id).select_from(AlertRow)
    if not is_correlated:
        report = report.join(dead, dead.id == AlertRow.run_id)
    is_stream = (StreamRow.run_id == dead.id) & (StreamRow.id == AlertRow.stream_id)
    report = report.outerjoin(StreamRow, is_stream).where(
        AlertRow.run_id == dead.id, *_died(dead, is_of_run, is_recent), *_is_report_of_end(dead)
    )
    live_rank = (
        select(RankRow.rank)
        .where(RankRow.run_id == RunRow.id, RankRow.is_current, RankRow.is_replayed.is_(False))
        .correlate(RunRow)
    )
    is_reported = report.correlate(RunRow).exists() if is_correlated else RunRow.id.in_(report)
    return select(RunRow).where(
        *_died(RunRow, is_of_run, is_recent), ~is_reported, live_rank.exists()
    )


def unreported_milestones(session: Session, rule: str, since: float) -> list[RunRow]:
    """Return live runs that reached a milestone after `since`, without an alert that says so.

    `finished` is reached again by a run that is resumed, `first_step` once.
    """
    is_finish = rule == "finished"
    report = select(AlertRow.id).where(AlertRow.run_id == RunRow.id, AlertRow.rule == rule)
    if is_finish:
        report = report.where(AlertRow.opened_at >= RunRow.finished_at)
        is_reached = and_(RunRow.status == "completed", RunRow.finished_at >= since)
    else:
        is_reached = and_(RunRow.step > 0, RunRow.created_at >= since)
    # runs that were uploaded after their end are old
    live_rank = select(RankRow.rank).where(
        RankRow.run_id == RunRow.id, RankRow.is_current, RankRow.is_replayed.is_(False)
    )
    query = select(RunRow).where(
        is_reached, live_rank.correlate(RunRow).exists(), ~report.correlate(RunRow).exists()
    )
    return list(session.scalars(query.order_by(RunRow.id)))


def _died(run: type[RunRow], is_of_run: bool, is_recent: bool) -> Iterator[ColumnElement[bool]]:
    yield run.status.in_(UNREPORTED_STATUSES)
    if is_of_run:
        yield run.id == bindparam("run_id")
    if is_recent:
        yield run.last_seen_at > bindparam("seen_after")


def _is_report_of_end(run: type[RunRow]) -> tuple[ColumnElement[bool], ...]:
    current = (RankRow.run_id == run.id, RankRow.is_current)
    # Two selects deep, SQLAlchemy correlates nothing by itself: they would cover all runs.
    launched_at = (
        select(func.min(RankRow.first_seen_at)).where(*current).correlate(run).scalar_subquery()
    )
    lost_at = (
        select(func.max(RankRow.finished_at))
        .where(*current, RankRow.status == "lost_contact")
        .correlate(run)
        .scalar_subquery()
    )
    is_of_launch = or_(
        StreamRow.is_current, and_(AlertRow.stream_id.is_(None), AlertRow.opened_at >= launched_at)
    )
    is_of_end = or_(run.status == "oom", AlertRow.closed_at >= func.coalesce(lost_at, 0.0))
    is_report = or_(
        AlertRow.rule == run.status,
        and_(AlertRow.rule == "oom_forecast", AlertRow.severity != "note"),
    )
    return AlertRow.state == run.status, is_report, is_of_launch, is_of_end
