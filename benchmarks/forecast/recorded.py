"""Recorded traces: real trainings, each cut off by chosen limits.

A leaking run dies when its memory first reaches the value it had at a given share of its length.
Other runs get limits slightly above their maximum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from benchmarks.forecast.traces import Trace

FILE = Path(__file__).with_name("recorded.jsonl")
PAGE = 4096
MORE = {"reserved": "reserved_bytes", "split": "inactive_split_bytes"}
"""Columns of GPU recordings -> sample columns."""
DIES_AT = (0.35, 0.6, 0.98)
LIMITS = (1.01, 1.05, 1.2, 1.6)
LEAST_GROWTH, SHORTEST = 0.03, 60


def traces(file: Path = FILE) -> Iterator[Trace]:
    """Return every run of the file under each of its limits, with and without a known end."""
    for line in file.read_text().splitlines():
        run = json.loads(line)
        floors = [PAGE * pages for pages in accumulate(run["floor"])]
        peaks = [floor + PAGE * pages for floor, pages in zip(floors, run["excess"], strict=True)]
        for limit, death in _ends(peaks, leaks=run["leaks"]):
            rows = len(floors) if death is None else death
            columns = {
                "step": list(range(rows)), "time_s": [run["step_s"] * step for step in range(rows)],
                "allocated_bytes": floors[:rows], "peak_allocated_bytes": peaks[:rows],
            }  # fmt: skip
            if "input" in run:
                columns["input_size"] = run["input"][:rows]
            for field, name in MORE.items():
                if field in run:
                    columns[name] = [PAGE * pages for pages in accumulate(run[field])][:rows]
            for planned in (None, len(floors) if death is None else int(1.5 * death)):
                cause = None if death is None else run.get("cause", "leak")
                name = f"recorded, {run['kind']}"
                yield Trace(
                    name, limit, columns, death, cause, death is not None, {"total_steps": planned}
                )


def _ends(peaks: list[int], *, leaks: bool) -> Iterator[tuple[int, int | None]]:
    if not leaks:
        yield from ((int(max(peaks) * limit), None) for limit in LIMITS)
        return
    for share in DIES_AT:
        limit = max(peaks[: int(share * len(peaks))]) + 1
        death = next((step for step, peak in enumerate(peaks) if peak >= limit), None)
        if death is not None and death >= SHORTEST and limit - peaks[15] >= LEAST_GROWTH * limit:
            yield limit, death
