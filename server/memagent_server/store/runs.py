"""Runs: start or resume, finish, lose, delete. Lists and descriptions live in `run_list` and `summaries`.

Every change of a run locks its row first, so that changes of one run happen one after another and those of different runs at once.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from memagent.wire.messages import Finish, RunStart
from memagent_server.store.bulk import BULKS, of_run
from memagent_server.store.cuda_contexts import learn_contexts
from memagent_server.store.errors import ConflictError, UnknownRunError
from memagent_server.store.models import Rank, Run
from memagent_server.store.oom_killer import probable_cause
from memagent_server.store.ranks import enter_rank, settle, worst_of
from memagent_server.store.run_list import RunPage, RunQuery, list_runs
from memagent_server.store.streams import enter_streams
from memagent_server.store.summaries import describe, summarize
from memagent_server.store.tags import set_tags
from memagent_server.store.upsert import insert_if_missing

__all__ = [
    "RunPage",
    "RunQuery",
    "delete_run",
    "describe",
    "finish_run",
    "get_run",
    "list_runs",
    "lock_run",
    "lock_runs",
    "lose_contact",
    "start_run",
    "summarize",
]


def start_run(
    session: Session, message: RunStart, now: float, *, live: bool = True
) -> tuple[Run, bool]:
    """Create or resume a run, and say whether it was created. Saying it twice changes nothing. `live`: see `enter_rank`.

    Raises ConflictError where the id is that of a run which the session does not see: see `store.limits`.
    """
    created = insert_if_missing(session, Run, _blank(message, now))
    try:
        run = lock_run(session, message.run_id)
    except UnknownRunError as error:
        taken = f"the run id {message.run_id!r} is taken by a run that this token may not see: choose another"
        raise ConflictError(taken) from error
    rank = enter_rank(session, run, message.rank, message.attempt, now, live=live)
    if created or (message.rank == 0 and rank.is_current):
        _describe(run, message)
        if not run.are_tags_edited:
            set_tags(session, run, message.tags)
    enter_streams(session, rank, message.devices)
    return run, created


def get_run(session: Session, run_id: str) -> Run | None:
    return session.get(Run, run_id)


def lock_run(session: Session, run_id: str) -> Run:
    """The run, its row locked until the transaction ends. Raises UnknownRunError."""
    query = (
        select(Run).where(Run.id == run_id).with_for_update(key_share=True)
    )  # others may go on referring to the run
    run = session.scalar(query.execution_options(populate_existing=True))
    if run is None:
        raise UnknownRunError(run_id)
    return run


def lock_runs(session: Session, run_ids: Collection[str]) -> set[str]:
    """Lock the rows of runs, always in the same order; returns those that exist."""
    query = (
        select(Run.id).where(Run.id.in_(run_ids)).order_by(Run.id).with_for_update(key_share=True)
    )
    return set(session.scalars(query))


def finish_run(
    session: Session, run_id: str, finish: Finish, now: float, *, live: bool = True
) -> Run:
    """A rank has ended; the run ends with the last of its ranks. Raises UnknownRunError."""
    run = lock_run(session, run_id)
    rank = enter_rank(session, run, finish.rank, finish.attempt, now, live=live)
    if (
        rank.status in ("running", "lost_contact")
        or worst_of(rank.status, finish.status) != rank.status
    ):
        rank.status, rank.error = finish.status, finish.error
        rank.finished_at = finish.finished_at if finish.finished_at is not None else now
        learn_contexts(session, run, rank, now)
    if rank.is_current:
        run.step = max(run.step, finish.step)
        settle(session, run, now)
    return run


def lose_contact(session: Session, run_id: str, now: float) -> Run:
    """Give up the ranks that are still running; the run ends as the worst of its ranks. Raises UnknownRunError."""
    run = lock_run(session, run_id)
    for rank in session.scalars(
        select(Rank).where(Rank.run_id == run_id, Rank.is_current, Rank.status == "running")
    ):
        rank.status, rank.finished_at, rank.error = (
            "lost_contact",
            now,
            probable_cause(session, rank),
        )
        learn_contexts(session, run, rank, now)
    settle(session, run, now)
    return run


def delete_run(session: Session, run_id: str) -> bool:
    """Delete a run and all that belongs to it; whether there was one."""
    for bulk in BULKS:  # no foreign keys lead from these
        session.execute(
            delete(bulk).where(*of_run(bulk, run_id)).execution_options(synchronize_session=False)
        )
    return bool(session.execute(delete(Run).where(Run.id == run_id)).rowcount)  # type: ignore[attr-defined]


def _blank(message: RunStart, now: float) -> dict[str, object]:
    return {
        "id": message.run_id,
        "project": message.project,
        "name": message.name or message.run_id,
        "status": "running",
        "attempt": message.attempt,
        "created_at": now,
        "last_seen_at": now,
    }


def _describe(run: Run, message: RunStart) -> None:
    run.project, run.name = message.project, message.name or run.id
    run.user, run.host = message.user, message.host
    run.world_size, run.total_steps = message.world_size, message.total_steps
    run.started_at = message.started_at if message.started_at is not None else run.created_at
    run.config, run.environment = message.config, message.environment
