"""One-time costs: the import, the first attach, memory, and the end of a run, each in a new
process.
"""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from benchmarks.agent.workload import small
from benchmarks.figures import Figure, from_samples

_PARAMETERS = 10_000


def import_time(pairs: int) -> list[Figure]:
    """Time `python -c "import memagent"` minus `python -c pass`, alternating."""
    differences = [_process_s("import memagent") - _process_s("pass") for _ in range(pairs)]
    return [
        from_samples(
            "import memagent",
            "ms",
            differences,
            scale=1e3,
            goal=30.0,
            note=f"{pairs} pairs of processes",
        )
    ]


def _process_s(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def attach_time(later: int = 9) -> list[Figure]:
    """Time the first attach of a process, which also imports what the agent needs, then further
    ones.
    """
    import torch

    import memagent

    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(4)) for _ in range(_PARAMETERS)])
    optimizer = torch.optim.AdamW(model.parameters())
    times, ends = [], []
    for _ in range(1 + later):
        began = time.perf_counter()
        run = memagent.attach(model, optimizer)
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
        run.finish()
        ends.append(time.perf_counter() - began)
    what = f"attach, {_PARAMETERS:,} parameters"
    return [
        Figure(
            f"{what}, first of a process", "ms", 1e3 * times[0], goal=50.0, note="imports included"
        ),
        from_samples(f"{what}, later ones", "ms", times[1:], scale=1e3, goal=50.0),
        from_samples("finish(), nothing to deliver", "s", ends),
    ]


def memory(steps: int) -> list[Figure]:
    """Measure resident memory beyond a running training, and the end of a run with a second of
    samples to deliver.
    """
    workload = small()
    workload.times(200)
    resident = psutil.Process().memory_info
    before = resident().rss
    import memagent

    run = memagent.attach(workload.model, workload.optimizer)
    attached = resident().rss
    workload.times(steps)
    time.sleep(0.5)
    after = resident().rss
    workload.times(min(steps, 1000))
    began = time.perf_counter()
    run.finish()
    ended = time.perf_counter()
    note = f"{(attached - before) / 2**20:.1f} at attach, the rest in {steps:,} steps"
    return [
        Figure(
            "resident memory beyond torch", "MiB", (after - before) / 2**20, goal=20.0, note=note
        ),
        Figure("finish(), a second of samples to deliver", "s", ended - began, goal=2.0),
    ]


def median_of(figures: list[Figure]) -> Figure:
    """Combine one figure of the same measurement in several processes."""
    values = [figure.value for figure in figures if figure.value is not None]
    first = figures[0]
    return (
        from_samples(first.name, first.unit, values, goal=first.goal, note=first.note)
        if values
        else first
    )
