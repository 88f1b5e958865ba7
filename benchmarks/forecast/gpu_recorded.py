"""Traces of the programs of `gpu_programs.py`, recorded by `gpu_record.py`: each line of a file is a
run under one limit, which died of torch's own error or lived.

`FILE` comes from a GPU, `REHEARSED` from the rehearsal device: torch's own allocator again, with
larger batches, for which a shared GPU has no time.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.forecast.program_set import ProgramSet
from benchmarks.forecast.traces import Trace

FILE = Path(__file__).with_name("gpu_recorded.jsonl.gz")
REHEARSED = FILE.with_name("gpu_rehearsed.jsonl.gz")
PAGE = 4096
TICK_S = 1e-4
PAGES = {
    "allocated": "allocated_bytes", "peak": "peak_allocated_bytes", "reserved": "reserved_bytes",
    "split": "inactive_split_bytes", "device": "device_used_bytes", "host": "host_rss_bytes",
}  # fmt: skip
COUNTS = {"retries": "alloc_retries_total", "optimizer_steps": "optimizer_steps"}
"""Columns of the file, in pages and as they are -> sample columns."""


def sets(programs: ProgramSet) -> Iterator[tuple[str, list[Trace]]]:
    """Return the halves of the programs, each with its title."""
    for name, file in {"recorded on a GPU": FILE, "rehearsed": REHEARSED}.items():
        runs = list(traces(file))
        for title, kinds in programs.split().items():
            names = {kind.name for kind in kinds}
            yield f"{name}, {title}", [run for run in runs if run.family in names]


def traces(file: Path = FILE) -> Iterator[Trace]:
    return map(_trace, lines(file))


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """Return the runs of a file as they were written."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt") as opened:
        yield from map(json.loads, opened)


def _trace(run: dict[str, Any]) -> Trace:
    kept = {name: list(accumulate(values)) for name, values in run["columns"].items()}
    rows = len(kept["time"])
    absent = [0] * rows
    columns: dict[str, list[Any]] = {
        "step": list(range(rows)),
        "time_s": [TICK_S * run["stretch"] * tick for tick in kept["time"]],
        "phase": ["train"] * rows,
    }
    for row, phase in run["phases"]:
        columns["phase"][row] = phase
    for field, name in PAGES.items():
        columns[name] = [PAGE * pages for pages in kept.get(field, absent)]
    for field, name in COUNTS.items():
        columns[name] = kept.get(field, absent)
    if run["shows_input"] and "input" in kept:
        columns["input_size"] = kept["input"]
    options = {
        "host_limit_bytes": run["host_limit"],
        "total_steps": run["steps"] if run["tells_plan"] else None,
        "epoch_steps": run["epoch_steps"] if run["tells_epochs"] else None,
        "max_input_size": run["max_input"] if run["tells_epochs"] else None,
    }
    garbage = [PAGE * pages for pages in kept["garbage"]] if "garbage" in kept else None
    is_dying = run["death"] is not None
    return Trace(
        run["program"], run["limit"], columns, run["death"], run["cause"], is_dying, options, garbage, run["grows"],
    )  # fmt: skip
