"""GPU memory of processes outside of tensors, as agents measured it: by GPU, driver and torch
version.

The CUDA context and what libraries load (cuBLAS, cuDNN, NCCL) differ between machines by hundreds
of MiB, and no documentation lists them. Agents measure their own. The measurements of ended runs
are stored here, for estimates of runs that have not started.
"""

from __future__ import annotations

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.predictions import ContextPage, CudaContext
from memagent_server.store.models import DeviceContextRow, RankRow, RunRow, StreamRow
from memagent_server.store.reading import decode_cursor, encode_cursor, to_schema
from memagent_server.store.statements import insert_if_missing

_KEY = (
    DeviceContextRow.updated_at,
    DeviceContextRow.gpu,
    DeviceContextRow.driver,
    DeviceContextRow.torch,
)


def store_contexts(session: Session, run: RunRow, rank: RankRow, now: float) -> None:
    """Store the measurements of a rank that has ended.

    They are stored in order of the key: ranks that end at the same time can't deadlock.
    """
    streams = session.scalars(
        select(StreamRow)
        .where(
            StreamRow.run_id == rank.run_id,
            StreamRow.rank == rank.rank,
            StreamRow.attempt == rank.attempt,
            StreamRow.kind == "cuda",
        )
        .order_by(StreamRow.name)
    )
    for stream in streams:
        size = stream.latest.get("context_bytes")
        if size:
            _store_context(session, stream.name, run.environment, int(size), now)


def context_of(
    session: Session, gpu: str, driver: str | None = None, torch: str | None = None
) -> CudaContext | None:
    """Return the newest measurement of a GPU, optionally with a driver or torch version."""
    query = select(DeviceContextRow).where(func.lower(DeviceContextRow.gpu) == gpu.lower())
    if driver is not None:
        query = query.where(DeviceContextRow.driver == driver)
    if torch is not None:
        query = query.where(DeviceContextRow.torch == torch)
    row = session.scalar(query.order_by(DeviceContextRow.updated_at.desc()).limit(1))
    return None if row is None else to_schema(CudaContext, row)


def measured_gpus(session: Session) -> list[str]:
    """Return the names of all measured GPUs, the newest measurement first."""
    order = (column.desc() for column in _KEY)
    return list(dict.fromkeys(session.scalars(select(DeviceContextRow.gpu).order_by(*order))))


def page_contexts(session: Session, *, limit: int, cursor: str | None = None) -> ContextPage:
    """Return a page of measurements, the newest first. Raises WireError for a bad cursor."""
    query = select(DeviceContextRow).order_by(*(column.desc() for column in _KEY)).limit(limit + 1)
    if cursor is not None:
        query = query.where(tuple_(*_KEY) < tuple_(*decode_cursor(cursor, (float, str, str, str))))
    rows = list(session.scalars(query))
    page = rows[:limit]
    return ContextPage(
        contexts=[to_schema(CudaContext, row) for row in page],
        next_cursor=encode_cursor(page[-1], _KEY) if len(rows) > limit else None,
    )


def _store_context(
    session: Session, gpu: str, environment: JsonObject, size: int, now: float
) -> None:
    # the environment is free JSON: cut its versions to the columns' width
    driver, torch = (str(environment.get(name) or "unknown")[:100] for name in ("driver", "torch"))
    insert_if_missing(
        session,
        DeviceContextRow,
        {
            "gpu": gpu,
            "driver": driver,
            "torch": torch,
            "runs": 0,
            "newest_bytes": size,
            "low_bytes": size,
            "high_bytes": size,
            "updated_at": now,
        },
    )
    row = session.get_one(
        DeviceContextRow, (gpu, driver, torch), with_for_update=True, populate_existing=True
    )
    row.runs += 1
    row.newest_bytes = size
    row.low_bytes = min(row.low_bytes, size)
    row.high_bytes = max(row.high_bytes, size)
    row.updated_at = now
