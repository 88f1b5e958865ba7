"""The tables that grow with the samples: how their rows are found by run."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select

from memagent_server.store.models import Chunk, Rollup, Stream

Bulk = type[Chunk] | type[Rollup]
BULKS: tuple[Bulk, ...] = (Chunk, Rollup)


def of_run(bulk: Bulk, run_id: str) -> tuple[ColumnElement[bool], ...]:
    """Rows of a run: their keys begin with the stream, the partition follows from the run."""
    return bulk.run_id == run_id, bulk.stream_id.in_(
        select(Stream.id).where(Stream.run_id == run_id)
    )
