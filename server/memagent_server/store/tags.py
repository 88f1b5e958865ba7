"""What people do to runs in the list: tag them, archive them. Tags stand in the run's row, and once more in a table to filter by."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import Run, RunTag

MOST_TAGS = 100


def set_tags(session: Session, run: Run, tags: Iterable[str]) -> None:
    """Give a run these tags, each once and in this order, at most MOST_TAGS. The run's row must be locked."""
    wanted = list(dict.fromkeys(tags))[:MOST_TAGS]
    if wanted == run.tags:
        return
    run.tags = wanted
    kept = set(session.scalars(select(RunTag.tag).where(RunTag.run_id == run.id)))
    session.execute(
        delete(RunTag).where(RunTag.run_id == run.id, RunTag.tag.in_(kept - set(wanted)))
    )
    session.add_all(
        RunTag(run_id=run.id, tag=tag, created_at=run.created_at)
        for tag in wanted
        if tag not in kept
    )


def retag(
    session: Session,
    run_ids: Collection[str],
    *,
    add: Collection[str] = (),
    remove: Collection[str] = (),
) -> None:
    """Add tags to runs and take others away, by people: what the agent says of tags no longer counts. Raises UnknownRunError."""
    for run in _locked(session, run_ids):
        run.are_tags_edited = True
        set_tags(session, run, (tag for tag in (*run.tags, *add) if tag not in remove))


def archive(session: Session, run_ids: Collection[str], *, is_archived: bool) -> None:
    """Put runs away, or take them back: the list shows one kind or the other. Raises UnknownRunError."""
    for run in _locked(session, run_ids):
        run.is_archived = is_archived


def _locked(session: Session, run_ids: Collection[str]) -> Iterable[Run]:
    """The runs, always locked in the same order, so that two people never wait for each other."""
    query = select(Run).where(Run.id.in_(run_ids)).order_by(Run.id).with_for_update(key_share=True)
    runs = list(session.scalars(query.execution_options(populate_existing=True)))
    for run_id in run_ids:
        if run_id not in {run.id for run in runs}:
            raise UnknownRunError(run_id)
    return runs
