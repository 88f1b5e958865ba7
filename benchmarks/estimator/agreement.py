"""The trace and live readings against torch's own allocator: `python -m benchmarks.estimator
agreement`.

1. The cases are trained on the GPU, or on the [rehearsal device](rehearsal.md) where there is none.
   The peaks that torch counts are the truth.
2. The trace predicts them, in a process that never starts CUDA.
3. The agent reads the same training a second time.
4. Each runs in a fork of a process that has imported everything and has not started CUDA.
5. On the rehearsal device small tensors have values, as under `memagent rehearse`: masks and routes
   depend on them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import memagent
from benchmarks.estimator import architectures, isolated, zoo
from benchmarks.estimator import traced as traced_case
from benchmarks.estimator.estimators import warm_up_without_cuda
from benchmarks.estimator.workload import STEPS, Case, Where, Workload, train_step
from memagent.delivery.run_file import read_frames
from memagent.environment import REHEARSAL_PREFIX
from memagent.rehearsal import build, launch
from memagent.rehearsal.values import SmallValues
from memagent.wire.codec import decode
from memagent.wire.columns import unpack
from memagent.wire.messages import Batch

RESULTS = Path(__file__).parent / "agreement.json"
_CARD = "a100-80gb"
_LIBRARIES = ("torch", "transformers", "peft")
_GPU = "GPU-"
"""The start of a GPU's id."""
_MIB = 2**20
_TIMEOUT_S = 600.0
_STEPWISE = ("scan", "mamba")
"""Families with thousands of operators a step: minutes at the size of real trainings."""
_UNKNOWN = ("lstm", "moe", "mixtral")
"""Families with kernels of cuDNN, or whose bytes depend on the data."""


@dataclass(frozen=True)
class Sizes:
    """Peaks in bytes."""

    allocated: int
    reserved: int


@dataclass(frozen=True)
class Agreement:
    """Peaks of one case as torch counts them, as the trace predicts them, and as the agent reads
    them; an error says why one is missing.
    """

    case: str
    family: str
    counted: Sizes | None
    traced: Sizes | None
    read: Sizes | None
    error: str = ""
    note: str = ""
    """Why the trace has other bytes, found by hand."""

    @property
    def is_exact(self) -> bool:
        """Whether trace and agent have the counted bytes."""
        counted = self.counted
        return counted is not None and all(
            sizes is not None and sizes.allocated == counted.allocated
            for sizes in (self.traced, self.read)
        )

    @property
    def reserved_error(self) -> float | None:
        """Reserved bytes of the trace over the counted ones, minus one."""
        if self.counted is None or self.traced is None:
            return None
        return self.traced.reserved / self.counted.reserved - 1

    def line(self) -> str:
        if self.counted is None or self.traced is None or self.read is None:
            return f"| {self.case} | {self.error} | | | |"
        return (
            f"| {self.case} | {self.counted.allocated / _MIB:,.2f} "
            f"| {_difference(self.traced.allocated, self.counted.allocated)} "
            f"| {_difference(self.read.allocated, self.counted.allocated)} "
            f"| {self.counted.reserved / _MIB:,.0f} | {_percent(self.reserved_error)} "
            f"| {_difference(self.read.reserved, self.counted.reserved)} |"
        )


