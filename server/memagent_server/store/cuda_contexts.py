"""What processes hold on a GPU apart from tensors, as agents measured it: kept by GPU, driver and torch version.

The CUDA context and what libraries load (cuBLAS, cuDNN, NCCL) differ from machine to machine by hundreds of MiB, and no source tells
them. An agent measures its own; here the measurements of runs that have ended are kept, for estimates of runs that have not begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from memagent_server.store.models import DeviceContext, Rank, Run, Stream
from memagent_server.store.paging import read_key, write_key
from memagent_server.store.timestamps import iso
from memagent_server.store.upsert import insert_if_missing

_UNKNOWN = "unknown"
_KEY = (DeviceContext.updated_at, DeviceContext.gpu, DeviceContext.driver, DeviceContext.torch)


@dataclass(frozen=True)
class KnownContext:
    """Bytes: of the newest measurement, the least and the most, over `runs` measurements."""

    newest_bytes: int
    low_bytes: int
    high_bytes: int
    runs: int


def learn_contexts(session: Session, run: Run, rank: Rank, now: float) -> None:
    """Keep what a rank measured, once it has ended. In order of the key, so that ranks that end together do not wait for each other in
    a circle."""
    streams = session.scalars(
        select(Stream)
        .where(
            Stream.run_id == rank.run_id,
            Stream.rank == rank.rank,
            Stream.attempt == rank.attempt,
            Stream.kind == "cuda",
        )
        .order_by(Stream.name)
    )
    for stream in streams:
        size = stream.latest.get("context_bytes")
        if size:
            _learn(session, stream.name, run.environment, int(size), now)


def context_of(
    session: Session, gpu: str, driver: str | None = None, torch: str | None = None
) -> KnownContext | None:
    """The newest measurement on a GPU of that name, of the same driver and torch version where they are given; None if there is none."""
    query = select(DeviceContext).where(func.lower(DeviceContext.gpu) == gpu.lower())
    if driver is not None:
        query = query.where(DeviceContext.driver == driver)
    if torch is not None:
        query = query.where(DeviceContext.torch == torch)
    found = session.scalar(query.order_by(DeviceContext.updated_at.desc()).limit(1))
    if found is None:
        return None
    return KnownContext(found.newest_bytes, found.low_bytes, found.high_bytes, found.runs)


def list_contexts(session: Session) -> list[dict[str, Any]]:
    """All that is known, the newest first, in the shape of docs/http.md."""
    found = session.scalars(select(DeviceContext).order_by(*(column.desc() for column in _KEY)))
    return [_describe(row) for row in found]


def page_contexts(
    session: Session, *, limit: int, cursor: str | None = None
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of what `list_contexts` gives, and the cursor of the next page. Raises WireError for a cursor that no page gave."""
    query = select(DeviceContext).order_by(*(column.desc() for column in _KEY)).limit(limit + 1)
    if cursor is not None:
        query = query.where(tuple_(*_KEY) < tuple_(*read_key(cursor, (float, str, str, str))))
    found = list(session.scalars(query))
    page = found[:limit]
    return [_describe(row) for row in page], write_key(page[-1], _KEY) if len(
        found
    ) > limit else None


def _describe(row: DeviceContext) -> dict[str, Any]:
    return {
        "gpu": row.gpu,
        "driver": row.driver,
        "torch": row.torch,
        "runs": row.runs,
        "newest_bytes": row.newest_bytes,
        "low_bytes": row.low_bytes,
        "high_bytes": row.high_bytes,
        "updated_at": iso(row.updated_at),
    }


def _learn(session: Session, gpu: str, environment: dict[str, Any], size: int, now: float) -> None:
    key = {
        "gpu": gpu,
        "driver": _version(environment, "driver"),
        "torch": _version(environment, "torch"),
    }
    first = {
        "runs": 0,
        "newest_bytes": size,
        "low_bytes": size,
        "high_bytes": size,
        "updated_at": now,
    }
    insert_if_missing(session, DeviceContext, {**key, **first})
    row = session.get_one(
        DeviceContext, tuple(key.values()), with_for_update=True, populate_existing=True
    )
    row.runs, row.newest_bytes, row.updated_at = row.runs + 1, size, now
    row.low_bytes, row.high_bytes = min(row.low_bytes, size), max(row.high_bytes, size)


def _version(environment: dict[str, Any], name: str) -> str:
    """Environments are free JSON: whatever is there fits its column."""
    return str(environment.get(name) or _UNKNOWN)[:100]
