"""The predecessor of a run: the newest run of the same program that has ended, with its curve.

1. It's of the same project, and the session sees no other projects' runs than its token may.
2. A run that fell silent may have died of anything, and one of a few steps shows nothing: the one
   before it counts, among the newest MAX_CANDIDATES.
3. A rank gets the curve of the same rank's training device.
"""

from __future__ import annotations

from typing import get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.forecast.predecessor import MAX_POINTS, MIN_STEPS, Predecessor, RunEnd
from memagent.wire.messages import RunStart
from memagent.wire.program import program_of
from memagent_server.store.models import RunRow, StreamRow
from memagent_server.store.series import DEFAULT_FIELDS, series

MAX_CANDIDATES = 8


def find_predecessor(session: Session, start: RunStart) -> Predecessor | None:
    """Return the predecessor of the run that starts, None if there is none."""
    program = program_of(start)
    if program is None:
        return None
    query = (
        select(RunRow)
        .where(
            RunRow.program == program,
            RunRow.project == start.project,
            RunRow.id != start.run_id,
            RunRow.status.in_(get_args(RunEnd)),
            RunRow.step >= MIN_STEPS,
        )
        .order_by(RunRow.created_at.desc())
        .limit(MAX_CANDIDATES)
    )
    runs = (_describe(session, run, start) for run in session.scalars(query))
    return next((predecessor for predecessor in runs if predecessor is not None), None)


def _describe(session: Session, run: RunRow, start: RunStart) -> Predecessor | None:
    """Return the run as a predecessor, None if its samples are gone or its limit is unknown."""
    chart = series(session, run.id, rank=start.rank, points=MAX_POINTS)
    is_stream = (StreamRow.run_id == run.id, StreamRow.rank == start.rank)
    stream = session.scalar(
        select(StreamRow).where(
            *is_stream, StreamRow.device == chart.device, StreamRow.attempt == chart.attempt
        )
    )
    if stream is None:
        return None
    allocated, peak, device = (chart.series[name] for name in DEFAULT_FIELDS)
    points = sorted(
        {
            int(step): (_first(*floors), _first(*peaks))
            for step, floors, peaks in zip(
                chart.step,
                zip(allocated.last, device.last, strict=True),
                zip(peak.max, allocated.max, device.max, strict=True),
                strict=True,
            )
            if step is not None
        }.items()
    )
    if not points or not stream.limit_bytes:
        return None
    commit = start.environment.get("git_commit")
    return Predecessor(
        run_id=run.id,
        status=run.status,  # type: ignore[arg-type]  # the query selects these only
        last_step=points[-1][0],
        limit_bytes=stream.limit_bytes,
        steps=tuple(step for step, _ in points),
        floor_bytes=tuple(floor for _, (floor, _) in points),
        peak_bytes=tuple(peak for _, (_, peak) in points),
        is_same_commit=commit == run.environment.get("git_commit") if commit else None,
    )


def _first(*sizes: float | None) -> int:
    """Return the first size that was read."""
    return int(next((size for size in sizes if size is not None), 0))
