"""Changes that can be tried from outside of a script, each by a rehearsal of its own.

Names and costs are those of the catalogue of advice. Settings of the allocator are variables; the
other changes are made in the script's process (`script_changes`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memagent.estimator.advice.catalog import BY_KEY, CHANGES
from memagent.rehearsal.batch_search import BatchSlot
from memagent.rehearsal.report import Rehearsal
from memagent.rehearsal.script import Script

ALLOCATOR_SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8",
)
"""Values that PyTorch's notes on CUDA show, or usual ones; 512 MiB splits no large activation."""
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_PROCESS_CHANGES = {
    **{
        key: BY_KEY[key].name
        for key in ("zero_grad", "autocast", "checkpointing", "optimizer_step", "adafactor")
    },
    "fused": "Fused optimizer step",
    "sgd": "SGD without momentum",
}
"""Names of the changes that `script_changes` makes."""
NOT_TRIED = tuple(
    change.name
    for change in CHANGES
    if change.key not in (*_PROCESS_CHANGES, "expandable_segments")
)
"""They need other packages, more GPUs, or another model."""


@dataclass(frozen=True)
class ChangedScript:
    """A change's name, and the script with it."""

    name: str
    script: Script


@dataclass(frozen=True)
class ChangedRun:
    """A changed script's result beside the unchanged one's; no savings if one doesn't fit."""

    name: str
    now: Rehearsal
    result: Rehearsal
    elapsed_s: float

    @property
    def allocated_saving_bytes(self) -> int | None:
        saving = self.now.peak_allocated_bytes - self.result.peak_allocated_bytes
        return saving if self._is_comparable else None

    @property
    def reserved_saving_bytes(self) -> int | None:
        """Return the saving on the device, too: the context stays the same."""
        saving = self.now.peak_reserved_bytes - self.result.peak_reserved_bytes
        return saving if self._is_comparable else None

    @property
    def _is_comparable(self) -> bool:
        return bool(self.now.fits and self.result.fits)

    def to_dict(self) -> dict[str, Any]:
        return {
            "change": self.name,
            "fits": self.result.fits,
            "status": self.result.status,
            "peak_allocated_bytes": self.result.peak_allocated_bytes,
            "peak_reserved_bytes": self.result.peak_reserved_bytes,
            "peak_device_bytes": self.result.device_bytes[1],
            "allocated_saving_bytes": self.allocated_saving_bytes,
            "reserved_saving_bytes": self.reserved_saving_bytes,
            "elapsed_s": round(self.elapsed_s, 1),
        }


@dataclass(frozen=True)
class WhatIf:
    """The changed runs, the largest saving first; those that don't fit come last."""

    now: Rehearsal
    runs: tuple[ChangedRun, ...] = ()

    def sorted(self) -> list[ChangedRun]:
        return sorted(
            self.runs, key=lambda run: (not run.result.fits, run.result.peak_reserved_bytes)
        )

    def to_dict(self) -> dict[str, Any]:
        return {"changes": [run.to_dict() for run in self.sorted()], "not_tried": list(NOT_TRIED)}


def changed_scripts(slot: BatchSlot, environment: Mapping[str, str]) -> Iterator[ChangedScript]:
    """Yield the script with each change; with half the batch if there is a slot for it."""
    script = slot.script_with(slot.first)
    for setting in ALLOCATOR_SETTINGS:
        name = next((n for n in _ALLOCATOR_VARIABLES if n in environment), _ALLOCATOR_VARIABLES[1])
        now = environment.get(name, "")
        if setting.partition(":")[0] not in now:
            joined = ",".join(filter(None, (now, setting)))
            variables = {**script.variables, name: joined}
            yield ChangedScript(setting, replace(script, variables=variables))
    for key, name in _PROCESS_CHANGES.items():
        yield ChangedScript(name, replace(script, change=key))
    if slot.placeholder and slot.first > 1:
        half = slot.first // 2
        yield ChangedScript(f"Batch of {half:,} instead of {slot.first:,}", slot.script_with(half))


def try_changes(
    now: Rehearsal, scripts: Iterable[ChangedScript], rehearse: Callable[[ChangedScript], Rehearsal]
) -> WhatIf:
    """Rehearse each change; an interrupt ends that, and what is known stays."""
    runs: list[ChangedRun] = []
    for changed in scripts:
        began_at = time.monotonic()
        result = rehearse(changed)
        if result.status == "interrupted":
            break
        runs.append(ChangedRun(changed.name, now, result, time.monotonic() - began_at))
    return WhatIf(now, tuple(runs))
