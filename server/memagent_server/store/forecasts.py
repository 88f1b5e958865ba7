"""Forecasts: a row whenever the answer for a stream changed materially; the newest row is what is believed now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select
from sqlalchemy.orm import Session, aliased

from memagent.forecast import Forecast as Answer
from memagent.wire.messages import Risk
from memagent_server.store.compiled_statements import CompiledSelect
from memagent_server.store.models import Forecast, Stream
from memagent_server.store.paging import newest
from memagent_server.store.timestamps import iso

HISTORY = 500

_FIGURES = (
    "step", "level", "oom_probability", "cause", "eta_step", "eta_low", "eta_high", "eta_s", "used_bytes", "limit_bytes",
    "growth_bytes_per_step", "growing_since_step",
)  # fmt: skip

_of_stream = aliased(Forecast)
_NEWEST = (
    select(func.max(_of_stream.id))
    .where(_of_stream.stream_id == Stream.id)
    .correlate(Stream)
    .scalar_subquery()
)
_OF_RANK = CompiledSelect(
    select(Stream.device, *(getattr(Forecast, name) for name in _FIGURES))
    .join(Forecast, Forecast.id == _NEWEST)
    .select_from(Stream)
    .where(
        Stream.run_id == bindparam("run_id"), Stream.rank == bindparam("rank"), Stream.is_current
    )
    .order_by(Stream.id)
)


def add_forecasts(session: Session, answers: Sequence[tuple[str, int, Answer]], now: float) -> None:
    """Keep answers of forecasters: (run, stream, answer)."""
    rows = [
        {
            "run_id": run_id,
            "stream_id": stream_id,
            "at": now,
            **{name: getattr(answer, name) for name in _FIGURES},
        }
        for run_id, stream_id, answer in answers
    ]
    if rows:
        session.execute(insert(Forecast), rows)


def latest_risk(connection: Connection, run_id: str, rank: int) -> Risk | None:
    """What is believed of a rank's devices now: the worst of their newest forecasts, None before there is any."""
    found = _OF_RANK.rows(connection, {"run_id": run_id, "rank": rank})
    if not found:
        return None
    device, *figures = max(found, key=lambda row: row[1 + _FIGURES.index("oom_probability")])
    return Risk(rank=rank, device=device, **dict(zip(_FIGURES, figures, strict=True)))


def forecasts_of(
    session: Session, run_id: str, *, limit: int = HISTORY, cursor: str | None = None
) -> dict[str, Any]:
    """The answer of GET /runs/{id}/forecast: the newest of each current stream, and the last changes. Raises WireError for a bad cursor."""
    changes, next_cursor = newest(
        session, Forecast, Forecast.run_id == run_id, limit=limit, cursor=cursor
    )
    streams = {
        stream.id: stream
        for stream in session.scalars(select(Stream).where(Stream.run_id == run_id))
    }
    return {
        "run_id": run_id,
        "forecasts": [
            describe_forecast(found, stream) for found, stream in _newest(session, run_id)
        ],
        "history": [
            describe_forecast(found, streams[found.stream_id]) for found in reversed(changes)
        ],
        "next_cursor": next_cursor,
    }


def describe_forecast(forecast: Forecast, stream: Stream) -> dict[str, Any]:
    """As docs/http.md has it."""
    figures = {name: getattr(forecast, name) for name in _FIGURES}
    return {
        "rank": stream.rank, "attempt": stream.attempt, "device": stream.device, "at": iso(forecast.at), **figures,
    }  # fmt: skip


def _newest(session: Session, run_id: str) -> list[tuple[Forecast, Stream]]:
    query = (
        select(Forecast, Stream)
        .join(Forecast, Forecast.id == _NEWEST)
        .select_from(Stream)
        .where(Stream.run_id == run_id, Stream.is_current)
        .order_by(Stream.id)
    )
    return [(found, stream) for found, stream in session.execute(query)]
