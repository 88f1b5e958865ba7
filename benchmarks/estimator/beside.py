"""The recorded cases on the rehearsal device and by trace: `python -m benchmarks.estimator beside
--out FILE --gpu h200 [--jobs N] [--seconds S]`.

It needs a CUDA build of torch and a C compiler. On a machine with a GPU it doesn't touch it, so
that it can run beside `record` there: recording, rehearsal and trace then have the same torch.

1. The process starts itself again with the rehearsal device in front of the driver.
2. Each case is rehearsed in a fork, and traced in another.
3. The file is written anew after each, so an interrupted run keeps what it has.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.estimator import agreement, isolated, record, traced, zoo
from benchmarks.estimator.estimators import warm_up_without_cuda
from benchmarks.estimator.workload import STEPS, Case, Where, train_step
from memagent.environment import REHEARSAL_PREFIX
from memagent.rehearsal import build, launch

_UNKNOWN = "MEMAGENT_REHEARSAL_UNKNOWN"
_LIBRARIES = ("torch", "transformers", "peft", "torchvision", "timm")
_RUNS = ("rehearsed", "traced")


def main(
    out: Path,
    *,
    card: str,
    quick: bool = False,
    jobs: int = 1,
    seconds: float | None = None,
    timeout_s: float = 600.0,
    only: Collection[str] = (),
) -> int:
    """Rehearse and trace all cases and write the file."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the other check forbids forks
    if not any(name.startswith(REHEARSAL_PREFIX) for name in os.environ):
        return _on_the_rehearsal_device(card)
    if not torch.cuda.is_available():
        print("torch does not see the rehearsal device", file=sys.stderr)
        return 1
    rows: dict[str, dict[str, Any]] = {}
    heading = {"card": card, "versions": _versions(), "unknown": os.environ.get(_UNKNOWN, "")}
    cases = [
        case
        for case in record.cases_of("cuda", quick=quick)
        if (not only or case.name in only) and zoo.missing(case) is None
    ]
    where = Where(
        "cuda",
        total_bytes=launch.cuda_card(card).total_bytes,
        capability=launch.cuda_card(card).capability,
    )
    for task, result in isolated.outcomes(
        _tasks(cases, where, timeout_s), jobs=jobs, seconds=seconds
    ):
        run, _, name = task.name.partition(": ")
        row = rows.setdefault(name, {"case": name})
        row[run] = result.value or {"error": result.error}
        row[run]["seconds"] = round(result.seconds or 0.0, 2)
        print(f"{task.name}: {result.error or f'{result.seconds:.1f} s'}", flush=True)
        _write(out, {**heading, "cases": list(rows.values())})
    return 0


def _tasks(
    cases: list[Case], where: Where, timeout_s: float
) -> Iterator[isolated.Task[dict[str, Any]]]:
    functions = (rehearse, partial(trace, where))
    ready = set()
    for run, function in zip(_RUNS, functions, strict=True):
        for case in cases:
            if (case.family, case.lora) not in ready:
                ready.add((case.family, case.lora))
                warm_up_without_cuda(case)
            yield isolated.Task(f"{run}: {case.name}", partial(function, case), 0, timeout_s)


def rehearse(case: Case) -> dict[str, Any]:
    """Train the case as `record` does. Return what torch counts, by step and phase too."""
    phases: dict[str, int] = {}
    reserved = 0
    current = "build"

    def enter(step: int, phase: str) -> None:
        nonlocal current, reserved
        phases[current] = max(torch.cuda.max_memory_allocated(), phases.get(current, 0))
        reserved = max(reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()
        current = f"{step} {phase}"

    zoo.configure(case)
    with agreement.small_values():
        workload = zoo.build(case, "cuda")
        for step in range(STEPS):
            train_step(workload, partial(enter, step))
    enter(STEPS, "end")
    return {"allocated": max(phases.values()), "reserved": reserved, "phases": phases}


def trace(where: Where, case: Case) -> dict[str, Any]:
    """Return what the trace predicts, with its intervals."""
    return asdict(traced.predict(case, where))


def _on_the_rehearsal_device(card: str) -> int:
    """Run this command again with the device loaded, which must be first in a process."""
    device = build.prepare(build.torch_folder())
    notice = launch.notice_of(device)
    if notice:
        print(notice, file=sys.stderr, flush=True)
    machine = launch.Machine(launch.cuda_card(card))
    environment = launch.environment_of(os.environ, device, machine)
    environment[_UNKNOWN] = " ".join(device.unknown)
    command = [sys.executable, "-m", "benchmarks.estimator", *sys.argv[1:]]
    os.execve(sys.executable, command, environment)  # this interpreter


def _versions() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _write(out: Path, content: dict[str, Any]) -> None:
    """Replace the file in one step: a kill leaves the old or the new one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    written = out.with_suffix(".part")
    written.write_text(json.dumps(content, indent=1) + "\n")
    written.replace(out)
