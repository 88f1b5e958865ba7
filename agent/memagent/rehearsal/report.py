"""The result of a rehearsal. Pure: a process's state and the machine in, the verdict out.

Tensors and reserved memory are exact: torch's own allocator counted them. The device level adds the
CUDA context and the cache of longer runs, with an interval.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memagent.errors import RehearsalError
from memagent.estimator.intervals import REHEARSED_CACHE_RATIO, REHEARSED_CONVOLUTIONS_RATIO
from memagent.rehearsal.launch import Machine
from memagent.wire.messages import PredictionMessage

_ENDS = {
    "stopped": "ended by the rehearsal",
    "completed": "the script ended",
    "oom": "out of memory",
    "failed": "the script failed",
    "waiting": "ended: the script waits for a value that a rehearsal doesn't compute",
    "stuck": "ended: no optimizer step for too long",
    "interrupted": "interrupted",
    "killed": "the script's process left without a word",
}
_SIGNALS = frozenset(signal.Signals)
_SOUND_ENDS = ("stopped", "completed")
_LEFT_OUT = ("private workspaces of cuDNN, cuSOLVER and cuSPARSE", "the context's exact size")


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsed script: what it needs, and whether that fits the card.

    - peak_allocated_bytes: what tensors take at once; peak_reserved_bytes: what torch's allocator
      takes for them. Both are exact, and so are `phases` and `components`.
    - error: `message`, `file`, `line` and `step` of the error that ended the script, such as the
      first allocation that fails.
    - backwards: calls of backward, as of scripts without torch's optimizers.
    - place: file and line of a loop that waits for a value; reads: lines that read the device.
    - files: what the script wrote to the copy of its folder, with sizes. outside_files: what it
      wrote elsewhere.
    - architectures: that this torch has kernels for, such as sm_80.
    - tunes_convolutions: `torch.backends.cudnn.benchmark` tries algorithms of cuDNN with workspaces
      up to the free memory, and then uses the fastest.
    - exit_status: of the script's process; negative for a signal.
    - communicators: of NCCL, opened on the device.
    - versions: of the libraries that were loaded. project: as the script's run would have it.
    """

    machine: Machine
    status: str
    steps: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    backwards: int = 0
    retries: int = 0
    caught_ooms: int = 0
    host_peak_bytes: int | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    components: Mapping[str, int | None] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    place: Mapping[str, Any] | None = None
    reads: Sequence[Mapping[str, Any]] = ()
    files: Sequence[tuple[str, int]] = ()
    outside_files: Sequence[str] = ()
    architectures: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    project: str = "default"
    has_convolutions: bool = False
    tunes_convolutions: bool = False
    communicators: int = 0
    exit_status: int | None = None

    @property
    def capacity_bytes(self) -> int:
        """Return the card's memory without that of other processes."""
        return self.machine.card.total_bytes - self.machine.held_bytes

    @property
    def device_bytes(self) -> tuple[int, int, int]:
        """Return memory on the device: with the smallest, the assumed and the largest context and
        buffers of NCCL, the last with what the cache may hold more.

        cudnn.benchmark may fill the card for a moment, and makes do with less.
        """
        low, _ = self.machine.context_interval
        nccl_low, nccl, _ = self.nccl_bytes
        middle = self.peak_reserved_bytes + self.machine.context_bytes + nccl
        high = self.untuned_high_bytes
        if self.tunes_convolutions:
            high = max(high, self.capacity_bytes)
        return self.peak_reserved_bytes + low + nccl_low, middle, high

    @property
    def nccl_bytes(self) -> tuple[int, int, int]:
        """Return the least, the usual and the most that NCCL's buffers take."""
        least, usual, most = self.machine.communicator_bytes
        count = self.communicators
        return count * least, count * usual, count * most

    @property
    def untuned_high_bytes(self) -> int:
        """Return the largest need on the device, without trials of cudnn.benchmark."""
        _, context = self.machine.context_interval
        return self.peak_reserved_bytes + context + self._cache_bytes + self.nccl_bytes[2]

    @property
    def _cache_bytes(self) -> int:
        """Return what the cache may hold beyond the rehearsed peak."""
        lasting = ("parameters", "optimizer_state")
        passing = self.peak_allocated_bytes - sum(self.components.get(n) or 0 for n in lasting)
        convolutions = self.has_convolutions
        ratio = REHEARSED_CONVOLUTIONS_RATIO if convolutions else REHEARSED_CACHE_RATIO
        return round(ratio * max(0, passing))

    @property
    def spare_bytes(self) -> int | None:
        """Return what the card has left with the assumed context; None if it doesn't fit."""
        return self.capacity_bytes - self.device_bytes[1] if self.fits else None

    @property
    def has_steps(self) -> bool:
        """Return whether it trained on the device; without torch's optimizers only to its end."""
        trained = self.steps > 0 or (self.backwards > 0 and self.status == "completed")
        return trained and self.peak_allocated_bytes > 0

    @property
    def fits(self) -> bool | None:
        """Return None if the script ended before that could be known."""
        if self.status == "oom":
            return False
        return True if self.status in _SOUND_ENDS and self.has_steps else None

    @property
    def is_certain(self) -> bool:
        """Return whether the verdict holds for every size of the context."""
        return self.fits is not True or self.device_bytes[2] <= self.capacity_bytes

    @property
    def has_kernels(self) -> bool:
        """Return whether this torch runs on the card; the rehearsal runs no kernel.

        Source: CUDA C++ Programming Guide, binary and PTX compatibility.
        """
        known = (re.match(r"(sm|compute)_(\d+)(\d)", name) for name in self.architectures)
        capability = self.machine.card.capability
        runs = [_runs_on(match[1], match[2], match[3], capability) for match in known if match]
        return any(runs) or not runs

    @property
    def end(self) -> str:
        number = -(self.exit_status or 0)
        if self.status == "killed" and number > 0:
            name = signal.Signals(number).name if number in _SIGNALS else f"signal {number}"
            cause = ", as when the host has no memory left" if number == signal.SIGKILL else ""
            return f"the script's process was ended by {name}{cause}"
        return _ENDS[self.status]

    @property
    def left_out(self) -> tuple[str, ...]:
        return _LEFT_OUT

    def check_steps(self) -> None:
        """Raise RehearsalError if the script has no verdict because it trained nothing."""
        if self.fits is not None or self.has_steps:
            return
        if self.steps:
            raise RehearsalError(
                "The script trains, but not on the GPU: it allocated nothing there."
            )
        advice = "A rehearsal needs a training loop with a torch optimizer."
        if self.status == "killed":
            advice = "Nothing is known about its memory."
        if self.error:
            values = "; values of large tensors, which it read, are zeros" if self.reads else ""
            advice = f"{self.error['message'].partition(chr(10))[0].rstrip('.')}{values}."
        raise RehearsalError(f"The script made no optimizer step: {self.end}. {advice}")

    def to_prediction(self) -> PredictionMessage:
        """Return the prediction for a run of the same script."""
        low, middle, high = self.device_bytes
        known = {name: size for name, size in self.components.items() if size is not None}
        return PredictionMessage(
            method="rehearsal",
            peak_allocated_bytes=self.peak_allocated_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            peak_device_bytes=middle,
            intervals={"device": (low, high)},
            limit_bytes=self.capacity_bytes,
            components={**known, "context": self.machine.context_bytes},
            phases=dict(self.phases),
            terms={"nccl_buffers": self.nccl_bytes[1]} if self.communicators else {},
            assumptions={"status": self.status, "steps": self.steps, **self.versions},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report, ready for JSON, as option `--report` saves it."""
        low, middle, high = self.device_bytes
        return {
            "method": "rehearsal",
            "versions": dict(self.versions),
            "gpu": self.machine.card.name,
            "gpus": self.machine.count,
            "ranks": self.machine.ranks,
            "capacity_bytes": self.capacity_bytes,
            "spare_bytes": self.spare_bytes,
            "status": self.status,
            "fits": self.fits,
            "has_kernels": self.has_kernels,
            "is_certain": self.is_certain,
            "steps": self.steps,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "peak_device_bytes": {"low": low, "middle": middle, "high": high},
            "nccl_bytes": dict(zip(("low", "middle", "high"), self.nccl_bytes, strict=True)),
            "alloc_retries": self.retries,
            "ooms": self.caught_ooms,
            "host_peak_bytes": self.host_peak_bytes,
            "phases": dict(self.phases),
            "components": dict(self.components),
            "error": self.error,
            "waiting_at": self.place,
            "host_reads": list(self.reads),
            "tunes_convolutions": self.tunes_convolutions,
            "files": [{"file": file, "bytes": size} for file, size in self.files],
            "outside_files": list(self.outside_files),
            "left_out": list(self.left_out),
        }


def _runs_on(kind: str, major: str, minor: str, capability: tuple[int, int]) -> bool:
    """Return whether a card runs such kernels: PTX on any later card, others on their kind."""
    made_for = (int(major), int(minor))
    is_later = made_for <= capability
    return is_later and (kind == "compute" or made_for[0] == capability[0])


def rehearsal_of(
    machine: Machine,
    state: Mapping[str, Any],
    files: Sequence[tuple[str, int]] = (),
    outside_files: Sequence[str] = (),
) -> Rehearsal:
    """Return the result; of several devices the one with the highest peak."""
    devices = state.get("devices") or [{}]
    first = max(devices, key=lambda device: device.get("reserved", 0))
    phases: Mapping[str, int] = state.get("phases") or {}
    return Rehearsal(
        machine=machine,
        status=state["status"],
        steps=state["steps"],
        peak_allocated_bytes=max(first.get("allocated", 0), *phases.values(), 0),
        peak_reserved_bytes=first.get("reserved", 0),
        backwards=state.get("backwards", 0),
        retries=first.get("retries", 0),
        caught_ooms=first.get("ooms", 0),
        host_peak_bytes=state.get("host_peak_bytes"),
        phases=phases,
        components=state.get("components") or {},
        error=state.get("error"),
        place=state.get("place"),
        reads=state.get("reads") or (),
        files=files,
        outside_files=outside_files,
        architectures=state.get("architectures") or (),
        versions=state.get("versions") or {},
        project=state.get("project") or "default",
        has_convolutions=bool(state.get("has_convolutions")),
        tunes_convolutions=bool(state.get("tunes_convolutions")),
        communicators=state.get("communicators") or 0,
        exit_status=state.get("exit"),
    )
