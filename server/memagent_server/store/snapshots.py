"""Snapshots: the holders of a rank's memory, stored with the run."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, select
from sqlalchemy.orm import Session, defer

from memagent.wire.codec import to_builtins
from memagent.wire.messages import SnapshotMessage, Suspect
from memagent_server.schemas import snapshots as schemas
from memagent_server.store.events import oom_events
from memagent_server.store.models import RankRow, SnapshotRow
from memagent_server.store.reading import newest_page, to_schema
from memagent_server.store.runs import lock_run

_COMPRESSION_LEVEL = 6
_OPTIONAL: dict[str, Any] = {
    "file": "",
    "line": 0,
    "function": None,
    "bytes_per_step": None,
    "confidence": 0.0,
    "fix": "",
    "source": (),
    "source_first_line": 0,
}
"""Fields of a suspect that a message omits if they have these values."""


def add_snapshot(
    session: Session, run_id: str, message: SnapshotMessage, now: float
) -> SnapshotRow:
    """Store a snapshot, or return the one that is stored under its key. Raises UnknownRunError."""
    lock_run(session, run_id)
    stored = session.scalar(
        select(SnapshotRow).where(
            SnapshotRow.run_id == run_id,
            SnapshotRow.rank == message.rank,
            SnapshotRow.attempt == message.attempt,
            SnapshotRow.seq == message.seq,
        )
    )
    if stored is not None:
        return stored
    body = {"stacks": to_builtins(message.stacks), "tensors": message.tensors}
    snapshot = SnapshotRow(
        run_id=run_id,
        rank=message.rank,
        attempt=message.attempt,
        seq=message.seq,
        device=message.device,
        step=message.step,
        at=message.time_s or now,
        method=message.method,
        why=message.why,
        suspects=to_builtins(message.suspects),
        notes=list(message.notes),
        has_stacks=bool(message.stacks),
        has_viewer=bool(message.viewer),
        viewer=message.viewer or None,
        body=zlib.compress(msgspec.msgpack.encode(body), _COMPRESSION_LEVEL),
    )
    session.add(snapshot)
    session.flush()
    return snapshot


def list_snapshots(session: Session, run_id: str) -> list[schemas.Snapshot]:
    """Return all snapshots of a run without their stacks and tensors, the newest first."""
    query = _without_body(select(SnapshotRow).where(SnapshotRow.run_id == run_id))
    return [_describe(snapshot) for snapshot in session.scalars(query)]


def page_snapshots(
    session: Session, run_id: str, *, limit: int, cursor: str | None = None
) -> schemas.SnapshotPage:
    """Return a page of `list_snapshots`. Raises WireError for a bad cursor."""
    rows, next_cursor = newest_page(
        session,
        SnapshotRow,
        SnapshotRow.run_id == run_id,
        limit=limit,
        cursor=cursor,
        options=[defer(SnapshotRow.body)],
    )
    return schemas.SnapshotPage(run_id, [_describe(row) for row in rows], next_cursor)


def read_snapshot(session: Session, run_id: str, snapshot_id: int) -> schemas.SnapshotDetail | None:
    """Return a snapshot of a run with its stacks and tensors, None if it doesn't exist."""
    snapshot = session.get(SnapshotRow, (run_id, snapshot_id))
    if snapshot is None:
        return None
    body = msgspec.msgpack.decode(zlib.decompress(snapshot.body))
    return to_schema(
        schemas.SnapshotDetail, snapshot, suspects=_suspects(snapshot.suspects), **body
    )


def viewer_of(session: Session, run_id: str, snapshot_id: int) -> tuple[SnapshotRow, bytes] | None:
    """Return a snapshot and its zlib-compressed viewer page; None if there is no such page."""
    snapshot = session.get(SnapshotRow, (run_id, snapshot_id), options=[defer(SnapshotRow.body)])
    if snapshot is None or snapshot.viewer is None:
        return None
    return snapshot, snapshot.viewer


def has_snapshot(connection: Connection, run_id: str, rank: int, attempt: int) -> bool:
    """Return True if a rank has sent a snapshot in this launch."""
    query = select(SnapshotRow.id).where(
        SnapshotRow.run_id == run_id, SnapshotRow.rank == rank, SnapshotRow.attempt == attempt
    )
    return connection.scalar(query.limit(1)) is not None


def suspects_of(session: Session, run_id: str) -> list[schemas.SuspectByRank]:
    """Return the newest launch's suspects, by falling confidence.

    1. They come from the newest snapshot of each rank, device and method, and from `oom` events:
       a process that runs out of memory may have no time to deliver a snapshot.
    2. A line that several ranks suspect is one suspect with several `ranks`.
    """
    merged: dict[tuple[Any, ...], schemas.SuspectByRank] = {}
    for suspect in (*_snapshot_suspects(session, run_id), *_oom_suspects(session, run_id)):
        key = (suspect.file, suspect.line, suspect.kind)
        first = merged.setdefault(key, suspect)
        ranks = sorted({*first.ranks, *suspect.ranks})
        merged[key] = msgspec.structs.replace(first, ranks=ranks)
    return sorted(merged.values(), key=lambda suspect: -suspect.confidence)


def _snapshot_suspects(session: Session, run_id: str) -> Iterator[schemas.SuspectByRank]:
    query = (
        select(SnapshotRow)
        .join(
            RankRow,
            (RankRow.run_id == SnapshotRow.run_id)
            & (RankRow.rank == SnapshotRow.rank)
            & (RankRow.attempt == SnapshotRow.attempt),
        )
        .where(SnapshotRow.run_id == run_id, RankRow.is_current)
    )
    newest: dict[tuple[int, str, str], SnapshotRow] = {}
    for snapshot in session.scalars(_without_body(query)):
        newest.setdefault((snapshot.rank, snapshot.device, snapshot.method), snapshot)
    for snapshot in newest.values():
        for suspect in snapshot.suspects:
            yield schemas.SuspectByRank(
                **{**_OPTIONAL, **suspect},
                ranks=[snapshot.rank],
                step=snapshot.step,
                snapshot=snapshot.id,
            )


def _oom_suspects(session: Session, run_id: str) -> Iterator[schemas.SuspectByRank]:
    for event in oom_events(session, run_id):
        reported = event.data.get("suspects")
        for item in reported if isinstance(reported, list) else ():
            if not isinstance(item, dict):
                continue
            # an event's data is free JSON: only well-formed suspects count
            with suppress(msgspec.ValidationError):
                values = {name: value for name, value in item.items() if value != ""}
                suspect = to_builtins(msgspec.convert(values, Suspect))
                yield schemas.SuspectByRank(
                    **{**_OPTIONAL, **suspect}, ranks=[event.rank], step=event.step, snapshot=None
                )


def _without_body(query: Select[Any]) -> Select[Any]:
    return query.order_by(SnapshotRow.id.desc()).options(defer(SnapshotRow.body))


def _describe(snapshot: SnapshotRow) -> schemas.Snapshot:
    return to_schema(schemas.Snapshot, snapshot, suspects=_suspects(snapshot.suspects))


def _suspects(stored: list[Any]) -> list[schemas.SuspectLine]:
    return [schemas.SuspectLine(**{**_OPTIONAL, **suspect}) for suspect in stored]
