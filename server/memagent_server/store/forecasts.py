"""Forecasts: a row for every material change of a stream's forecast; the newest row is current."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, insert, select
from sqlalchemy.orm import Session, aliased

from memagent.forecast import Forecast as ForecastResult
from memagent.forecast.types import PAGING_LEVELS
from memagent.wire.messages import Risk
from memagent_server.schemas import predictions as schemas
from memagent_server.store.models import ForecastRow, StreamRow
from memagent_server.store.reading import newest_page, to_schema
from memagent_server.store.statements import CompiledSelect

MAX_HISTORY = 500
FORECAST_COLUMNS = (
    "step",
    "level",
    "oom_probability",
    "cause",
    "eta_step",
    "eta_low",
    "eta_high",
    "eta_s",
    "used_bytes",
    "limit_bytes",
    "growth_bytes_per_step",
    "growing_since_step",
    "predecessor",
)
"""Columns that are fields of the forecaster's result."""

_of_stream = aliased(ForecastRow)


def is_newest_forecast(run_id: Any = StreamRow.run_id) -> ColumnElement[bool]:
    """Build the condition that a forecast is its stream's newest.

    `run_id` names one run: Citus then asks its node only.
    """
    newest = select(func.max(_of_stream.id)).where(
        _of_stream.run_id == run_id, _of_stream.stream_id == StreamRow.id
    )
    return and_(
        ForecastRow.run_id == StreamRow.run_id,
        ForecastRow.id == newest.correlate(StreamRow).scalar_subquery(),
    )


_NEWEST_OF_RANK = CompiledSelect(
    select(StreamRow.device, *(getattr(ForecastRow, name) for name in FORECAST_COLUMNS))
    .join(ForecastRow, is_newest_forecast(bindparam("run_id")))
    .select_from(StreamRow)
    .where(
        StreamRow.run_id == bindparam("run_id"),
        StreamRow.rank == bindparam("rank"),
        StreamRow.is_current,
    )
    .order_by(StreamRow.id)
)


def add_forecasts(
    session: Session, results: Sequence[tuple[str, int, ForecastResult]], now: float
) -> None:
    """Store results of forecasters: (run, stream, result)."""
    rows = [
        {
            "run_id": run_id,
            "stream_id": stream_id,
            "at": now,
            **{name: getattr(result, name) for name in FORECAST_COLUMNS},
        }
        for run_id, stream_id, result in results
    ]
    if rows:
        session.execute(insert(ForecastRow), rows)


def latest_risk(connection: Connection, run_id: str, rank: int) -> Risk | None:
    """Return the worst of the newest forecasts of a rank's devices, None before the first one."""
    rows = _NEWEST_OF_RANK.rows(connection, {"run_id": run_id, "rank": rank})
    if not rows:
        return None
    probability = 1 + FORECAST_COLUMNS.index("oom_probability")
    device, *values = max(rows, key=lambda row: row[probability])
    return Risk(rank=rank, device=device, **dict(zip(FORECAST_COLUMNS, values, strict=True)))


def forecasts_of(
    session: Session, run_id: str, *, limit: int = MAX_HISTORY, cursor: str | None = None
) -> schemas.Forecasts:
    """Return the newest forecast of each current stream, and a page of the changes.

    Raises WireError for a bad cursor.
    """
    changes, next_cursor = newest_page(
        session, ForecastRow, ForecastRow.run_id == run_id, limit=limit, cursor=cursor
    )
    streams = {
        stream.id: stream
        for stream in session.scalars(select(StreamRow).where(StreamRow.run_id == run_id))
    }
    newest = session.execute(
        select(ForecastRow, StreamRow)
        .join(ForecastRow, is_newest_forecast(run_id))
        .select_from(StreamRow)
        .where(StreamRow.run_id == run_id, StreamRow.is_current)
        .order_by(StreamRow.id)
    )
    return schemas.Forecasts(
        run_id=run_id,
        forecasts=[_describe(forecast, stream) for forecast, stream in newest],
        history=[_describe(change, streams[change.stream_id]) for change in reversed(changes)],
        next_cursor=next_cursor,
    )


def growing_since(session: Session, run_id: str, stream_id: int) -> int | None:
    """Return the step at which a stream's growth began, None if nothing grew in the end."""
    return session.scalar(
        select(ForecastRow.growing_since_step)
        .where(ForecastRow.run_id == run_id, ForecastRow.stream_id == stream_id)
        .order_by(ForecastRow.id.desc())
        .limit(1)
    )


def first_warning(
    session: Session, run_id: str, *, rank: int | None = None, device: str | None = None
) -> schemas.Forecast | None:
    """Return the newest launch's first paging forecast, optionally of one rank's device."""
    query = (
        select(ForecastRow, StreamRow)
        .join(StreamRow, StreamRow.id == ForecastRow.stream_id)
        .where(
            ForecastRow.run_id == run_id,
            StreamRow.run_id == run_id,
            StreamRow.is_current,
            ForecastRow.level.in_(PAGING_LEVELS),
        )
        .order_by(ForecastRow.step, ForecastRow.id)
        .limit(1)
    )
    if device is not None:
        query = query.where(StreamRow.rank == rank, StreamRow.device == device)
    row = session.execute(query).first()
    return None if row is None else _describe(*row)


def _describe(forecast: ForecastRow, stream: StreamRow) -> schemas.Forecast:
    return to_schema(
        schemas.Forecast, forecast, rank=stream.rank, attempt=stream.attempt, device=stream.device
    )
