"""All ranks of a run over the same steps: one row a rank, one column a stretch of steps, the most of each.

1. The window is cut into stretches of about equal length, no more of them than it has steps.
2. Each rank's samples come as `series` gives them: buckets that end at a step. A bucket counts in every stretch that it reaches into,
   so that no spike is lost; it may be seen one stretch too early.
3. Where a rank has GPUs, its host's memory is left out: their limits have nothing to do with each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from memagent.wire.columns import Value
from memagent_server.store.models import Stream
from memagent_server.store.series import series
from memagent_server.store.streams import current_streams

MOST_ROWS = 256
HOST = "host"


def ranked_streams(streams: Sequence[Stream]) -> list[Stream]:
    """The streams that stand for the ranks: those with samples, of GPUs where there are any, by rank and device."""
    known = [stream for stream in streams if stream.samples]
    on_gpu = [stream for stream in known if stream.kind != HOST]
    return sorted(on_gpu or known, key=lambda stream: (stream.rank, stream.id))


def rank_grid(
    session: Session,
    run_id: str,
    *,
    field: str,
    first: int | None = None,
    last: int | None = None,
    columns: int = 60,
) -> dict[str, Any]:
    """The shape of GET /ranks: the most of `field` of each rank of the newest launch in each stretch of steps `first` to `last`."""
    every = ranked_streams(current_streams(session, [run_id]))
    streams = every[:MOST_ROWS]
    begin = (
        first
        if first is not None
        else min((stream.first_step or 0 for stream in streams), default=0)
    )
    end = (
        last if last is not None else max((stream.last_step or 0 for stream in streams), default=0)
    )
    edges = stretches(begin, end, columns)
    rows: list[dict[str, Any]] = []
    times: list[float | None] = [None] * len(edges)
    for stream in streams:
        found = series(
            session, run_id, fields=(field,), rank=stream.rank, device=stream.device, attempt=stream.attempt, first=begin, last=end,
            points=max(10, len(edges)),
        )  # fmt: skip
        steps = found["step"]
        rows.append(_row(stream, fold(steps, found["series"][field]["max"], begin, edges)))
        times = [
            seen if seen is not None else time_at(steps, found["time_s"], edge)
            for seen, edge in zip(times, edges, strict=True)
        ]
    return {
        "run_id": run_id, "field": field, "from": begin, "to": end, "step": edges, "time_s": times, "ranks": rows,
        "left_out": len(every) - len(streams),
    }  # fmt: skip


def stretches(first: int, last: int, columns: int) -> list[int]:
    """The last step of each stretch; the first one begins at `first`."""
    steps = last - first + 1
    number = min(columns, steps)
    return [first + steps * (place + 1) // number - 1 for place in range(number)]


def fold(
    steps: Sequence[Value], values: Sequence[Value], first: int, edges: Sequence[int]
) -> list[Value]:
    """The most of `values` in each stretch; value i is of the samples after step i - 1 up to step i."""
    found: list[Value] = [None] * len(edges)
    place, before = 0, first - 1
    for step, value in zip(steps, values, strict=True):
        reached = int(step or 0)
        while place < len(edges) and edges[place] <= before:
            place += 1
        at = place
        while at < len(edges) and (at == place or edges[at - 1] < reached):
            found[at] = _most((found[at], value))
            at += 1
        before = max(before, reached)
    return found


def time_at(steps: Sequence[Value], times: Sequence[Value], step: int) -> float | None:
    """When a step was, on the straight line between the buckets around it; None after the last of them."""
    known = [(s, t) for s, t in zip(steps, times, strict=True) if s is not None and t is not None]
    place = bisect_left([s for s, _ in known], step)
    if place == len(known):
        return None
    step_1, time_1 = known[place]
    if place == 0 or step_1 == step:
        return time_1
    step_0, time_0 = known[place - 1]
    return time_0 + (time_1 - time_0) * (step - step_0) / (step_1 - step_0)


def _row(stream: Stream, most: list[Value]) -> dict[str, Any]:
    return {
        "rank": stream.rank,
        "device": stream.device,
        "device_name": stream.name,
        "limit_bytes": stream.limit_bytes,
        "max": most,
    }


def _most(values: Sequence[Value]) -> Value:
    return max((value for value in values if value is not None), default=None)
