"""GPU time, energy and cost of a run.

1. A rank holds its GPUs from its start to its end, whether they compute or not. An unknown start,
   and one after the first contact (a wrong clock), count from that contact.
2. A GPU that several ranks of a launch share counts once: by the rank that holds it longest.
3. Energy is counted by the GPU itself: see `energy_j` in docs/wire.md.
4. The cost is hours times price. One GPU without a price leaves it unknown: a sum of the others
   would look complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from memagent_server.schemas.runs import ResourceUse
from memagent_server.settings import GpuPrices
from memagent_server.store.models import RankRow, StreamRow

_NOT_GPUS = ("host", "scalars")
_S_PER_HOUR = 3_600.0
_J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class GpuUse:
    """A GPU in one rank of one launch."""

    attempt: int
    device: str
    name: str
    time_s: float
    energy_j: float | None


def resource_use(session: Session, run_id: str, prices: GpuPrices) -> ResourceUse:
    """Return what a run has used so far."""
    return total_use(_gpus_of(session, run_id), prices)


def total_use(uses: Iterable[GpuUse], prices: GpuPrices) -> ResourceUse:
    """Return the sums over GPUs and launches."""
    gpus: dict[tuple[int, str], GpuUse] = {}
    for gpu in uses:
        known = gpus.get((gpu.attempt, gpu.device))
        gpus[gpu.attempt, gpu.device] = gpu if known is None else _longest(known, gpu)
    if not gpus:
        return ResourceUse(None, None, None, None)
    energies = [gpu.energy_j for gpu in gpus.values() if gpu.energy_j is not None]
    costs = [_cost(gpu, prices) for gpu in gpus.values()]
    known_costs = [cost for cost in costs if cost is not None]
    is_priced = len(known_costs) == len(costs)
    return ResourceUse(
        gpu_hours=sum(gpu.time_s for gpu in gpus.values()) / _S_PER_HOUR,
        energy_kwh=sum(energies) / _J_PER_KWH if energies else None,
        cost=sum(known_costs) if is_priced else None,
        currency=prices.currency if is_priced else None,
    )


def begin_of_rank() -> ColumnElement[float]:
    """Build the time from which a row of `ranks` holds its GPUs."""
    # null if the start is unknown, which `case` takes for false
    is_told = RankRow.started_at < RankRow.first_seen_at
    return case((is_told, RankRow.started_at), else_=RankRow.first_seen_at)


def end_of_rank() -> ColumnElement[float]:
    """Build the time until which a row of `ranks` holds its GPUs."""
    return func.coalesce(RankRow.finished_at, RankRow.last_seen_at)


def _longest(one: GpuUse, other: GpuUse) -> GpuUse:
    return max(one, other, key=lambda gpu: (gpu.time_s, gpu.energy_j or 0.0))


def _cost(gpu: GpuUse, prices: GpuPrices) -> float | None:
    price = prices.of(gpu.name)
    return None if price is None else price * gpu.time_s / _S_PER_HOUR


def _gpus_of(session: Session, run_id: str) -> list[GpuUse]:
    query = (
        select(
            StreamRow.attempt,
            StreamRow.device,
            StreamRow.name,
            end_of_rank() - begin_of_rank(),
            StreamRow.latest,
        )
        .join(
            RankRow,
            (RankRow.run_id == StreamRow.run_id)
            & (RankRow.rank == StreamRow.rank)
            & (RankRow.attempt == StreamRow.attempt),
        )
        .where(StreamRow.run_id == run_id, StreamRow.kind.not_in(_NOT_GPUS))
    )
    return [
        GpuUse(attempt, device, name, max(0.0, time_s), latest.get("energy_j"))
        for attempt, device, name, time_s, latest in session.execute(query)
    ]
