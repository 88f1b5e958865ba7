"""From a trace to an estimate: the events are replayed through the simulated allocator.

Three levels, each with its own meaning:
1. `peak_allocated_bytes` is what the tensors take, as torch's allocator counts them (rounded to 512 bytes, with the slack of large blocks).
2. `peak_reserved_bytes` is what the allocator obtains from the driver for that, fragmentation included.
3. `peak_device_bytes` adds the CUDA context: what nvidia-smi shows.
On a host there is no caching allocator; the first level is what was asked for, and `context_bytes` what the process holds besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from memagent.estimator.allocator import AllocatorConfig, Replay, replay
from memagent.estimator.estimate import Estimate
from memagent.estimator.trace import MemoryEvent, Trace

LOW, HIGH = 0.98, 1.02
"""Bounds of the peak relative to the estimate; what the published rows and the zoo show (docs/estimator-accuracy.md)."""
TOP_TENSORS = 10
_WORKSPACE_STORAGE = -1


def estimate_of(
    trace: Trace,
    *,
    allocator: AllocatorConfig | None = None,
    limit_bytes: int | None = None,
    workspace_bytes: int = 0,
    context_bytes: int = 0,
    assumptions: Mapping[str, Any] | None = None,
) -> Estimate:
    """The estimate of a traced step. `workspace_bytes` is what libraries keep in the allocator (cuBLAS), `context_bytes` what the process
    holds outside of it."""
    facts = {**(assumptions or {}), **_facts(trace)}
    if trace.device_rules == "cpu":
        return _on_host(trace, limit_bytes, context_bytes, facts)
    events = list(_with_workspace(trace.events, workspace_bytes))
    replayed = replay(events, allocator)
    fits = _fits(events, allocator, replayed, limit_bytes, context_bytes)
    allocated = replayed.peak_allocated
    return Estimate(
        method="trace",
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=replayed.peak_reserved,
        peak_device_bytes=replayed.peak_reserved + context_bytes,
        intervals={"allocated": (int(LOW * allocated), int(HIGH * allocated))},
        limit_bytes=limit_bytes,
        components=_components(events, trace.steps, allocated)
        | {"fragmentation": replayed.fragmentation, "context": context_bytes},
        phases={peak.phase: peak.allocated for peak in replayed.phases if peak.step == trace.steps - 1},
        assumptions=facts,
        timeline=tuple((f"{peak.phase} of step {peak.step}", peak.allocated) for peak in replayed.phases),
        fits_by_replay=fits,
    )


def _on_host(trace: Trace, limit_bytes: int | None, context_bytes: int, facts: dict[str, Any]) -> Estimate:
    summary = trace.summary(top=0)
    peak = summary.peak_bytes + context_bytes
    return Estimate(
        method="trace",
        peak_allocated_bytes=peak,
        intervals={"allocated": (int(LOW * peak), int(HIGH * peak))},
        limit_bytes=limit_bytes,
        components=_components(trace.events, trace.steps, summary.peak_bytes) | {"context": context_bytes},
        phases={name: size + context_bytes for name, size in summary.phase_peak_bytes.items()},
        assumptions=facts,
        timeline=tuple((name, size + context_bytes) for name, size in summary.phase_peak_bytes.items()),
    )


def _fits(
    events: list[MemoryEvent],
    allocator: AllocatorConfig | None,
    endless: Replay,
    limit_bytes: int | None,
    context_bytes: int,
) -> bool | None:
    """Whether the step goes through with this much memory: the allocator gives its cache back before it gives up."""
    if limit_bytes is None:
        return None
    if not _is_over(endless, limit_bytes, context_bytes):
        return True
    if endless.peak_allocated + context_bytes > limit_bytes:
        return False
    return replay(events, allocator, limit_bytes, outside_bytes=context_bytes).ok


def _is_over(endless: Replay, limit_bytes: int | None, context_bytes: int) -> bool:
    return limit_bytes is not None and endless.peak_reserved + context_bytes > limit_bytes


def _with_workspace(events: Iterable[MemoryEvent], size_bytes: int) -> Iterator[MemoryEvent]:
    """The events, with cuBLAS' workspace taken where the first forward begins, for good."""
    due = size_bytes > 0
    for event in events:
        if due and event.phase != "data":
            due = False
            yield replace(
                event, kind="alloc", storage=_WORKSPACE_STORAGE, size_bytes=size_bytes, component="workspace",
                shape=(), dtype="", module="", source="", op="cublas",
            )  # fmt: skip
        yield event


def _components(events: Iterable[MemoryEvent], steps: int, peak: int) -> dict[str, int]:
    """Bytes by component, each as a run's own reading has it, so that the two can be compared: gradients as the optimizer's step finds
    them, activations as the peak less what is held from step to step. The batch counts as activations."""
    held: Counter[str] = Counter()
    most: Counter[str] = Counter(dict.fromkeys(("parameters", "gradients", "optimizer_state", "buffers"), 0))
    kept: dict[str, int] | None = None
    for event in events:
        if kept is None and event.step == steps - 1:
            kept = dict(held)
        held[event.component] += event.size_bytes if event.kind == "alloc" else -event.size_bytes
        if event.component in most:
            most[event.component] = max(most[event.component], held[event.component])
    kept = kept or {}
    return {**most, "activations": max(0, peak - sum(kept.values())), "workspace": kept.get("workspace", 0)}


def _facts(trace: Trace) -> dict[str, Any]:
    """What the trace ran, and the largest tensors at its peak: JSON-ready."""
    top = trace.summary(top=TOP_TENSORS).top
    return {
        "traced_for": trace.device_rules,
        "optimizer": trace.optimizer,
        "torch": trace.torch_version,
        "notes": list(trace.notes),
        "largest_tensors": [
            {
                "size_bytes": tensor.size_bytes,
                "component": tensor.component,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                "module": tensor.module,
                "source": tensor.source,
                "op": tensor.op,
            }
            for tensor in top
        ],
    }
