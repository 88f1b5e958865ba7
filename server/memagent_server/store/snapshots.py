"""Snapshots: who held the memory of a rank, kept with the run for good."""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Any

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session, defer

from memagent.wire.codec import to_builtins
from memagent.wire.messages import SnapshotMessage, Suspect
from memagent_server.store.models import Event, Rank, Snapshot
from memagent_server.store.paging import newest
from memagent_server.store.runs import lock_run
from memagent_server.store.timestamps import iso

_FACTS = ("rank", "attempt", "seq", "device", "step", "method", "why")
_LEVEL = 6


def add_snapshot(session: Session, run_id: str, message: SnapshotMessage, now: float) -> Snapshot:
    """Keep a snapshot; one whose key is there already is kept once. Raises UnknownRunError."""
    lock_run(session, run_id)
    known = session.scalar(
        select(Snapshot).where(
            Snapshot.run_id == run_id,
            Snapshot.rank == message.rank,
            Snapshot.attempt == message.attempt,
            Snapshot.seq == message.seq,
        )
    )
    if known is not None:
        return known
    large = {"stacks": to_builtins(message.stacks), "tensors": message.tensors}
    snapshot = Snapshot(
        run_id=run_id,
        at=message.time_s or now,
        suspects=to_builtins(message.suspects),
        notes=list(message.notes),
        has_stacks=bool(message.stacks),
        has_viewer=bool(message.viewer),
        viewer=message.viewer or None,
        body=zlib.compress(msgspec.msgpack.encode(large), _LEVEL),
        **{name: getattr(message, name) for name in _FACTS},
    )
    session.add(snapshot)
    session.flush()
    return snapshot


def list_snapshots(session: Session, run_id: str) -> list[dict[str, Any]]:
    """All of a run without their stacks and tensors, newest first, in the shape of docs/http.md."""
    query = (
        select(Snapshot)
        .where(Snapshot.run_id == run_id)
        .order_by(Snapshot.id.desc())
        .options(defer(Snapshot.body))
    )
    return [_describe(snapshot) for snapshot in session.scalars(query)]


def page_snapshots(
    session: Session, run_id: str, *, limit: int, cursor: str | None = None
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of what `list_snapshots` gives, and the cursor of the next page."""
    of_run, without_body = Snapshot.run_id == run_id, defer(Snapshot.body)
    page, next_cursor = newest(
        session, Snapshot, of_run, limit=limit, cursor=cursor, options=[without_body]
    )
    return [_describe(snapshot) for snapshot in page], next_cursor


def read_snapshot(session: Session, run_id: str, snapshot_id: int) -> dict[str, Any] | None:
    """One of a run, whole; None where there is none of that number."""
    snapshot = session.get(Snapshot, snapshot_id)
    if snapshot is None or snapshot.run_id != run_id:
        return None
    return {**_describe(snapshot), **msgspec.msgpack.decode(zlib.decompress(snapshot.body))}


def viewer_of(session: Session, run_id: str, snapshot_id: int) -> tuple[Snapshot, bytes] | None:
    """A snapshot of a run and zlib of torch's own page of it; None where there is no such snapshot, or it came without."""
    snapshot = session.get(Snapshot, snapshot_id, options=[defer(Snapshot.body)])
    if snapshot is None or snapshot.run_id != run_id or snapshot.viewer is None:
        return None
    return snapshot, snapshot.viewer


def suspects_of(session: Session, run_id: str) -> list[dict[str, Any]]:
    """Who is blamed in the newest snapshot of each rank of the newest launch, and in the last words of those that ran out of memory, the
    surest first; a line blamed on several ranks is one suspect with several `ranks`. `snapshot` is None where none has come."""
    query = (
        select(Snapshot)
        .join(
            Rank,
            (Rank.run_id == Snapshot.run_id)
            & (Rank.rank == Snapshot.rank)
            & (Rank.attempt == Snapshot.attempt),
        )
        .where(Snapshot.run_id == run_id, Rank.is_current)
        .order_by(Snapshot.id.desc())
        .options(defer(Snapshot.body))
    )
    newest: dict[tuple[int, str, str], Snapshot] = {}
    for snapshot in session.scalars(query):
        newest.setdefault((snapshot.rank, snapshot.device, snapshot.method), snapshot)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    told = [
        (each.rank, {"step": each.step, "snapshot": each.id}, each.suspects)
        for each in newest.values()
    ]
    for rank, seen, suspects in [*told, *_told_at_death(session, run_id)]:
        for suspect in suspects:
            key = tuple(suspect.get(name) for name in ("file", "line", "kind"))
            row = found.setdefault(key, {**_BLANK, **suspect, **seen, "ranks": []})
            row["ranks"] = sorted({*row["ranks"], rank})
    return sorted(found.values(), key=lambda row: -row["confidence"])


def _told_at_death(
    session: Session, run_id: str
) -> list[tuple[int, dict[str, Any], list[dict[str, Any]]]]:
    """Rank, when, and the suspects in the last words of the newest launch: who dies may have no time left to deliver a snapshot."""
    query = (
        select(Event)
        .join(
            Rank,
            (Rank.run_id == Event.run_id)
            & (Rank.rank == Event.rank)
            & (Rank.attempt == Event.attempt),
        )
        .where(Event.run_id == run_id, Event.kind == "oom", Rank.is_current)
        .order_by(Event.id)
    )
    return [
        (event.rank, {"step": event.step, "snapshot": None}, _readable(event.data.get("suspects")))
        for event in session.scalars(query)
    ]


def _readable(suspects: Any) -> list[dict[str, Any]]:
    """Those of an event's that are suspects: what is in an event is checked by nobody."""
    found = []
    for suspect in suspects if isinstance(suspects, list) else ():
        with suppress(msgspec.ValidationError):
            kept = (
                {name: value for name, value in suspect.items() if value != ""}
                if isinstance(suspect, dict)
                else {}
            )
            found.append(to_builtins(msgspec.convert(kept, Suspect)))
    return found


def has_snapshot(connection: Connection, run_id: str, rank: int, attempt: int) -> bool:
    """Whether a rank has sent one in this launch."""
    query = select(Snapshot.id).where(
        Snapshot.run_id == run_id, Snapshot.rank == rank, Snapshot.attempt == attempt
    )
    return connection.scalar(query.limit(1)) is not None


_BLANK: dict[str, Any] = {
    "file": "", "line": 0, "function": None, "bytes_per_step": None, "confidence": 0.0, "fix": "",
}  # fmt: skip
"""What a message leaves out where it has the default."""


def _describe(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "id": snapshot.id,
        "at": iso(snapshot.at),
        **{name: getattr(snapshot, name) for name in _FACTS},
        "suspects": [{**_BLANK, **suspect} for suspect in snapshot.suspects],
        "notes": snapshot.notes,
        "has_stacks": snapshot.has_stacks,
        "has_viewer": snapshot.has_viewer,
    }
