"""Truth on the CPU: the steps run for real, and every storage is followed from its birth to its death.

1. A dispatch mode sees the results of every operator that runs, in forward, in backward and in the optimizer. A storage it has not seen
   is counted with its bytes, and a weak reference on it takes them off when the last tensor or autograd node lets go of it.
2. It is on while the model is built too, so that nothing is alive that was not counted; what is already alive (buffers made by numpy,
   say) is added before the first step.
3. The peak of a phase is the largest sum of live bytes while it lasts. What a kernel allocates for itself and frees before it returns
   has no tensor and is not in it.
4. `profiled_peaks` runs the same steps again, without the mode, under `torch.profiler(profile_memory=True)`, which is told of each
   malloc and free by the CPU allocator itself.
5. Both can only be too high, so the truth is the smaller one, phase by phase (`smaller`). The profiler counts the kernels' scratch,
   which says nothing of another device. And where any dispatch mode is on, autograd does not add up the gradients of a tensor with
   several uses in place (`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp): such additions are recognised, and made so.
6. What neither is: the states of random generators that checkpointing keeps (5,056 bytes each on the CPU) are seen by the profiler only.
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
    """Bytes of live storages at their most, by step (0 warms up, 1 is steady) and phase."""

    by_phase: dict[str, int]
    start_bytes: int

    @property
    def peak_bytes(self) -> int:
        return max(self.by_phase.values())


def smaller(counted: Peaks, profiled: Peaks) -> Peaks:
    """Phase by phase: what both methods agree was not needed, was not."""
    pairs = ((phase, size, profiled.by_phase[phase]) for phase, size in counted.by_phase.items())
    return Peaks(
        {phase: min(one, other) for phase, one, other in pairs},
        min(counted.start_bytes, profiled.start_bytes),
    )


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of all storages that operators give back while it is on, less those that have died."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes, self.peak_bytes = 0, 0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
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
        """Counts the tensor's storage, once, and again where it has been resized."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self._known.get(key)
        if known is not None and known[0]() is not None:
            self.live_bytes += size - known[1]
            self._known[key] = (known[0], size)
        else:
            self._known[key] = (weakref.ref(storage, self._on_death(key)), size)
            self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def on_storage_resize(self, storage: Any) -> None:
        """A storage was resized behind the operators' back, as FSDP frees its parameters."""
        known = self._known.get(storage._cdata)
        if known is not None:
            self.live_bytes += storage.nbytes() - known[1]
            self._known[storage._cdata] = (known[0], storage.nbytes())
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def restart_peak(self) -> None:
        self.peak_bytes = self.live_bytes

    def _on_death(self, key: int) -> Callable[[Any], None]:
        def forget(reference: Any) -> None:
            known = self._known.get(key)
            if known is not None and known[0] is reference:
                del self._known[key]
                self.live_bytes -= known[1]

        return forget


def measured_peaks(build: Callable[[], Workload]) -> Peaks:
    """Runs the two steps and counts."""
    peaks: dict[str, int] = {}
    with LiveStorages() as live, track_resizes(live):
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
    """The same by what the CPU allocator reports to torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        workload = build()
        gc.collect()
        marks = _Marks()
        for step in range(STEPS):
            train_step(workload, lambda phase, step=step: marks.enter(f"{step} {phase}"))  # type: ignore[misc]
        marks.enter(None)
    return _replayed(profiler)


class _Marks:
    """A named range of the profiler for each phase, from where it begins to where the next one does."""

    def __init__(self) -> None:
        self._open: record_function | None = None

    def enter(self, name: str | None) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = record_function(_MARK + name) if name is not None else None
        if self._open is not None:
            self._open.__enter__()


def _replayed(profiler: profile) -> Peaks:
    """Adds up mallocs and frees in the order of their times; the ranges say whose phase each is."""
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
    """As many threads as scratch buffers: one, so that the profiler's figure does not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def complete(peaks: Peaks) -> bool:
    """Whether every phase of every step has its peak."""
    return set(peaks.by_phase) == {f"{step} {phase}" for step in range(STEPS) for phase in PHASES}
