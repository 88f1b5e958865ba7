"""All ranks of a run over the same steps: the maximum of a field for each rank and interval of
steps.

1. The window is divided into intervals of about equal length, at most as many as it has steps.
2. Each rank's samples come as `series` returns them: buckets that end at a step. A bucket counts in
   every interval that it overlaps. No spike is lost, but it may appear one interval too early.
3. If a rank has GPUs, its host is left out: their limits can't be compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from sqlalchemy.orm import Session

from memagent.wire.columns import Value
from memagent_server.schemas.runs import RankGrid, RankRow
from memagent_server.store.models import StreamRow
from memagent_server.store.series import series
from memagent_server.store.streams import current_streams

MAX_ROWS = 256


def ranked_streams(streams: Sequence[StreamRow]) -> list[StreamRow]:
    """Return the streams with samples, only those of GPUs if there are any, by rank and device."""
    with_samples = [stream for stream in streams if stream.samples]
    on_gpu = [stream for stream in with_samples if stream.kind != "host"]
    return sorted(on_gpu or with_samples, key=lambda stream: (stream.rank, stream.id))


def rank_grid(
    session: Session,
    run_id: str,
    *,
    field: str,
    first: int | None = None,
    last: int | None = None,
    columns: int = 60,
) -> RankGrid:
    """Return the maxima of `field` per rank of the newest launch over a range of steps."""
    ranked = ranked_streams(current_streams(session, [run_id]))
    streams = ranked[:MAX_ROWS]
    if first is None:
        first = min((stream.first_step or 0 for stream in streams), default=0)
    if last is None:
        last = max((stream.last_step or 0 for stream in streams), default=0)
    ends = interval_ends(first, last, columns)
    rows: list[RankRow] = []
    times: list[float | None] = [None] * len(ends)
    for stream in streams:
        samples = series(
            session,
            run_id,
            fields=(field,),
            rank=stream.rank,
            device=stream.device,
            attempt=stream.attempt,
            first=first,
            last=last,
            points=max(10, len(ends)),
        )
        maxima = interval_maxima(samples.step, samples.series[field].max, first, ends)
        rows.append(
            RankRow(stream.rank, stream.device, stream.name, stream.limit_bytes, max=maxima)
        )
        # a time comes from the first rank that has samples around the step
        times = [
            time_at(samples.step, samples.time_s, end) if time is None else time
            for time, end in zip(times, ends, strict=True)
        ]
    return RankGrid(
        run_id=run_id,
        field=field,
        first=first,
        last=last,
        step=list(ends),
        time_s=times,
        ranks=rows,
        left_out=len(ranked) - len(streams),
    )


def interval_ends(first: int, last: int, columns: int) -> list[int]:
    """Return the last step of each interval; the first interval begins at `first`."""
    steps = last - first + 1
    number = min(columns, steps)
    return [first + steps * (index + 1) // number - 1 for index in range(number)]


def interval_maxima(
    steps: Sequence[Value], values: Sequence[Value], first: int, ends: Sequence[int]
) -> list[Value]:
    """Return the maximum of `values` per interval; value i covers steps[i - 1] + 1 to steps[i]."""
    maxima: list[Value] = [None] * len(ends)
    interval, previous = 0, first - 1
    for step, value in zip(steps, values, strict=True):
        bucket_end = int(step or 0)
        while interval < len(ends) and ends[interval] <= previous:
            interval += 1
        index = interval
        while index < len(ends) and (index == interval or ends[index - 1] < bucket_end):
            numbers = [number for number in (maxima[index], value) if number is not None]
            maxima[index] = max(numbers, default=None)
            index += 1
        previous = max(previous, bucket_end)
    return maxima


def time_at(steps: Sequence[Value], times: Sequence[Value], step: int) -> float | None:
    """Return a step's time, interpolated between buckets; None after the last one."""
    points = [(s, t) for s, t in zip(steps, times, strict=True) if s is not None and t is not None]
    index = bisect_left([s for s, _ in points], step)
    if index == len(points):
        return None
    step_1, time_1 = points[index]
    if index == 0 or step_1 == step:
        return time_1
    step_0, time_0 = points[index - 1]
    return time_0 + (time_1 - time_0) * (step - step_0) / (step_1 - step_0)
