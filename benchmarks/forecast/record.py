"""Record real trainings for `recorded.jsonl`: `python -m benchmarks.forecast.record FILE [KIND ...]`, one small transformer each, on CPU.

What is read is the process's own memory (the data segment of /proc/self/statm), after each step and at its highest within it.
Each training needs a process of its own: the memory of the one before would be reused.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

STEPS, EPOCH = 900, 150
Keep = Callable[[int, Any], None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecast.record", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("kind", nargs="*", help=f"of {', '.join(LEAKS | HEALTHY)}; all of them where none is given")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        with arguments.file.open("a") as file:
            file.write(json.dumps(_recorded(arguments.kind[0]), separators=(",", ":")) + "\n")
        return
    for kind in arguments.kind or LEAKS | HEALTHY:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.forecast.record", str(arguments.file), kind, "--one"], check=True
        )


def _keeps_tensors(every: int = 1, begins: int = 0) -> Keep:
    kept: list[Any] = []

    def keep(step: int, output: Any) -> None:
        if step >= begins and step % every == 0:
            kept.append(output.detach().clone())

    return keep


def _keeps_outputs() -> Keep:
    kept: list[Any] = []
    return lambda _, output: kept.append(output)


def _keeps_lists() -> Keep:
    kept: list[list[float]] = []
    return lambda _step, _output: kept.append([random.random() for _ in range(2000)])


def _fills_a_cache() -> Keep:
    cache: dict[int, Any] = {}
    return lambda _, output: cache.update({random.randrange(200): output.detach()[:2].clone()})


def _collects_over_an_epoch() -> Keep:
    kept: list[Any] = []

    def keep(step: int, output: Any) -> None:
        kept.append(output.detach()[:1].clone())
        if (step + 1) % EPOCH == 0:
            kept.clear()

    return keep


def _garbage_cycles() -> Keep:
    def keep(step: int, output: Any) -> None:
        cycle: list[Any] = [output.detach()[:1].clone()]
        cycle.append(cycle)
        if step % 70 == 69:
            gc.collect()

    return keep


LEAKS: dict[str, Callable[[], Keep]] = {
    "keeps tensors": _keeps_tensors,
    "keeps a tensor now and then": lambda: _keeps_tensors(every=10),
    "begins to keep tensors late": lambda: _keeps_tensors(begins=STEPS // 3),
    "keeps outputs": _keeps_outputs,
    "keeps lists": _keeps_lists,
}
HEALTHY: dict[str, Callable[[], Keep]] = {
    "healthy": lambda: lambda _step, _output: None,
    "fills a cache": _fills_a_cache,
    "collects over an epoch": _collects_over_an_epoch,
    "garbage cycles": _garbage_cycles,
}


def _recorded(kind: str) -> dict[str, Any]:
    import torch
    from torch import nn

    torch.manual_seed(1)
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(96, 4, 384, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(256, 96), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(96, 256)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    keep = (LEAKS | HEALTHY)[kind]()
    floors, peaks, begun = [], [], time.perf_counter()
    for step in range(STEPS):
        output = model(torch.randint(0, 256, (8, 64)))
        forward = _pages()
        output.square().mean().backward()
        peak = max(forward, _pages())
        optimizer.step()
        optimizer.zero_grad()
        keep(step, output)
        floors.append(_pages())
        peaks.append(max(peak, floors[-1]))
    return {
        "kind": kind, "leaks": kind in LEAKS, "step_s": round((time.perf_counter() - begun) / STEPS, 4),
        "floor": [floors[0], *(after - before for before, after in pairwise(floors))],
        "excess": [peak - floor for floor, peak in zip(floors, peaks, strict=True)],
    }  # fmt: skip


def _pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[5])


if __name__ == "__main__":
    main()
