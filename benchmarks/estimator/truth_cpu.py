"""Truth on the CPU: the steps run for real, and every storage is followed from allocation to
release.

1. A dispatch mode sees the results of every operator in forward, backward and the optimizer. A new
   storage is counted with its bytes, and a weak reference subtracts them when its last tensor or
   autograd node is gone.
2. The mode is active while the model is built, so that every live storage is counted. Storages that
   exist already, such as buffers made by numpy, are added before the first step.
3. The peak of a phase is the largest sum of live bytes during it. Memory that a kernel allocates
   and frees before it returns has no tensor and is not included.
4. `profiled_peaks` runs the same steps again, without the mode, under
   `torch.profiler(profile_memory=True)`, to which the CPU allocator reports each malloc and free.
5. Both can only be too high, so the truth is the smaller one, phase by phase (`smaller`). The
   profiler counts the kernels' workspace, which says nothing about another device. And while a
   dispatch mode is active, autograd doesn't sum gradients in place for a tensor with several uses
   (`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp): such additions are recognised
   and counted as in-place.
6. Only the profiler sees the states of random generators that checkpointing keeps (5,056 bytes each
   on the CPU).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from benchmarks.estimator.workload import PHASES, STEPS, Workload, train_step
from memagent.estimator.trace.gradients import GradientSums
from memagent.estimator.trace.recorder import plain_tensors
from memagent.estimator.trace.session import track_resizes

_MARK = "phase of "


@dataclass(frozen=True)
class Peaks:
    """Maximum bytes of live storages by step (0 warms up, 1 is steady) and phase."""

    by_phase: dict[str, int]
    start_bytes: int

    @property
    def peak_bytes(self) -> int:
        return max(self.by_phase.values())


def smaller(counted: Peaks, profiled: Peaks) -> Peaks:
    """Return the minimum of both methods, phase by phase."""
    pairs = ((phase, size, profiled.by_phase[phase]) for phase, size in counted.by_phase.items())
    return Peaks(
        {phase: min(one, other) for phase, one, other in pairs},
        min(counted.start_bytes, profiled.start_bytes),
    )


class LiveStorages(TorchDispatchMode):
    """Counter of the bytes of all storages that operators return while it is active, minus the
    released ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes, self.peak_bytes = 0, 0
        self._storages: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._sums = GradientSums()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor: count the tensors inside it
        if func is torch.ops.aten.add.Tensor and self._sums.is_in_place(args):
            func = torch.ops.aten.add_.Tensor
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result

    def add(self, tensor: torch.Tensor) -> None:
        """Count the tensor's storage once, and again after a resize."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        entry = self._storages.get(key)
        if entry is not None and entry[0]() is not None:
            self.live_bytes += size - entry[1]
            self._storages[key] = (entry[0], size)
        else:
            self._storages[key] = (weakref.ref(storage, self._on_death(key)), size)
            self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def on_storage_resize(self, storage: Any) -> None:
        """Handle a storage resized without an operator, as FSDP does to free its parameters."""
        entry = self._storages.get(storage._cdata)
        if entry is not None:
            self.live_bytes += storage.nbytes() - entry[1]
            self._storages[storage._cdata] = (entry[0], storage.nbytes())
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def restart_peak(self) -> None:
        self.peak_bytes = self.live_bytes

    def _on_death(self, key: int) -> Callable[[Any], None]:
        def forget(reference: Any) -> None:
            entry = self._storages.get(key)
            if entry is not None and entry[0] is reference:
                del self._storages[key]
                self.live_bytes -= entry[1]

        return forget


def measured_peaks(build: Callable[[], Workload]) -> Peaks:
    """Run the two steps and count."""
    peaks: dict[str, int] = {}
    with LiveStorages() as live, track_resizes(live.on_storage_resize):
        workload = build()
        for tensor in _tensors(workload):
            live.add(tensor)
        gc.collect()
        start = live.live_bytes
        current: str | None = None
        for step in range(STEPS):

            def enter(phase: str, step: int = step) -> None:
                nonlocal current
                _keep_peak(peaks, current, live.peak_bytes)
                live.restart_peak()
                current = f"{step} {phase}"

            train_step(workload, enter)
        _keep_peak(peaks, current, live.peak_bytes)
    return Peaks(peaks, start)


def _keep_peak(peaks: dict[str, int], name: str | None, size: int) -> None:
    if name is not None:
        peaks[name] = max(peaks.get(name, 0), size)


def _tensors(workload: Workload) -> Iterator[torch.Tensor]:
    for tensor in (*workload.model.parameters(), *workload.model.buffers()):
        yield from plain_tensors(tensor)


def profiled_peaks(build: Callable[[], Workload]) -> Peaks:
    """Return the same from what the CPU allocator reports to torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        workload = build()
        gc.collect()
        marks = _Marks()
        for step in range(STEPS):
            train_step(workload, lambda phase, step=step: marks.enter(f"{step} {phase}"))  # type: ignore[misc]
        marks.enter(None)
    return _replayed(profiler)


class _Marks:
    """Mark a named range in the profiler for each phase, until the next one starts."""

    def __init__(self) -> None:
        self._open: record_function | None = None

    def enter(self, name: str | None) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = record_function(_MARK + name) if name is not None else None
        if self._open is not None:
            self._open.__enter__()


def _replayed(profiler: profile) -> Peaks:
    """Sum mallocs and frees by time; the ranges give the phase of each."""
    events = list(profiler.profiler.kineto_results.events())  # type: ignore[union-attr]
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    ranges = sorted(
        (event.start_ns(), event.name().removeprefix(_MARK))
        for event in events
        if event.name().startswith(_MARK)
    )
    peaks: dict[str, int] = {}
    live, start, at = 0, 0, -1
    for time_ns, size in changes:
        while at + 1 < len(ranges) and ranges[at + 1][0] <= time_ns:
            at += 1
            start = live if at == 0 else start
            _keep_peak(peaks, ranges[at][1], live)
        live += size
        if at >= 0:
            _keep_peak(peaks, ranges[at][1], live)
    return Peaks(peaks, start)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: each thread has its own workspace, and the profiler's figure must not depend
    on the machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def complete(peaks: Peaks) -> bool:
    """Check that every phase of every step has a peak."""
    return set(peaks.by_phase) == {f"{step} {phase}" for step in range(STEPS) for phase in PHASES}
