"""GPU memory that runs had, needed and left unused over a time, by user, project, card or run.

1. A rank holds its GPUs from its start to its end; what lies in the window counts.
2. A GPU that several ranks of a launch share counts once: for the longest of their times, with the
   sum of their needs.
3. The need is the peak of the process on the device. If the driver doesn't list processes, it's
   what the allocator reserved and a usual CUDA context.
4. Memory above the peak of all processes on the device was unused.
5. The smallest card has room for the need and MARGIN: see `cards.smaller_card`.
6. A run on several kinds of card is one row for each before rows of the same keys add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, get_args

from sqlalchemy import ColumnElement, Select, Subquery, and_, case, false, func, or_, select
from sqlalchemy.orm import Session

from memagent.estimator.cards import CARDS, smaller_card
from memagent.estimator.devices import CONTEXT_BYTES
from memagent.units import GIB
from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.runs import Waste, WasteKey, WasteRow, WasteSort, WasteSums
from memagent_server.settings import GpuPrices
from memagent_server.store.models import RankRow, RunRow, StreamRow
from memagent_server.store.reading import iso
from memagent_server.store.resource_use import begin_of_rank, end_of_rank

MARGIN = 0.1
KEYS: tuple[WasteKey, ...] = get_args(WasteKey)
SORTS: tuple[WasteSort, ...] = get_args(WasteSort)
_NOT_GPUS = ("host", "scalars")
_S_PER_HOUR = 3_600.0
_SUM_COLUMNS: dict[WasteSort, str] = {
    "gpu_hours": "gpu_s",
    "available_gib_hours": "available",
    "needed_gib_hours": "needed",
    "unused_gib_hours": "unused",
}
_KEY_COLUMNS: dict[WasteKey, Any] = {
    "user": RunRow.user,
    "project": RunRow.project,
    "run": RunRow.id,
}


@dataclass(frozen=True)
class WasteSelection:
    """Selection of a time, runs and rows; times are UTC epoch seconds."""

    since: float
    until: float
    project: str | None = None
    by: Sequence[WasteKey] = ("user", "project", "card")
    sort: WasteSort = "unused_gib_hours"
    limit: int = 50


@dataclass
class WasteTotal:
    """Sums over runs, in seconds and byte seconds."""

    runs: int = 0
    gpu_s: float = 0.0
    available: float = 0.0
    needed: float = 0.0
    unused: float = 0.0
    cost: float | None = 0.0
    too_large_s: float = 0.0
    peak_bytes: float = 0.0
    cards: dict[str, float] = field(default_factory=dict)
    """The least memory of each card."""

    def add(self, row: Any, prices: GpuPrices) -> None:
        """Add a row of `_grouped`."""
        self.runs += row.runs
        self.gpu_s += row.gpu_s
        self.available += row.available
        self.needed += row.needed
        self.unused += row.unused
        price = prices.of(row.card)
        # one card without a price leaves the sum unknown
        is_known = price is not None and self.cost is not None
        self.cost = self.cost + price * row.gpu_s / _S_PER_HOUR if is_known else None
        if _is_too_large(row.card, row.limit_bytes, row.fitting):
            self.too_large_s += row.gpu_s
        self.peak_bytes = max(self.peak_bytes, row.peak_bytes)
        self.cards[row.card] = min(row.limit_bytes, self.cards.get(row.card, row.limit_bytes))


def waste(session: Session, selection: WasteSelection, prices: GpuPrices) -> Waste:
    """Return the memory that runs left unused, the largest rows first, and the sums over all.

    A row of a run is one of its card, too, so that the database can order them.
    """
    of_runs = "run" in selection.by
    keys = tuple(dict.fromkeys((*selection.by, "card") if of_runs else selection.by))
    total, groups = WasteTotal(), dict[tuple[str | None, ...], WasteTotal]()
    summed = session.execute(_grouped(selection, () if of_runs else keys)).all()
    for row in summed:
        total.add(row, prices)
    for row in _largest_runs(session, selection, keys, summed, prices) if of_runs else summed:
        key = tuple(getattr(row, name) for name in keys)
        groups.setdefault(key, WasteTotal()).add(row, prices)
    rows = [
        WasteRow(**{**_sums(group, prices), **dict(zip(map(str, keys), key, strict=True))})
        for key, group in groups.items()
    ]
    # runs come in the database's order, which doesn't decide ties
    rows.sort(key=_order(selection.sort), reverse=True)
    largest = rows[: selection.limit]
    if of_runs:
        _name_runs(session, largest)
    return Waste(
        since=iso(selection.since) or "",
        until=iso(selection.until) or "",
        project=selection.project,
        by=list(keys),
        margin=MARGIN,
        currency=prices.currency if total.runs and total.cost is not None else None,
        total=WasteSums(**_sums(total, prices)),
        rows=largest,
        left_out=(total.runs if of_runs else len(rows)) - len(largest),
    )


@lru_cache(maxsize=4096)  # thousands of rows have few cards
def _is_too_large(card: str, limit_bytes: int, fitting_bytes: int) -> bool:
    return smaller_card(fitting_bytes, {card: limit_bytes}) is not None


def _sums(total: WasteTotal, prices: GpuPrices) -> JsonObject:
    smaller = smaller_card(total.peak_bytes * (1 + MARGIN), total.cards)
    return {
        "runs": total.runs,
        "gpu_hours": total.gpu_s / _S_PER_HOUR,
        "available_gib_hours": total.available / GIB / _S_PER_HOUR,
        "needed_gib_hours": total.needed / GIB / _S_PER_HOUR,
        "unused_gib_hours": total.unused / GIB / _S_PER_HOUR,
        "too_large_gpu_hours": total.too_large_s / _S_PER_HOUR,
        "cost": total.cost if total.runs and prices.by_name else None,
        "peak_bytes": round(total.peak_bytes),
        "smallest_card": None if smaller is None else smaller.name,
    }


def _order(sort: WasteSort) -> Callable[[WasteRow], tuple[float, ...]]:
    return lambda row: (getattr(row, sort) or 0.0, row.unused_gib_hours, row.gpu_hours)


def _name_runs(session: Session, rows: Iterable[WasteRow]) -> None:
    """Add names to rows of runs."""
    ids = [row.run for row in rows]
    named = session.execute(select(RunRow.id, RunRow.name).where(RunRow.id.in_(ids)))
    names = {run.id: run.name for run in named}
    for row in rows:
        row.run_name = names.get(row.run)


def _largest_runs(
    session: Session,
    selection: WasteSelection,
    keys: Sequence[WasteKey],
    summed: Iterable[Any],
    prices: GpuPrices,
) -> Sequence[Any]:
    """Return the largest rows of runs in the order of the selection. `summed` has their cards."""
    rows = _grouped(selection, keys)
    columns = rows.selected_columns
    gpu_s, card, fitting = columns.gpu_s, columns.card, columns.fitting
    if selection.sort == "cost":
        of_card = {row.card: prices.of(row.card) or 0.0 for row in summed}
        order = gpu_s * case(of_card, value=card, else_=0.0) if of_card else gpu_s
    elif selection.sort == "too_large_gpu_hours":
        too_large = {
            (row.card, row.fitting)
            for row in summed
            if _is_too_large(row.card, row.limit_bytes, row.fitting)
        }
        is_one = [and_(card == name, fitting == size) for name, size in sorted(too_large)]
        order = case((or_(false(), *is_one), gpu_s), else_=0.0)
    else:
        order = columns[_SUM_COLUMNS[selection.sort]]
    return session.execute(rows.order_by(order.desc()).limit(selection.limit)).all()


def _grouped(selection: WasteSelection, keys: Sequence[WasteKey]) -> Select[Any]:
    """Build the statement of sums by the keys, the card, and the card that would have done.

    Runs of one smallest card are one row: the database sums 100,000 runs up in a few hundred.
    """
    of_run = _by_run(selection)
    sizes = sorted({card.total_bytes for card in CARDS.values()})
    need = of_run.c.peak_bytes * (1 + MARGIN)
    fitting = case(*((need <= size, size) for size in sizes), else_=2 * sizes[-1])
    columns = [_KEY_COLUMNS[key] for key in keys if key != "card"]
    grouped = (
        select(
            *(_KEY_COLUMNS[key].label(key) for key in keys if key != "card"),
            of_run.c.card,
            fitting.label("fitting"),
            func.count().label("runs"),
            func.max(of_run.c.peak_bytes).label("peak_bytes"),
            func.min(of_run.c.limit_bytes).label("limit_bytes"),
            *(func.sum(of_run.c[name]).label(name) for name in _SUM_COLUMNS.values()),
        )
        .select_from(RunRow)
        .join(of_run, of_run.c.run_id == RunRow.id)
        .group_by(*columns, of_run.c.card, fitting)
    )
    return (
        grouped if selection.project is None else grouped.where(RunRow.project == selection.project)
    )


def _by_run(selection: WasteSelection) -> Subquery:
    """Build the statement of a run's sums by card; the peak is that of its neediest GPU."""
    gpu = _by_gpu(selection)
    used = _lower(func.coalesce(gpu.c.used_bytes, gpu.c.needed_bytes), gpu.c.limit_bytes)
    needed = _lower(gpu.c.needed_bytes, gpu.c.limit_bytes)
    return (
        select(
            gpu.c.run_id,
            gpu.c.card,
            func.max(needed).label("peak_bytes"),
            func.min(gpu.c.limit_bytes).label("limit_bytes"),
            func.sum(gpu.c.gpu_s).label("gpu_s"),
            func.sum(gpu.c.gpu_s * gpu.c.limit_bytes).label("available"),
            func.sum(gpu.c.gpu_s * needed).label("needed"),
            func.sum(gpu.c.gpu_s * (gpu.c.limit_bytes - used)).label("unused"),
        )
        .group_by(gpu.c.run_id, gpu.c.card)
        .subquery()
    )


