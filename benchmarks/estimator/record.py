"""Measure trainings on this machine's GPU and keep the result as truth: `python -m
benchmarks.estimator record [--out FILE] [--jobs N] [--seconds S]`.

1. Each case runs in a process forked before CUDA starts: a new context, an empty allocator, no
   history. Up to `--jobs` of them run side by side, as far as their memory fits.
2. The device's level is what the driver counts for the case's own process, so the others don't
   disturb it. Where the driver doesn't tell (`is_own` is false), it is the increase of the whole
   device: then the undisturbed runs are made one by one, and theirs counts.
3. Phase peaks are exact: the allocator's peak counters are reset at the start of a phase, after the
   device has caught up. `outside_bytes` is what the process holds besides the allocator: context,
   loaded kernels, libraries.
4. The history starts before the model is built, so a replay starts from an empty allocator. A
   second, undisturbed run of the same case, without history and resets, must give the same peaks:
   `undisturbed`. In a third, `limited`, the allocator may reserve the mean of the two peaks: the
   case dies, or releases its cache. In a fourth the agent reads the peaks: `read`.
5. The file is written anew after each run, so an interrupted recording keeps what it has.

With `--device cpu` everything that needs no CUDA runs, to try the recorder. Its figures then equal
those of `truth_cpu`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.estimator import agreement, architectures, isolated, vision, zoo
from benchmarks.estimator.estimators import warm_up_without_cuda
from benchmarks.estimator.process_memory import ProcessMemory
from benchmarks.estimator.recorded_device import device_named
from benchmarks.estimator.truths import FOLDER
from benchmarks.estimator.workload import RECORDED_RUNS, STEPS, Case, train_step

_TIMEOUT_S = 600.0
_GIB = 2**30
_CONTEXT_COST = _GIB
_UNKNOWN_COST = 16 * _GIB
_LARGE_COST = 40 * _GIB
_LARGE_BATCH = 256
_SHARE_OF_DEVICE = 0.7
"""The rest is for processes of others, and for what cuDNN tries."""
_MIN_LIMITED_BYTES = 64 * 2**20


def main(
    out: Path | None,
    *,
    device: str = "cuda",
    quick: bool = False,
    jobs: int = 1,
    seconds: float | None = None,
    timeout_s: float = _TIMEOUT_S,
    only: Collection[str] = (),
    known: Path | None = None,
    runs: Sequence[str] = RECORDED_RUNS,
) -> int:
    """Record all cases and write the file. Return 1 if there is no such device.

    `known` is an earlier file, whose rows are kept and completed.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the other check forbids forks
    outcome = isolated.call(partial(machine, device))
    if outcome.value is None:
        print(f"there is nothing to record: {outcome.error}", file=sys.stderr)
        return 1
    path = out or FOLDER / f"{_file_name(outcome.value['gpu'])}.json"
    budget = int((outcome.value["device_bytes"] or 0) * _SHARE_OF_DEVICE) or None
    recording = Recording(path, device, {**outcome.value, "jobs": jobs})
    if known is not None:
        recording.add(json.loads(known.read_text())["cases"])
    cases = [case for case in cases_of(device, quick=quick) if not only or case.name in only]
    runs = runs if device == "cuda" else RECORDED_RUNS[:2]
    ends_at = math.inf if seconds is None else time.monotonic() + seconds
    # the first run of a case decides whether and how others follow
    for stage in (runs[:1], runs[1:]):
        tasks = recording.tasks(cases, timeout_s, stage)
        left_s = ends_at - time.monotonic()
        for task, result in isolated.outcomes(
            tasks, jobs=jobs, budget_bytes=budget, seconds=left_s
        ):
            recording.keep(task.name, result)
    print(recording.summary())
    return 0


def cases_of(device: str, *, quick: bool) -> list[Case]:
    """Return the cases in the order of their value, if the time is short."""
    small = zoo.small(quick=quick)
    if quick or device == "cpu":
        return small
    return [*small, *architectures.cases(), *vision.cases(), *zoo.large(), *zoo.with_allocators()]


