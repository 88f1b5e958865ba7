"""Events: what an agent reports once, such as a checkpoint, and what people request of a script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, true, update
from sqlalchemy.orm import Session

from memagent.wire import messages
from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.runs import EventPage, RunCommand, RunEvent
from memagent_server.store.errors import ConflictError
from memagent_server.store.models import EventRow, RankRow, RunRow
from memagent_server.store.reading import newest_page, text_keys, to_schema
from memagent_server.store.statements import CompiledSelect

MAX_PENDING = 1_000
"""Events of a run that a turn takes: as many as one batch has at most."""
_PENDING_ALERT = (EventRow.is_pending, EventRow.kind == messages.SCRIPT_ALERT)
EventFields = tuple[str, int, str, int, int, JsonObject]


def list_events(
    session: Session, run_id: str, *, kind: str | None = None, limit: int, cursor: str | None = None
) -> EventPage:
    """Return a page of a run's events, the newest first. Raises WireError for a bad cursor."""
    conditions = [EventRow.run_id == run_id, *([] if kind is None else [EventRow.kind == kind])]
    rows, next_cursor = newest_page(session, EventRow, *conditions, limit=limit, cursor=cursor)
    return EventPage(run_id, [to_schema(RunEvent, row) for row in rows], next_cursor)


def events_after(session: Session, last_ids: Mapping[str, int]) -> Iterable[EventFields]:
    """Return (run, id, kind, rank, attempt, data) of runs' events after the given ids, by id."""
    keys = text_keys(session, last_ids.items())
    query = (
        select(
            EventRow.run_id,
            EventRow.id,
            EventRow.kind,
            EventRow.rank,
            EventRow.attempt,
            EventRow.data,
        )
        .select_from(keys)
        .join(EventRow, (EventRow.run_id == keys.c.first) & (EventRow.id > keys.c.second))
    )
    return session.execute(query.order_by(EventRow.id))


def runs_with_pending_events(session: Session) -> list[str]:
    """Return the ids of runs with events that no alert was made of yet."""
    query = select(EventRow.run_id).where(*_PENDING_ALERT).distinct().limit(MAX_PENDING)
    return list(session.scalars(query))


def pending_events(session: Session, run_id: str) -> list[EventRow]:
    """Return the oldest MAX_PENDING of a run's events that no alert was made of yet."""
    query = select(EventRow).where(EventRow.run_id == run_id, *_PENDING_ALERT)
    return list(session.scalars(query.order_by(EventRow.id).limit(MAX_PENDING)))


def take_events(session: Session, run_id: str, event_ids: Sequence[int]) -> None:
    """Mark events as done. The run's row must be locked."""
    if event_ids:
        session.execute(
            update(EventRow)
            .where(EventRow.run_id == run_id, EventRow.id.in_(event_ids))
            .values(is_pending=False)
        )


def oom_events(session: Session, run_id: str) -> list[EventRow]:
    """Return the `oom` events of the newest launch, the oldest first."""
    query = (
        select(EventRow)
        .join(
            RankRow,
            (RankRow.run_id == EventRow.run_id)
            & (RankRow.rank == EventRow.rank)
            & (RankRow.attempt == EventRow.attempt),
        )
        .where(EventRow.run_id == run_id, EventRow.kind == "oom", RankRow.is_current)
        .order_by(EventRow.id)
    )
    return list(session.scalars(query))


def last_checkpoint_step(session: Session, run_id: str, step: int) -> int | None:
    """Return the step of the newest checkpoint event up to `step`."""
    query = select(EventRow.step).where(
        EventRow.run_id == run_id, EventRow.kind == "checkpoint", EventRow.step <= step
    )
    return session.scalar(query.order_by(EventRow.id.desc()).limit(1))


# -- requests of people to scripts ----------------------------------------------------------------

