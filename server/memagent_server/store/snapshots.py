"""Snapshots: who held the memory of a rank, kept with the run for good."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from memagent.wire.codec import to_builtins
from memagent.wire.messages import SnapshotMessage
from memagent_server.store.models import Rank, Snapshot
from memagent_server.store.runs import lock_run
from memagent_server.store.times import iso

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
    query = select(Snapshot).where(Snapshot.run_id == run_id).order_by(Snapshot.id.desc()).options(defer(Snapshot.body))
    return [_describe(snapshot) for snapshot in session.scalars(query)]


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
    """Who is blamed in the newest snapshot of each rank of the newest launch, the surest first; a line blamed on several ranks is one
    suspect with several `ranks`."""
    query = (
        select(Snapshot)
        .join(
            Rank, (Rank.run_id == Snapshot.run_id) & (Rank.rank == Snapshot.rank) & (Rank.attempt == Snapshot.attempt)
        )
        .where(Snapshot.run_id == run_id, Rank.is_current)
        .order_by(Snapshot.id.desc())
        .options(defer(Snapshot.body))
    )
    newest: dict[tuple[int, str, str], Snapshot] = {}
    for snapshot in session.scalars(query):
        newest.setdefault((snapshot.rank, snapshot.device, snapshot.method), snapshot)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for snapshot in newest.values():
        for suspect in snapshot.suspects:
            key = tuple(suspect.get(name) for name in ("file", "line", "kind"))
            row = found.setdefault(
                key, {**_BLANK, **suspect, "ranks": [], "step": snapshot.step, "snapshot": snapshot.id}
            )
            row["ranks"] = sorted({*row["ranks"], snapshot.rank})
    return sorted(found.values(), key=lambda row: -row["confidence"])


def has_snapshot(session: Session, run_id: str, rank: int, attempt: int) -> bool:
    """Whether a rank has sent one in this launch."""
    query = select(Snapshot.id).where(Snapshot.run_id == run_id, Snapshot.rank == rank, Snapshot.attempt == attempt)
    return session.scalar(query.limit(1)) is not None


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