class Recording:
    """The rows of the cases and their file."""

    def __init__(self, path: Path, device: str, machine: dict[str, Any]) -> None:
        self._path, self._device, self._machine = path, device, machine
        self._histories = path.with_suffix("")
        self._rows: dict[str, dict[str, Any]] = {}

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Keep the rows of an earlier recording, except those that failed."""
        self._rows |= {row["case"]["name"]: row for row in rows if not row.get("error")}

    def tasks(
        self, cases: list[Case], timeout_s: float, runs: Sequence[str]
    ) -> Iterator[isolated.Task[Any]]:
        """Yield each run of each case, all cases' first runs first. What a case needs is imported
        before its first one, while others run.
        """
        ready = set()
        for run in runs:
            for case in cases:
                package = zoo.missing(case)
                if package:
                    self._row(case)["error"] = f"{package} is not installed"
                    continue
                if (case.family, case.lora) not in ready:
                    ready.add((case.family, case.lora))
                    warm_up_without_cuda(case)
                function = self._function(run, case)
                if function is None:
                    continue
                is_alone = run == "undisturbed" and self._machine.get("is_own") is False
                cost = (self._machine["device_bytes"] or 0) if is_alone else cost_of(case)
                yield isolated.Task(f"{run}: {case.name}", function, cost, timeout_s)

    def _function(self, run: str, case: Case) -> Callable[[], Any] | None:
        row, path = self._row(case), self._histories / f"{_file_name(case.name)}.json.gz"
        if run in row or (run == "measured" and "peak_allocated_bytes" in row):
            return None  # known
        if run == "measured":
            return partial(measure, case, self._device, path)
        if run == "undisturbed":
            return partial(undisturbed, case, self._device)
        if run == "read":
            return partial(read, case)
        allocated, reserved = row.get("peak_allocated_bytes"), row.get("peak_reserved_bytes")
        if reserved is None or reserved - allocated < _MIN_LIMITED_BYTES:
            return None  # unknown, or too little to be released
        path = path.with_name(f"limited_{path.name}")
        return partial(limited, case, self._device, path, (allocated + reserved) // 2)

    def keep(self, name: str, result: isolated.Outcome[Any]) -> None:
        """Add a run's result to its row and write the file."""
        run, _, case = name.partition(": ")
        row = self._rows[case]
        if run == "measured":
            row |= result.value or {"error": result.error}
        elif result.value is not None:
            row[run] = result.value
            if run == "undisturbed":
                row["undisturbed_allocated_bytes"] = result.value["allocated"]
        else:
            row[f"{run}_error"] = result.error
        row.setdefault("seconds", {})[run] = round(result.seconds or 0.0, 2)
        print(f"{name}: {result.error or f'{result.seconds:.1f} s'}", flush=True)
        self._write()

    def summary(self) -> str:
        self._write()
        rows = self._rows.values()
        done = [row for row in rows if row.get("peak_allocated_bytes")]
        lines = [f"{len(done)} of {len(rows)} cases recorded in {self._path}"]
        lines += [f"   {row['case']['name']}: {row['error']}" for row in rows if row.get("error")]
        return "\n".join(lines)

    def _row(self, case: Case) -> dict[str, Any]:
        return self._rows.setdefault(case.name, {"case": asdict(case)})

    def _write(self) -> None:
        """Replace the file in one step: a kill leaves the old or the new one."""
        kind = "recorded" if self._device == "cuda" else "tried"
        begun = [row for row in self._rows.values() if len(row) > 1]
        content = {"kind": kind, **self._machine, "cases": begun}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".part")
        written.write_text(json.dumps(content, indent=1) + "\n")
        written.replace(self._path)


def cost_of(case: Case) -> int:
    """Return the bytes that a case may take on the device, as far as they are known before."""
    known = _known_costs().get(case.name)
    if known is None and case.size == "large":
        known = _LARGE_COST if (case.batch or 0) >= _LARGE_BATCH else _UNKNOWN_COST
    return _CONTEXT_COST + int(1.1 * (known or 0))


