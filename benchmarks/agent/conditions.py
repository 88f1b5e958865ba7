"""Conditions of a block of steps: nothing, the raw reads, the hand-off alone, or the agent; and
timers around their hooks.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch.optim import optimizer as torch_optimizer

import memagent
from benchmarks.agent.workload import Workload
from memagent.delivery.buffer import DroppedSamples, SampleBuffer

COLUMNS = 24
"""Approximate number of values in a row of the host's stream."""


class HookTimer:
    """Timers around the hooks registered on the workload during construction; a sum of seconds per
    step.

    Adds some 0.1 us per hook, the timer's own cost, and omits what torch itself needs to call a
    hook.
    """

    def __init__(self, workload: Workload, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._workload = workload
        self._before = {(id(table), key) for table in _hook_tables(workload) for key in table}
        self._seconds = 0.0

    def start(self) -> None:
        """Wrap all hooks registered since this object was created."""
        for table in _hook_tables(self._workload):
            for key in table:
                if (id(table), key) not in self._before:
                    table[key] = self._timed(table[key])

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        clock = self._clock

        def timed(*arguments: Any) -> Any:
            began = clock()
            result = hook(*arguments)
            self._seconds += clock() - began
            return result

        return timed


def _hook_tables(workload: Workload) -> Iterator[dict[int, Any]]:
    optimizer = workload.optimizer
    yield from (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    yield from (
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    for module in workload.model.modules():
        for table in (module._forward_pre_hooks, module._forward_hooks):
            yield table
            yield getattr(table, "hidden", {})  # the agent's (memagent.hooks.hidden_hooks)
        yield from (module._backward_pre_hooks, module._backward_hooks)


@contextmanager
def bare(_workload: Workload) -> Iterator[None]:
    yield


@contextmanager
def agent(workload: Workload) -> Iterator[None]:
    """Run the agent with everything enabled, recording to a local file."""
    run = memagent.attach(workload.model, workload.optimizer)
    try:
        yield
    finally:
        run.finish()


@contextmanager
def empty_hooks(workload: Workload) -> Iterator[None]:
    """Do nothing at the four moments of a step: the timers alone."""
    with _hooks(workload, moment=lambda *_: None, end=lambda *_: None):
        yield


@contextmanager
def raw_reads(workload: Workload) -> Iterator[None]:
    """Read memory at each of the four moments of a step, and the kernel's high-water mark once:
    system calls and nothing else.
    """
    read, peak, close = _reader(workload)

    def moment(*_: Any) -> None:
        read()

    def end(*_: Any) -> None:
        read()
        peak()

    try:
        with _hooks(workload, moment, end):
            yield
    finally:
        close()


@contextmanager
def _hooks(
    workload: Workload, moment: Callable[..., None], end: Callable[..., None]
) -> Iterator[None]:
    """Call `moment` at three moments of a step, and `end` at its end."""
    model, optimizer = workload.model, workload.optimizer
    handles = [
        model.register_forward_pre_hook(moment),
        model.register_forward_hook(moment),
        optimizer.register_step_pre_hook(moment),
        optimizer.register_step_post_hook(end),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def hand_off(workload: Workload) -> Iterator[None]:
    """Append a prepared row to the agent's buffer at each step; drain it four times a second."""
    buffer = SampleBuffer(
        "benchmark", [f"value_{number}" for number in range(COLUMNS)], DroppedSamples()
    )
    values = list(range(COLUMNS))
    stop = threading.Event()

    def drain() -> None:
        while not stop.wait(0.25):
            buffer.drain()

    thread = threading.Thread(target=drain)
    thread.start()
    handle = workload.optimizer.register_step_post_hook(
        lambda *_: buffer.append(((*values,), None))
    )
    try:
        yield
    finally:
        handle.remove()
        stop.set()
        thread.join()


def _reader(workload: Workload) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], None]]:
    """Return the cheapest read of used memory, the read of its peak, and the function that closes
    both.
    """
    device = next(workload.model.parameters()).device
    if device.type == "cuda":
        stats, index = torch._C._cuda_memoryStats, device.index or 0
        return lambda: stats(index), lambda: None, lambda: None
    if sys.platform.startswith("linux"):
        pread, fd = os.pread, os.open("/proc/self/statm", os.O_RDONLY)
        return (
            lambda: pread(fd, 128, 0),
            lambda: resource.getrusage(resource.RUSAGE_SELF),
            lambda: os.close(fd),
        )
    return psutil.Process().memory_info, lambda: None, lambda: None


def agent_cpu_s() -> float | None:
    """Return the CPU time of the agent's threads, or None if the system doesn't report it."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return None
    total = 0.0
    for thread in threading.enumerate():
        if thread.name.startswith("memagent") and thread.ident is not None:
            total += time.clock_gettime(clock_of(thread.ident))
    return total
