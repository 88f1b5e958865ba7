"""Readings of strangers' real GPU runs: what the whole device used, every 15 to 30 s.

A folder holds `series.csv.gz`, a row for each reading (`run_id`, `source`, `gpu`, `t_s`,
`used_bytes`, `limit_bytes`, `label`). Runs that ended in an out-of-memory error are left out: a
series doesn't tell whether growth or one request ended them. The others survived what they used:

- under their GPU's limit, and under 2 % more than they ever used: every page is false.
- with a straight leak added, which begins early and reaches the limit late. The run's own noise,
  jumps and swings stay below it.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.forecast.traces import Trace

MIN_READINGS, MIN_LEAKING_READINGS = 20, 40
TIGHT = 1.02
BEGINS, ENDS = (0.05, 0.4), (0.5, 0.95)
"""When the leak begins, and reaches the limit, as a share of the run."""
HEADROOM, HEADROOM_OF_FULL = 1.3, 1.15
"""Limit of a leaking run, over what it used before: at most the GPU's, if that isn't reached."""
Rows = list[dict[str, str]]


def sets(folder: Path, seed: int) -> Iterator[tuple[str, list[Trace]]]:
    """Return the three sets of traces, each with its title."""
    runs = list(_runs(folder / "series.csv.gz"))
    yield (
        "real runs, their GPU's limit",
        [_survivor(rows, limit) for rows in runs if (limit := _limit(rows))],
    )
    yield (
        f"real runs, limit at {TIGHT} times their use",
        [_survivor(rows, int(TIGHT * max(_used(rows)))) for rows in runs],
    )
    leaking = (_leaking(rows, random.Random(f"{seed} {rows[0]['run_id']}")) for rows in runs)
    yield f"real runs with a leak, seed {seed}", [trace for trace in leaking if trace]


def _runs(file: Path) -> Iterator[Rows]:
    with gzip.open(file, "rt", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["used_bytes"]]
    for _, run in groupby(rows, key=itemgetter("run_id", "gpu")):
        readings = list(run)
        if len(readings) >= MIN_READINGS and readings[0]["label"] != "oom":
            yield readings


def _survivor(rows: Rows, limit: int) -> Trace:
    return Trace(rows[0]["source"], limit, _columns(rows, _used(rows)), None)


def _leaking(rows: Rows, source: random.Random) -> Trace | None:
    """Return the run with a leak, or None if its own memory jumps to the limit before."""
    used = _used(rows)
    begins, ends = (int(source.uniform(*share) * len(used)) for share in (BEGINS, ENDS))
    own = max(used[: ends + 1])
    limit = _leaking_limit(own, _limit(rows))
    slope = (limit - own) / (ends - begins)
    leaking = [int(byte + max(0, row - begins) * slope) for row, byte in enumerate(used)]
    death = next((row for row, byte in enumerate(leaking) if byte >= limit), None)
    if len(rows) < MIN_LEAKING_READINGS or death is None or death <= begins:
        return None
    columns = _columns(rows[:death], leaking[:death])
    return Trace(rows[0]["source"], limit, columns, death, "leak", trending=True)


def _leaking_limit(own: int, device: int) -> int:
    if not device:
        return int(own * HEADROOM)
    return min(int(own * HEADROOM), device) if device > own else int(own * HEADROOM_OF_FULL)


def _columns(rows: Rows, used: list[int]) -> dict[str, list[Any]]:
    times = [float(row["t_s"]) for row in rows]
    return {"step": list(range(len(used))), "time_s": times, "device_used_bytes": used}


def _used(rows: Rows) -> list[int]:
    return [int(float(row["used_bytes"])) for row in rows]


def _limit(rows: Rows) -> int:
    return int(float(rows[0]["limit_bytes"] or 0))
