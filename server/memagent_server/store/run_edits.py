"""Edits of runs by people: names, notes, tags and the archive.

From a change on, a launch that resumes the run leaves its name or tags alone. Tags are stored in
the run's row, and again in a table to filter by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from memagent.errors import WireError
from memagent_server.store.citus import groups_to_lock
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import RunRow, RunTagRow

MAX_TAGS = 100
MAX_NOTES = 20_000
"""Characters. Notes are short because the version of a run's page contains them."""


def edit_run(
    session: Session,
    run: RunRow,
    *,
    name: str | None = None,
    notes: str | None = None,
    tags: Collection[str] | None = None,
    is_archived: bool | None = None,
) -> None:
    """Change a run, whose row must be locked; None leaves a part as it is."""
    if name is not None:
        run.name = name
        run.is_name_edited = True
    if notes is not None:
        run.notes = notes
    if tags is not None:
        run.are_tags_edited = True
        set_tags(session, run, tags)
    if is_archived is not None:
        run.is_archived = is_archived


def edited_parts(session: Session, run_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return name, tags, archive and the length of the notes of runs by id.

    The log of changes outlives a run, so it has no text of its notes.
    """
    parts = (
        RunRow.name,
        RunRow.tags,
        RunRow.is_archived,
        func.length(RunRow.notes).label("notes_characters"),
    )
    query = select(RunRow.id, *parts).where(RunRow.id.in_(run_ids)).order_by(RunRow.id)
    rows = [dict(row) for row in session.execute(query).mappings()]
    return {row.pop("id"): row for row in rows}


def set_tags(session: Session, run: RunRow, tags: Iterable[str]) -> None:
    """Replace a run's tags: unique, in order, at most MAX_TAGS. The run's row must be locked."""
    new_tags = list(dict.fromkeys(tags))[:MAX_TAGS]
    if new_tags == run.tags:
        return
    run.tags = new_tags
    stored = set(session.scalars(select(RunTagRow.tag).where(RunTagRow.run_id == run.id)))
    if removed := stored - set(new_tags):
        of_run = (RunTagRow.run_id == run.id, RunTagRow.tag.in_(removed))
        session.execute(delete(RunTagRow).where(*of_run))
    session.add_all(
        RunTagRow(run_id=run.id, tag=tag, created_at=run.created_at)
        for tag in new_tags
        if tag not in stored
    )


def edit_runs(
    session: Session,
    run_ids: Collection[str],
    *,
    add_tags: Collection[str] = (),
    remove_tags: Collection[str] = (),
    add_notes: str = "",
    **parts: Any,
) -> None:
    """Change several runs, all or none; `parts` are those of `edit_run`.

    Raises UnknownRunError, or WireError.
    """
    for run in _lock_all(session, run_ids):
        edit = dict(parts)
        if add_notes:
            edit["notes"] = _with_more(run, parts.get("notes"), add_notes)
        if add_tags or remove_tags:
            before = run.tags if parts.get("tags") is None else parts["tags"]
            edit["tags"] = [tag for tag in (*before, *add_tags) if tag not in remove_tags]
        edit_run(session, run, **edit)


def _with_more(run: RunRow, notes: str | None, more: str) -> str:
    """Return notes with one more paragraph."""
    before = run.notes if notes is None else notes
    text = "\n\n".join(part for part in (before.rstrip(), more.strip()) if part)
    if len(text) > MAX_NOTES:
        raise WireError(
            f"notes: those of run {run.id!r} would have {len(text):,} of {MAX_NOTES:,} characters.",
            field="notes",
        )
    return text


def change_tags(
    session: Session,
    run_ids: Collection[str],
    *,
    add: Collection[str] = (),
    remove: Collection[str] = (),
) -> None:
    """Change tags of runs; from then on the agent's tags are ignored. Raises UnknownRunError."""
    edit_runs(session, run_ids, add_tags=add, remove_tags=remove)


def archive(session: Session, run_ids: Collection[str], *, is_archived: bool) -> None:
    """Archive runs, or restore them. Raises UnknownRunError."""
    edit_runs(session, run_ids, is_archived=is_archived)


def _lock_all(session: Session, run_ids: Collection[str]) -> list[RunRow]:
    """Lock the runs by id: two requests with the same runs can't deadlock."""
    query = select(RunRow).order_by(RunRow.id).with_for_update(key_share=True)
    query = query.execution_options(populate_existing=True)
    groups = groups_to_lock(session, run_ids)
    runs = [run for ids in groups for run in session.scalars(query.where(RunRow.id.in_(ids)))]
    for run_id in run_ids:
        if run_id not in {run.id for run in runs}:
            raise UnknownRunError(run_id)
    return runs