def _by_gpu(selection: WasteSelection) -> Subquery:
    """Build the statement of the GPUs of each launch: their time in the window, and their peaks."""
    start, end = begin_of_rank(), end_of_rank()
    is_inside = (end > selection.since, start < selection.until, end > start)
    begin = case((start < selection.since, selection.since), else_=start)
    reserved = func.coalesce(_peak("peak_reserved_bytes"), StreamRow.peak_bytes)
    needed = func.coalesce(_peak("process_device_bytes"), reserved + CONTEXT_BYTES)
    return (
        select(
            StreamRow.run_id,
            func.max(StreamRow.name).label("card"),
            func.max(_lower(end, selection.until) - begin).label("gpu_s"),
            func.max(StreamRow.limit_bytes).label("limit_bytes"),
            func.max(_peak("device_used_bytes")).label("used_bytes"),
            func.sum(needed).label("needed_bytes"),
        )
        .join(
            RankRow,
            (RankRow.run_id == StreamRow.run_id)
            & (RankRow.rank == StreamRow.rank)
            & (RankRow.attempt == StreamRow.attempt),
        )
        .where(
            *is_inside,
            # ranks are a tenth of the bytes of streams: SQLite would read those first, and all
            StreamRow.run_id.in_(select(RankRow.run_id).where(*is_inside)),
            StreamRow.kind.not_in(_NOT_GPUS),
            StreamRow.limit_bytes > 0,
            StreamRow.peak_bytes.is_not(None),
        )
        .group_by(StreamRow.run_id, StreamRow.attempt, StreamRow.device)
        .subquery()
    )


def _peak(name: str) -> ColumnElement[Any]:
    value: ColumnElement[Any] = StreamRow.peaks[name].as_float()
    return value


def _lower(one: ColumnElement[Any], other: Any) -> ColumnElement[Any]:
    return case((one > other, other), else_=one)
