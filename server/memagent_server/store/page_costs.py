"""Costs of thresholds of the forecast's probability, over runs that have ended.

1. A run is paged at a threshold if one of its forecasts pages, or would but for the threshold it
   had, and its probability exceeds the threshold.
2. A page costs `page_cost`, whether it's needless or not; a run that died without one costs 1.
3. A run that a page saved counts as needlessly paged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from memagent.forecast.types import PAGING_LEVELS
from memagent_server.schemas.alerts import ThresholdCost
from memagent_server.store.models import ForecastRow, RunRow

THRESHOLDS = (0.25, 0.4, 0.5, 0.65, 0.9)
"""Compared with a team's own. Growth that ends by itself lies below the second, a leak between the
third and fourth, and above those only the leak finder's lists."""
ENDED = ("completed", "stopped", "failed", "oom")
MAX_RUNS = 10_000


@dataclass(frozen=True)
class EndedRun:
    """A run's end, and the highest probability with which it would have paged."""

    has_died: bool
    probability: float


def threshold_costs(runs: Sequence[EndedRun], page_cost: float) -> list[ThresholdCost]:
    """Return the cost of a team's own threshold and of others, the lowest threshold first."""
    if not runs:
        return []
    return [_cost(runs, threshold, page_cost) for threshold in sorted({page_cost, *THRESHOLDS})]


def _cost(runs: Sequence[EndedRun], threshold: float, page_cost: float) -> ThresholdCost:
    paged = [run for run in runs if run.probability > threshold]
    came_true = sum(run.has_died for run in paged)
    missed = sum(run.has_died for run in runs) - came_true
    return ThresholdCost(
        threshold=threshold,
        is_own=threshold == page_cost,
        pages=len(paged),
        needless=len(paged) - came_true,
        missed=missed,
        cost=missed + page_cost * len(paged),
    )


def ended_runs(session: Session, since: float, project: str | None = None) -> list[EndedRun]:
    """Return the newest runs that ended after `since` and had forecasts."""
    # a page that wasn't worth it is stored as a notice: this is the distance at which it would page
    is_close = and_(
        ForecastRow.level == "notice",
        ForecastRow.eta_step - ForecastRow.step
        <= ForecastRow.step - ForecastRow.growing_since_step,
    )
    would_page = or_(ForecastRow.level.in_(PAGING_LEVELS), is_close)
    probability = func.max(case((would_page, ForecastRow.oom_probability), else_=0.0))
    query = (
        select(RunRow.status, probability)
        .join(ForecastRow, ForecastRow.run_id == RunRow.id)
        .where(RunRow.status.in_(ENDED), RunRow.finished_at >= since)
        .group_by(RunRow.id, RunRow.status, RunRow.finished_at)
        .order_by(RunRow.finished_at.desc())
        .limit(MAX_RUNS)
    )
    if project is not None:
        query = query.where(RunRow.project == project)
    return [EndedRun(status == "oom", highest) for status, highest in session.execute(query)]
