"""Truths in one form for the scorer, from any source: one row per case, with bytes at up to three
levels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.estimator import isolated, public, truth_cpu, zoo
from benchmarks.estimator.workload import Case, Where, Workload, train_step
from memagent.estimator.formula.spec import TrainingSpec

FOLDER = Path(__file__).parent / "truth"

LEVELS = ("allocated", "reserved", "device")
"""Peaks of live bytes as the allocator counts them, of its reserved memory, and of what NVML shows
for the device.
"""

CPU = "this machine's CPU"


@dataclass(frozen=True)
class Truth:
    """Need of a case. `levels` are bytes; `fits_bytes` is a size in which it ran out of memory."""

    source: str
    device: str
    case: Case
    levels: dict[str, int] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)
    counted_bytes: int | None = None
    """Highest peak by counted storages, and below it by the profiler."""
    profiled_bytes: int | None = None
    died_at_bytes: int | None = None
    context_bytes: int | None = None
    """Memory of the process on the device apart from tensors, if it was measured."""
    device_bytes: int | None = None
    spec: TrainingSpec | None = None
    """Training for the shape formula, if its options don't follow from the case."""
    is_formula_only: bool = False
    note: str = ""

    @property
    def where(self) -> Where:
        return Where(self.device, self.device_bytes, self.context_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON, without the spec."""
        return asdict(replace(self, spec=None))


def measured_here(cases: Iterable[Case]) -> Iterator[Truth]:
    """Run each case on the CPU by both methods."""
    for case in cases:
        package = zoo.missing(case)
        if package:
            yield Truth(CPU, "cpu", case, note=f"{package} is not installed")
            continue
        build = partial(zoo.build, case)
        counted = isolated.call(partial(_warm, truth_cpu.measured_peaks, build))
        profiled = isolated.call(partial(_warm, truth_cpu.profiled_peaks, build))
        if counted.value is None or profiled.value is None:
            yield Truth(CPU, "cpu", case, note=counted.error or profiled.error)
            continue
        both = truth_cpu.smaller(counted.value, profiled.value)
        peaks = counted.value.peak_bytes, profiled.value.peak_bytes
        yield Truth(CPU, "cpu", case, {"allocated": both.peak_bytes}, both.by_phase, *peaks)


def _warm(
    measure: Callable[..., truth_cpu.Peaks], build: Callable[[], Workload]
) -> truth_cpu.Peaks:
    """Run once first: its imports would allocate within the record and free older memory."""
    with truth_cpu.one_thread():
        train_step(build())
        return measure(build)


def recorded(folder: Path = FOLDER) -> Iterator[Truth]:
    """Read what `record` wrote below `truth/`, a file per kind of GPU."""
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        if content.get("kind") != "recorded":
            continue
        for row in content["cases"]:
            levels = {
                level: row[f"peak_{level}_bytes"]
                for level in LEVELS
                if row.get(f"peak_{level}_bytes")
            }
            rest = {
                "context_bytes": row.get("context_bytes"),
                "device_bytes": content.get("device_bytes"),
                "note": row.get("error", ""),
            }
            yield Truth(
                content["gpu"], "cuda", Case(**row["case"]), levels, _allocated(row), **rest
            )


def _allocated(row: dict[str, Any]) -> dict[str, int]:
    return {phase: peak["allocated"] for phase, peak in row.get("phases", {}).items()}


def published(folder: Path = FOLDER) -> Iterator[Truth]:
    """Return the published measurements."""
    for row in public.rows(folder / public.FILE):
        yield Truth(
            row.source, "cuda", row.case, row.levels, died_at_bytes=row.died_at_bytes, device_bytes=row.device_bytes, spec=row.spec,
            is_formula_only=row.is_formula_only,
        )  # fmt: skip
