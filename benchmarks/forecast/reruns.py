"""Simulated runs with their predecessors: other runs of the same program and configuration.

1. Sizes, lengths and the program's own choices are the same; batches and noise have another seed.
2. Most predecessors had the same limit, a fifth OTHER_LIMITS times it. Where they die, the simulated
   allocator decides.
3. A quarter of those that lived are cut: people stopped them, or they were planned shorter.
4. `changed` has pairs that differ in the mechanism: the predecessor didn't grow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.forecast import simulated
from benchmarks.forecast.program_set import Kind
from benchmarks.forecast.simulated import Setting
from benchmarks.forecast.traces import Trace
from memagent.forecast.predecessor import MIN_STEPS, Curve, Predecessor

OTHER_LIMITS = (0.75, 1.4)
NO_GROWTH = 1e-9


def traces(kinds: list[Kind], each: int, seed: int) -> Iterator[Trace]:
    """Return `each` runs of every program, each with a predecessor if one tells something."""
    for kind, setting, trace in simulated.runs(kinds, each, seed):
        yield _with_predecessor(kind, setting, trace, is_changed=False)


def changed(kinds: list[Kind], each: int, seed: int) -> Iterator[Trace]:
    """Return the same after predecessors without the program's growth."""
    for kind, setting, trace in simulated.runs(kinds, each, seed):
        yield _with_predecessor(kind, setting, trace, is_changed=True)


def _with_predecessor(kind: Kind, setting: Setting, trace: Trace, *, is_changed: bool) -> Trace:
    source = random.Random(f"predecessor {setting.seed}")
    limit = trace.limit_bytes
    if source.random() < 0.2:
        limit = int(limit * source.choice(OTHER_LIMITS))
    before = replace(setting, rerun="predecessor")
    if is_changed:
        before = replace(before, growth=NO_GROWTH)
    host_limit = trace.options["host_limit_bytes"]
    run = simulated.rerun(kind, before, limit, host_limit)
    rows = len(run.columns["step"])
    is_of_device = (host_limit or 0) > max(run.columns["host_rss_bytes"], default=0)
    if rows < MIN_STEPS or (run.death is not None and not is_of_device):
        return trace  # one that the kernel kills falls silent
    status = "completed" if run.death is None else "oom"
    if run.death is None and source.random() < 0.25:
        rows = int(rows * source.uniform(0.3, 1.0))
        status = source.choice(("stopped", "completed"))
    return replace(trace, predecessor=_predecessor(run, rows, status))


def _predecessor(run: Trace, rows: int, status: str) -> Predecessor:
    curve, columns = Curve(), run.columns
    for row in range(rows):
        curve.add(row, columns["allocated_bytes"][row], columns["peak_allocated_bytes"][row])
    steps, floors, peaks = zip(*curve.points(), strict=True)
    return Predecessor("before", status, rows - 1, run.limit_bytes, steps, floors, peaks)
