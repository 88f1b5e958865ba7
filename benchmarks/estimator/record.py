"""Measure the zoo on this machine's GPU and keep the result as truth: `python -m
benchmarks.estimator record [--out FILE]`.

1. Each case runs in a process forked before CUDA starts: a new context, an empty allocator, no
   history.
2. The context is the increase that NVML shows for the device after the first kernel, minus what the
   allocator holds.
3. Phase peaks are exact: the allocator's peak counters are reset at the start of a phase, after the
   device has caught up.
4. The history starts before the model is built, so a replay starts from an empty allocator. A
   second, undisturbed run of the same case, without history and resets, must give the same highest
   peak: `undisturbed_allocated_bytes`.
5. NVML is read at the end of each phase, and the maximum is kept. Used memory of the device
   includes other processes; their share before the case is subtracted. The machine should be idle
   otherwise; `others_bytes` records what was there.

With `--device cpu` everything that needs no CUDA runs, to try the recorder. Its figures then equal
those of `truth_cpu`.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.estimator import history, isolated, truth_cpu, zoo
from benchmarks.estimator.estimators import warm_up
from benchmarks.estimator.truths import FOLDER
from benchmarks.estimator.workload import STEPS, Case, train_step

_MOST_EVENTS = 2_000_000
_TIMEOUT_S = 600.0


class Device(Protocol):
    """Interface of a device to the recorder. Sizes are bytes."""

    def begin(self) -> dict[str, int | None]:
        """Start the device and return the memory that takes."""

    def record_history(self) -> None: ...
    def restart_peaks(self) -> None: ...
    def peaks(self) -> dict[str, int | None]:
        """Return allocated, reserved and device peaks since the last restart."""

    def save_history(self, path: Path) -> int: ...
    def counters(self) -> dict[str, int]: ...


class CudaDevice:
    """The first visible GPU."""

    def __init__(self) -> None:
        self._others = 0
        self._handle: Any = None
        self._nvml: Any = None

    def begin(self) -> dict[str, int | None]:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(_uuid())
        self._others = self._used()
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
        context = self._used() - self._others - torch.cuda.memory_reserved()
        return {"others_bytes": self._others, "context_bytes": context}

    def record_history(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=_MOST_EVENTS
        )

    def restart_peaks(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, int | None]:
        torch.cuda.synchronize()
        return {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "device": self._used() - self._others,
        }

    def save_history(self, path: Path) -> int:
        return history.write(path, torch.cuda.memory._snapshot())

    def counters(self) -> dict[str, int]:
        names = (
            "num_alloc_retries",
            "num_ooms",
            "segment.all.peak",
            "inactive_split_bytes.all.peak",
            "requested_bytes.all.peak",
        )
        stats = torch.cuda.memory_stats()
        return {name: int(stats.get(name, 0)) for name in names}

    def _used(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def main(out: Path | None, *, device: str = "cuda", quick: bool = False) -> int:
    """Record all cases and write the file. Return 1 if there is no such device."""
    outcome = isolated.call(partial(_machine, device))
    if outcome.value is None:
        print(f"there is nothing to record: {outcome.error}", file=sys.stderr)
        return 1
    path = out or FOLDER / f"{_file_name(outcome.value['gpu'])}.json"
    histories = path.with_suffix("")
    cases = zoo.small(quick=quick) + ([] if quick or device == "cpu" else zoo.large())
    warm_up(zoo.small(quick=quick))
    rows = list(_recorded(cases, device, histories))
    content = {"kind": "recorded" if device == "cuda" else "tried", **outcome.value, "cases": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    failed = [row for row in rows if row.get("error")]
    print(f"{len(rows) - len(failed)} of {len(rows)} cases recorded in {path}")
    for row in failed:
        print(f"   {row['case']['name']}: {row['error']}")
    return 0


def _recorded(cases: list[Case], device: str, histories: Path) -> Iterator[dict[str, Any]]:
    for case in cases:
        package = zoo.missing(case)
        if package:
            yield {"case": asdict(case), "error": f"{package} is not installed"}
            continue
        path = histories / f"{_file_name(case.name)}.json.gz"
        first = isolated.call(partial(measure, case, device, path), timeout_s=_TIMEOUT_S)
        again = isolated.call(partial(undisturbed, case, device), timeout_s=_TIMEOUT_S)
        row = {
            "case": asdict(case),
            **(first.value or {"error": first.error}),
            "undisturbed_allocated_bytes": again.value,
        }
        print(f"{case.name}: {row.get('error') or row['peak_allocated_bytes']}", flush=True)
        yield row


def measure(case: Case, device: str, history_path: Path) -> dict[str, Any]:
    """Run one case on a new device. Return its peaks by step and phase, and the history."""
    probe = _device(device)
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
        for level in ("allocated", "reserved", "device")
    }
    return {
        **{f"peak_{level}_bytes": size for level, size in highest.items()},
        **begun,
        "phases": peaks,
        "counters": probe.counters(),
        "history": f"{history_path.parent.name}/{history_path.name}" if events else None,
        "events": events,
    }


def undisturbed(case: Case, device: str) -> int | None:
    """Return the highest allocated peak of the same two steps without any other reading."""
    probe = _device(device)
    probe.begin()
    workload = zoo.build(case, device)
    for _ in range(STEPS):
        train_step(workload)
    return probe.peaks()["allocated"]


class CpuDevice:
    """Stand-in without a GPU: counts live storages; nothing is reserved, and there is no history."""

    def __init__(self) -> None:
        self._live = truth_cpu.LiveStorages()

    def begin(self) -> dict[str, int | None]:
        self._live.__enter__()
        return {"others_bytes": None, "context_bytes": None}

    def record_history(self) -> None:
        return None

    def restart_peaks(self) -> None:
        self._live.restart_peak()

    def peaks(self) -> dict[str, int | None]:
        return {"allocated": self._live.peak_bytes, "reserved": None, "device": None}

    def save_history(self, path: Path) -> int:
        return 0

    def counters(self) -> dict[str, int]:
        return {}


def _device(kind: str) -> Device:
    return CudaDevice() if kind == "cuda" else CpuDevice()


def _keep(peaks: dict[str, dict[str, int | None]], name: str, sizes: dict[str, int | None]) -> None:
    """Keep the maximum: with accumulation a phase occurs several times per step."""
    before = peaks.get(name, {})
    peaks[name] = {
        level: size if before.get(level) is None else max(size or 0, before[level] or 0)
        for level, size in sizes.items()
    }


def _machine(device: str) -> dict[str, Any]:
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

    pynvml.nvmlInit()
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "device_bytes": properties.total_memory,
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "allocator": torch.cuda.memory.get_allocator_backend(),
        **shared,
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in ("transformers", "peft", "accelerate"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _uuid() -> str:
    """Return the UUID in NVML's form."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