MAX_LISTED = 20
_PENDING_COLUMNS: tuple[Any, ...] = (EventRow.id, EventRow.data)
_PENDING = CompiledSelect(
    select(*_PENDING_COLUMNS)
    .where(
        EventRow.run_id == bindparam("of_run"),
        EventRow.attempt == bindparam("of_attempt"),
        EventRow.is_pending == true(),
        EventRow.kind == messages.COMMAND,
    )
    .order_by(EventRow.id)
)


def add_command(
    session: Session, run: RunRow, kind: str, *, by: str | None, now: float
) -> RunCommand:
    """Request something of a running script; an open request of the kind is returned instead.

    1. A request is an event of the kind `command`. It's pending until the agent has answered it,
       and each reply to a batch of rank 0 repeats it until then.
    2. The agent answers by events of the kind `command_reply`. Agents can't add requests: such an
       event of theirs counts as an answer.
    3. The run's row must be locked. Raises ConflictError if the run can't take requests.
    """
    if run.status != "running":
        raise ConflictError(f"Run {run.id} has ended ({run.status}): it takes no commands.")
    if not run.environment.get("takes_commands"):
        raise ConflictError(
            f"The script of run {run.id} takes no commands: pass on_command to memagent.attach."
        )
    attempt = session.scalar(
        select(RankRow.attempt).where(
            RankRow.run_id == run.id, RankRow.rank == 0, RankRow.is_current
        )
    )
    # of this launch: a later one of the run must not be stopped by a request to this one
    of_launch = (EventRow.run_id == run.id, EventRow.attempt == attempt, EventRow.is_pending)
    query = select(EventRow).where(*of_launch, EventRow.kind == messages.COMMAND)
    for row in session.scalars(query):
        if row.data.get("command") == kind:
            return _describe(row, ())
    row = EventRow(
        run_id=run.id,
        rank=0,
        attempt=run.attempt if attempt is None else attempt,
        step=run.step,
        at=now,
        kind=messages.COMMAND,
        data={"command": kind, "by": by},
        is_pending=True,
    )
    session.add(row)
    session.flush()
    return _describe(row, ())


def list_commands(session: Session, run_id: str) -> list[RunCommand]:
    """Return the newest MAX_LISTED requests to a run, the newest first."""
    kinds = (messages.COMMAND, messages.COMMAND_REPLY)
    query = select(EventRow).where(EventRow.run_id == run_id, EventRow.kind.in_(kinds))
    rows = list(session.scalars(query.order_by(EventRow.id.desc()).limit(4 * MAX_LISTED)))
    replies = [row for row in reversed(rows) if row.kind == messages.COMMAND_REPLY]
    requests = [row for row in rows if row.kind == messages.COMMAND]
    return [
        _describe(row, [reply for reply in replies if reply.data.get("id") == row.id])
        for row in requests[:MAX_LISTED]
    ]


def pending_commands(connection: Connection, run_id: str, attempt: int) -> list[messages.Command]:
    """Return the requests to a launch that its agent has yet to answer."""
    rows = _PENDING.rows(connection, {"of_run": run_id, "of_attempt": attempt})
    return [
        messages.Command(kind=str(data.get("command")), data={"id": event_id, "by": data.get("by")})
        for event_id, data in rows
    ]


def settle_commands(connection: Connection, run_id: str, events: Sequence[messages.Event]) -> None:
    """Stop repeating the requests that these events answer."""
    ids = [event.data.get("id") for event in events if event.kind == messages.COMMAND_REPLY]
    answered = [number for number in ids if type(number) is int and 0 < number < 2**62]
    if answered:
        connection.execute(
            update(EventRow)
            .where(
                EventRow.run_id == run_id,
                EventRow.kind == messages.COMMAND,
                EventRow.id.in_(answered),
            )
            .values(is_pending=False)
        )


def _describe(row: EventRow, replies: Sequence[EventRow]) -> RunCommand:
    last = replies[-1].data if replies else {}
    state = last.get("state")
    values: dict[str, Any] = {
        "command": str(row.data.get("command")),
        "by": row.data.get("by"),
        "state": state if state in messages.COMMAND_STATES else "requested",
        "text": str(last.get("text") or "")[:500],
    }
    return to_schema(RunCommand, row, **values)
