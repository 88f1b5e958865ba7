"""Record real trainings for `recorded.jsonl`: `python -m benchmarks.forecast.record FILE [KIND ...]
[--cuda]`, one small transformer each.

On a CPU the reading is the process's memory (the data segment of /proc/self/statm), after each step
and at its maximum within it. On a GPU (`--cuda`) it is the caching allocator's allocated bytes,
their peak, reserved bytes and inactive split blocks. Each training needs a new process: it would
reuse the memory of the one before.
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
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

STEPS, EPOCH = 900, 150
Keep = Callable[[int, Any], None]
Length = Callable[[int], int]


@dataclass(frozen=True)
class Kind:
    """A training: what it keeps, the lengths of its sequences, the steps between evaluations, and
    the cause of its end.
    """

    keep: Callable[[], Keep] = lambda: lambda _step, _output: None
    length: Length = lambda _step: 64
    evaluates_every: int | None = None
    cause: str = "leak"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forecast.record", description=__doc__
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "kind", nargs="*", help=f"of {', '.join(LEAKS | HEALTHY)}; all of them where none is given"
    )
    parser.add_argument("--cuda", action="store_true", help="train on the first GPU")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        with arguments.file.open("a") as file:
            file.write(
                json.dumps(_recorded(arguments.kind[0], cuda=arguments.cuda), separators=(",", ":"))
                + "\n"
            )
        return
    command = [
        sys.executable,
        "-m",
        "benchmarks.forecast.record",
        "--one",
        *(["--cuda"] if arguments.cuda else []),
    ]
    for kind in arguments.kind or LEAKS | HEALTHY:
        subprocess.run([*command, str(arguments.file), kind], check=True)


def _keeps_tensors(every: int = 1, begins: int = 0) -> Keep:
    outputs: list[Any] = []

    def keep(step: int, output: Any) -> None:
        if step >= begins and step % every == 0:
            outputs.append(output.detach().clone())

    return keep


def _keeps_outputs() -> Keep:
    outputs: list[Any] = []
    return lambda _, output: outputs.append(output)


def _keeps_lists() -> Keep:
    lists: list[list[float]] = []
    return lambda _step, _output: lists.append([random.random() for _ in range(2000)])


def _fills_a_cache() -> Keep:
    cache: dict[int, Any] = {}
    return lambda _, output: cache.update({random.randrange(200): output.detach()[:2].clone()})


def _collects_over_an_epoch() -> Keep:
    outputs: list[Any] = []

    def keep(step: int, output: Any) -> None:
        outputs.append(output.detach()[:1].clone())
        if (step + 1) % EPOCH == 0:
            outputs.clear()

    return keep


def _garbage_cycles() -> Keep:
    def keep(step: int, output: Any) -> None:
        cycle: list[Any] = [output.detach()[:1].clone()]
        cycle.append(cycle)
        if step % 70 == 69:
            gc.collect()

    return keep


def _keeps_the_graph() -> Keep:
    total: list[Any] = [0.0]

    def keep(_step: int, output: Any) -> None:
        total[0] = total[0] + output.square().mean()

    return keep


def _keeps_more_each_time() -> Keep:
    outputs: list[Any] = []
    return lambda step, output: outputs.append(output.detach()[:1].repeat(1 + step // 60, 1, 1))


def _keeps_at_random() -> Keep:
    outputs: list[Any] = []

    def keep(_step: int, output: Any) -> None:
        if random.random() < 0.05:
            outputs.append(output.detach().repeat(1 + int(random.expovariate(0.25)), 1, 1))

    return keep


def _keeps_a_report_every(steps: int) -> Callable[[], Keep]:
    outputs: list[Any] = []

    def keep(step: int, output: Any) -> None:
        if (step + 1) % steps == 0:
            outputs.append(output.detach().repeat(16, 1, 1))

    return lambda: keep


def _varied(_step: int) -> int:
    return random.choice((16, 32, 48, 64, 96, 128))


LEAKS: dict[str, Kind] = {
    "keeps the graph": Kind(_keeps_the_graph),
    "keeps outputs": Kind(_keeps_outputs),
    "keeps tensors": Kind(_keeps_tensors),
    "keeps a tensor now and then": Kind(lambda: _keeps_tensors(every=10)),
    "begins to keep tensors late": Kind(lambda: _keeps_tensors(begins=STEPS // 3)),
    "keeps lists": Kind(_keeps_lists),
    "keeps more each time": Kind(_keeps_more_each_time),
    "keeps tensors at random": Kind(_keeps_at_random),
    "keeps a report of each epoch": Kind(_keeps_a_report_every(EPOCH // 3)),
    "keeps tensors, evaluates": Kind(_keeps_tensors, evaluates_every=50),
    "keeps tensors, lengths vary": Kind(_keeps_tensors, _varied),
    "keeps the graph, lengths vary": Kind(_keeps_the_graph, _varied),
    "lengths grow": Kind(length=lambda step: 32 + step // 3, cause="input"),
}
HEALTHY: dict[str, Kind] = {
    "healthy": Kind(),
    "evaluates": Kind(evaluates_every=50),
    "fills a cache": Kind(_fills_a_cache),
    "collects over an epoch": Kind(_collects_over_an_epoch),
    "garbage cycles": Kind(_garbage_cycles),
    "lengths vary": Kind(length=_varied),
    "lengths grow and stay": Kind(length=lambda step: min(32 + step // 2, 192)),
    "lengths sorted in each epoch": Kind(length=lambda step: 16 + step % EPOCH),
}


def _recorded(name: str, *, cuda: bool) -> dict[str, Any]:
    import torch
    from torch import nn

    torch.manual_seed(1)
    random.seed(1)
    torch.set_num_threads(1)
    kind = (LEAKS | HEALTHY)[name]
    device = torch.device("cuda" if cuda else "cpu")
    layer = nn.TransformerEncoderLayer(96, 4, 384, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(256, 96),
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        nn.Linear(96, 256),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    memory = CudaMemory() if cuda else HostMemory()
    keep = kind.keep()
    rows: list[Row] = []
    lengths, begun = [], time.perf_counter()
    for step in range(STEPS):
        lengths.append(kind.length(step))
        memory.begin()
        output = model(torch.randint(0, 256, (8, lengths[-1]), device=device))
        memory.look()
        output.square().mean().backward()
        memory.look()
        optimizer.step()
        optimizer.zero_grad()
        keep(step, output)
        del output
        if kind.evaluates_every and (step + 1) % kind.evaluates_every == 0:
            with torch.no_grad():
                model(torch.randint(0, 256, (32, 64), device=device))
            memory.look()
        rows.append(memory.row())
    trace: dict[str, Any] = {
        "kind": name, "leaks": name in LEAKS, "step_s": round((time.perf_counter() - begun) / STEPS, 4),
        "floor": _differences([row.floor for row in rows]), "excess": [row.peak - row.floor for row in rows],
    }  # fmt: skip
    if kind.cause != "leak":
        trace["cause"] = kind.cause
    if len(set(lengths)) > 1:
        trace["input"] = [8 * length for length in lengths]
    if cuda:
        trace |= {
            "device": torch.cuda.get_device_name(), "reserved": _differences([row.reserved for row in rows]),
            "split": _differences([row.split for row in rows]),
        }  # fmt: skip
    return trace


@dataclass(frozen=True)
class Row:
    """Memory of one step, in pages of 4 KiB."""

    floor: int
    peak: int
    reserved: int = 0
    split: int = 0


class HostMemory:
    """Data segment of this process; its peak is the maximum of the readings."""

    def begin(self) -> None:
        self._peak = 0

    def look(self) -> None:
        self._peak = max(self._peak, int(Path("/proc/self/statm").read_text().split()[5]))

    def row(self) -> Row:
        floor = int(Path("/proc/self/statm").read_text().split()[5])
        return Row(floor, max(self._peak, floor))


class CudaMemory:
    """Caching allocator of the first GPU, which tracks its peak."""

    def begin(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats()

    def look(self) -> None:
        """Do nothing: the allocator sees every allocation."""

    def row(self) -> Row:
        import torch

        stats = torch.cuda.memory_stats()
        keys = (
            "allocated_bytes.all.current",
            "allocated_bytes.all.peak",
            "reserved_bytes.all.current",
            "inactive_split_bytes.all.current",
        )
        return Row(*(stats[key] // 4096 for key in keys))


def _differences(values: list[int]) -> list[int]:
    return [values[0], *(after - before for before, after in pairwise(values))]


if __name__ == "__main__":
    main()