@cache
def _known_costs() -> dict[str, int]:
    """Return what was reserved on the rehearsal device."""
    if not agreement.RESULTS.exists():
        return {}
    rows = json.loads(agreement.RESULTS.read_text())["rows"]
    return {row["case"]: row["counted"]["reserved"] for row in rows if row["counted"]}


def measure(case: Case, device: str, history_path: Path) -> dict[str, Any]:
    """Run one case on a new device. Return its peaks by step and phase, and the history."""
    zoo.configure(case)
    probe = device_named(device)
    begun = probe.begin()
    probe.record_history()
    peaks: dict[str, dict[str, int | None]] = {}
    current = "build"
    workload = zoo.build(case, device)

    def enter(step: int, phase: str) -> None:
        nonlocal current
        _keep(peaks, current, probe.peaks())
        probe.restart_peaks()
        current = f"{step} {phase}"

    for step in range(STEPS):
        train_step(workload, partial(enter, step))
    _keep(peaks, current, probe.peaks())
    events = probe.save_history(history_path)
    highest = {
        level: max((peak[level] or 0 for peak in peaks.values()), default=0) or None
        for level in ("allocated", "reserved", "device", "outside")
    }
    outside = highest.pop("outside")
    return {
        **{f"peak_{level}_bytes": size for level, size in highest.items()},
        **begun,
        "outside_bytes": outside,
        "phases": peaks,
        "counters": probe.counters(),
        "history": f"{history_path.parent.name}/{history_path.name}" if events else None,
        "events": events,
    }


def undisturbed(case: Case, device: str) -> dict[str, int | None]:
    """Return the highest peaks of the same two steps without any other reading."""
    zoo.configure(case)
    probe = device_named(device)
    probe.begin()
    workload = zoo.build(case, device)
    for _ in range(STEPS):
        train_step(workload)
    return probe.peaks()


def limited(case: Case, device: str, history_path: Path, limit_bytes: int) -> dict[str, Any]:
    """Run the case while the allocator may reserve no more than this. Return how it ended."""
    zoo.configure(case)
    probe = device_named(device)
    probe.begin()
    probe.record_history()
    torch.cuda.set_per_process_memory_fraction(
        limit_bytes / torch.cuda.get_device_properties(0).total_memory
    )
    error = ""
    try:
        workload = zoo.build(case, device)
        for _ in range(STEPS):
            train_step(workload)
    except torch.OutOfMemoryError as failure:
        error = str(failure)[:500]
    events = probe.save_history(history_path)
    return {
        "limit_bytes": limit_bytes,
        "died": bool(error),
        "message": error,
        **probe.peaks(),
        "counters": probe.counters(),
        "history": f"{history_path.parent.name}/{history_path.name}",
        "events": events,
    }


def read(case: Case) -> dict[str, int]:
    """Return the highest peaks that the agent reads."""
    return asdict(agreement.read_by_agent(case))


def _keep(peaks: dict[str, dict[str, int | None]], name: str, sizes: dict[str, int | None]) -> None:
    """Keep the maximum: with accumulation a phase occurs several times per step."""
    before = peaks.get(name, {})
    peaks[name] = {
        level: size if before.get(level) is None else max(size or 0, before[level] or 0)
        for level, size in sizes.items()
    }


def machine(device: str) -> dict[str, Any]:
    """Describe the GPU, in a separate process because that starts CUDA. Raises RuntimeError without
    one.
    """
    shared = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "versions": _versions(),
    }
    if device == "cpu":
        return {"gpu": "cpu", "device_bytes": None, **shared}
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device here")
    import pynvml

    memory = ProcessMemory()
    memory.begin()
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "device_bytes": properties.total_memory,
        "capability": list(torch.cuda.get_device_capability(0)),
        "is_own": memory.is_own,
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "allocator": torch.cuda.memory.get_allocator_backend(),
        **shared,
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in ("transformers", "peft", "accelerate", "torchvision", "timm"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
