"""The first attach of a process, and its ratio to `import torch`, which this module must not do."""

from __future__ import annotations

import time

from benchmarks.figures import Figure


def first_attach(parameters: int) -> list[Figure]:
    """Measure the first attach of this process, which must not have imported torch yet."""
    began = time.thread_time()
    import torch

    import_s = time.thread_time() - began
    import memagent

    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(4)) for _ in range(parameters)])
    optimizer = torch.optim.AdamW(model.parameters())
    clock_began, began = time.perf_counter(), time.thread_time()
    run = memagent.attach(model, optimizer)
    attach_s, clock_s = time.thread_time() - began, time.perf_counter() - clock_began
    run.finish()
    name = f"first attach, {parameters:,} parameters"
    note = f"{1e3 * clock_s:.0f} ms on the clock"
    return [
        Figure(name, "ms", 1e3 * attach_s, goal=50.0, note=note),
        Figure(f"{name}, by `import torch`", "%", 100 * attach_s / import_s),
    ]
