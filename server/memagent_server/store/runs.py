"""Runs: start or resume, finish, lose, delete.

Every change of a run locks its row first: changes of one run are serial, those of different runs
parallel.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import CursorResult, and_, delete, select
from sqlalchemy.orm import Session

from memagent.wire.messages import Finish, RunStart
from memagent.wire.program import program_of
from memagent_server.store.citus import begin_two_phases, groups_to_lock
from memagent_server.store.cuda_contexts import store_contexts
from memagent_server.store.errors import ConflictError, UnknownRunError
from memagent_server.store.failures import set_failure
from memagent_server.store.models import (
    AlertRow,
    EvaluationMarkRow,
    ForecasterStateRow,
    IncidentRow,
    PublicLinkRow,
    RankRow,
    RunRow,
    StreamRow,
)
from memagent_server.store.models.samples import SAMPLE_TABLES, of_run
from memagent_server.store.ranks import enter_rank, oom_killer_hint, settle, worst_of
from memagent_server.store.run_edits import set_tags
from memagent_server.store.run_table import note_deletion
from memagent_server.store.statements import insert_if_missing
from memagent_server.store.streams import enter_streams


def start_run(
    session: Session, message: RunStart, now: float, *, live: bool = True
) -> tuple[RunRow, bool]:
    """Create or resume a run and return True for a new one; idempotent. `live`: see `enter_rank`.

    Raises ConflictError for the id of a run that the session can't see: see `store.project_scope`.
    """
    created = insert_if_missing(
        session,
        RunRow,
        {
            "id": message.run_id,
            "project": message.project,
            "name": message.name or message.run_id,
            "status": "running",
            "attempt": message.attempt,
            "created_at": min(now, message.started_at or now),
            "last_seen_at": now,
        },
    )
    try:
        run = lock_run(session, message.run_id)
    except UnknownRunError as error:
        raise ConflictError(
            f"Run id {message.run_id!r} is taken by a run outside of this token's projects:"
            " choose another id."
        ) from error
    rank = enter_rank(
        session, run, message.rank, message.attempt, now, live=live, started_at=message.started_at
    )
    if created or (message.rank == 0 and rank.is_current):
        run.project = message.project
        if not run.is_name_edited:
            run.name = message.name or run.id
        run.user = message.user
        run.host = message.host
        run.world_size = message.world_size
        run.total_steps = message.total_steps
        run.started_at = message.started_at if message.started_at is not None else run.created_at
        run.config = message.config
        run.environment = message.environment
        run.program = program_of(message)
        if not run.are_tags_edited:
            set_tags(session, run, message.tags)
    enter_streams(session, rank, message.devices)
    return run, created


def get_run(session: Session, run_id: str) -> RunRow | None:
    return session.get(RunRow, run_id)


def lock_run(session: Session, run_id: str) -> RunRow:
    """Return the run with its row locked until the transaction ends. Raises UnknownRunError."""
    # key_share: others can still insert rows that refer to the run
    query = select(RunRow).where(RunRow.id == run_id).with_for_update(key_share=True)
    run = session.scalar(query.execution_options(populate_existing=True))
    if run is None:
        raise UnknownRunError(run_id)
    return run


def lock_runs(session: Session, run_ids: Collection[str]) -> set[str]:
    """Lock runs by id, so that two workers can't deadlock; return the ids that exist."""
    query = select(RunRow.id).order_by(RunRow.id).with_for_update(key_share=True)
    groups = groups_to_lock(session, run_ids)
    return {run_id for ids in groups for run_id in session.scalars(query.where(RunRow.id.in_(ids)))}


def last_seen_of_running(session: Session) -> dict[str, float]:
    """Return {id: when it was last seen} of all running runs."""
    query = select(RunRow.id, RunRow.last_seen_at).where(RunRow.status == "running")
    return dict(session.execute(query).all())


def is_silent_since(session: Session, run_id: str, seen_at: float) -> bool:
    """Return True if a run is running and was last seen at `seen_at`."""
    query = select(RunRow.id).where(
        RunRow.id == run_id, RunRow.status == "running", RunRow.last_seen_at == seen_at
    )
    return session.scalar(query) is not None


def finish_run(
    session: Session, run_id: str, finish: Finish, now: float, *, live: bool = True
) -> RunRow:
    """End a rank; the run ends with the last of its ranks. Raises UnknownRunError."""
    run = lock_run(session, run_id)
    rank = enter_rank(session, run, finish.rank, finish.attempt, now, live=live)
    is_open = rank.status in ("running", "lost_contact")
    if is_open or worst_of(rank.status, finish.status) != rank.status:
        rank.status = finish.status
        rank.error = finish.error
        rank.finished_at = finish.finished_at if finish.finished_at is not None else now
        store_contexts(session, run, rank, now)
    elif rank.status == finish.status and finish.finished_at is not None:
        # an import of a run that has grown
        rank.finished_at = max(rank.finished_at or 0.0, finish.finished_at)
    if rank.is_current:
        run.step = max(run.step, finish.step)
        settle(session, run, now)
        set_failure(session, run)
    return run


def lose_contact(session: Session, run_id: str, now: float) -> RunRow:
    """End the ranks that are still running as lost; the run gets its ranks' worst status.

    Raises UnknownRunError.
    """
    run = lock_run(session, run_id)
    for rank in session.scalars(
        select(RankRow).where(
            RankRow.run_id == run_id, RankRow.is_current, RankRow.status == "running"
        )
    ):
        rank.status = "lost_contact"
        rank.finished_at = now
        rank.error = oom_killer_hint(session, rank)
        store_contexts(session, run, rank, now)
    settle(session, run, now)
    set_failure(session, run)
    return run


def delete_run(session: Session, run_id: str) -> bool:
    """Delete a run and everything that belongs to it; return False if there was none."""
    begin_two_phases(session, run_id)
    streams = select(StreamRow.id).where(StreamRow.run_id == run_id)
    belongs = (
        # on Citus, no foreign key of these refers to the run
        (EvaluationMarkRow, EvaluationMarkRow.stream_id.in_(streams)),
        (ForecasterStateRow, ForecasterStateRow.stream_id.in_(streams)),
        (AlertRow, AlertRow.run_id == run_id),
        (IncidentRow, IncidentRow.run_id == run_id),
        # and these have none on any database
        (PublicLinkRow, PublicLinkRow.run_id == run_id),
        *((table, and_(*of_run(table, run_id))) for table in SAMPLE_TABLES),
    )
    for model, condition in belongs:
        session.execute(delete(model).where(condition).execution_options(synchronize_session=False))
    result = session.execute(delete(RunRow).where(RunRow.id == run_id))
    assert isinstance(result, CursorResult)
    if result.rowcount:
        note_deletion(session, run_id)
    return bool(result.rowcount)