def main(out: Path | None, only: Sequence[str], *, quick: bool = False) -> int:
    """Measure, print the table, and write the results. Return 1 if a case has other bytes."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the other check forbids forks
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = (
        "1"  # or only the first training tunes kernels
    )
    if not torch.cuda.is_available():
        return _on_the_rehearsal_device()
    cases = list(cases_of(only, quick=quick))
    for case in cases:
        warm_up_without_cuda(case)
    versions = {name: metadata.version(name) for name in _LIBRARIES}
    print(", ".join(f"{name} {version}" for name, version in versions.items()), end="\n\n")
    print("| | counted MiB | trace | agent | reserved MiB | trace | agent |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    notes = _notes(out)
    rows = []
    for case in cases:
        rows.append(replace(measure(case), note=notes.get(case.name, "")))
        print(rows[-1].line(), flush=True)
        if out is not None:
            content = {"card": _CARD, "versions": versions, "rows": [asdict(row) for row in rows]}
            out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"\n{summary(rows)}")
    compiled = [case.name for case in cases if case.compiled]
    known = [row for row in rows if row.family not in _UNKNOWN and row.case not in compiled]
    return 0 if all(row.is_exact for row in known) else 1


def _notes(out: Path | None) -> dict[str, str]:
    """Return the notes of earlier results, by case."""
    content = json.loads(out.read_text()) if out is not None and out.exists() else {"rows": []}
    return {row["case"]: row.get("note", "") for row in content["rows"]}


def measure(case: Case) -> Agreement:
    """Train the case twice on the device, and trace it."""
    outcomes = [
        isolated.call(partial(function, case), timeout_s=_TIMEOUT_S)
        for function in (counted, traced, read_by_agent)
    ]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    sizes = [outcome.value for outcome in outcomes]
    return Agreement(case.name, case.family, *sizes, error=errors[0] if errors else "")


def summary(rows: Sequence[Agreement]) -> str:
    """Say how many rows agree."""
    exact = sum(row.is_exact for row in rows)
    errors = [row.reserved_error for row in rows if row.reserved_error is not None]
    close = sum(abs(error) <= 0.01 for error in errors)
    return f"{exact} of {len(rows)} have the same bytes; reserved within 1 % in {close}"


def _on_the_rehearsal_device() -> int:
    """Run this command again with the device loaded, which must be first in a process."""
    device = build.prepare(build.torch_folder())
    machine = launch.Machine(launch.cuda_card(_CARD))
    environment = launch.environment_of(os.environ, device, machine)
    command = [sys.executable, "-m", "benchmarks.estimator", *sys.argv[1:]]
    os.execve(sys.executable, command, environment)  # this interpreter


def cases_of(only: Sequence[str], *, quick: bool) -> Iterator[Case]:
    """Yield the trainings to compare: the large zoo, and those that only small ones have."""
    small = [case for case in zoo.small() if quick or case.family in _STEPWISE]
    large = [case for case in zoo.large() if not quick and case.family not in _STEPWISE]
    compiled = [] if quick else zoo.compiled()
    for case in [*large, *small, *architectures.cases(), *compiled]:
        is_wanted = not only or case.name.removesuffix(", large") in only
        if is_wanted and zoo.missing(case) is None:
            yield case


def counted(case: Case) -> Sizes:
    """Train the case and return what torch counts."""
    zoo.configure(case)
    with small_values():
        _train(zoo.build(case, "cuda"))
    return Sizes(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())


def read_by_agent(case: Case) -> Sizes:
    """Train the case and return what the agent reads."""
    zoo.configure(case)
    with TemporaryDirectory() as folder, small_values():
        os.environ["MEMAGENT_DIR"] = folder
        workload = zoo.build(case, "cuda")
        with memagent.attach(workload.model, workload.optimizer, predict=False) as run:
            _train(workload)
        peaks = run.report()["peaks"].items()
        (peak,) = (sizes for device, sizes in peaks if device.startswith(_GPU))
        return Sizes(peak["peak_allocated_bytes"], max(_column(Path(folder), "reserved_bytes")))


def traced(case: Case) -> Sizes:
    """Return what the trace predicts."""
    prediction = traced_case.predict(case, Where("cuda"))
    return Sizes(prediction.allocated_bytes, prediction.reserved_bytes or 0)


def _train(workload: Workload) -> None:
    for _ in range(STEPS):
        train_step(workload)
    torch.cuda.synchronize()


def small_values() -> Any:
    is_rehearsed = any(name.startswith(REHEARSAL_PREFIX) for name in os.environ)
    return SmallValues() if is_rehearsed else nullcontext()


def _column(folder: Path, name: str) -> Iterator[int]:
    """Yield the GPU's readings from the run's file."""
    (path,) = folder.glob("*.memagent")
    for kind, body in read_frames(path):
        chunks = decode(body, Batch).chunks if kind == "batch" else ()
        for chunk in chunks:
            if chunk.stream.startswith(_GPU):
                yield from (value for value in unpack(chunk.packed)[name] if value is not None)


def _difference(size: int, counted: int) -> str:
    return "same" if size == counted else f"{_percent(size / counted - 1)}"


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:+.3f} %"
