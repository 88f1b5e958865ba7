"""From a trace to an estimate: the events are replayed through the simulated allocator.

Three levels, each with its own meaning:
1. `peak_allocated_bytes` is what the tensors take, as torch's allocator counts them (rounded to 512 bytes, with the slack of large blocks).
2. `peak_reserved_bytes` is what the allocator obtains from the driver for that, fragmentation included.
3. `peak_device_bytes` adds the CUDA context, and what longer runs leave in the cache: what nvidia-smi shows.
On a host there is no caching allocator; the first level is what was asked for, and `context_bytes` what the process holds besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from memagent.estimator.advice.trace_rewrites import holds_scores
from memagent.estimator.allocator import AllocatorConfig, Replay, replay
from memagent.estimator.estimate import Estimate, Interval
from memagent.estimator.intervals import (
    TRACED,
    TRACED_CONVOLUTIONS,
    TRACED_ON_HOST,
    Spread,
    context_widths,
    intervals_of,
)
from memagent.estimator.trace import MemoryEvent, Trace

HISTORY = 0.05
"""What the allocator keeps in a long run beyond the replay of two steps, as a share of what comes and goes: other lengths, evaluations,
saves. Six measured fine-tunings had 0.01 to 0.2 (and one that gave its cache back less); half of their middle, as short runs have none."""
TOP_TENSORS = 10
_WORKSPACE_STORAGE = -1


def estimate_of(
    trace: Trace,
    *,
    allocator: AllocatorConfig | None = None,
    limit_bytes: int | None = None,
    workspace_bytes: int = 0,
    context_bytes: int = 0,
    context_interval: Interval | None = None,
    assumptions: Mapping[str, Any] | None = None,
) -> Estimate:
    """The estimate of a traced step. `workspace_bytes` is what libraries keep in the allocator (cuBLAS), `context_bytes` what the process
    holds outside of it, with `context_interval` where that was not measured. Where the limit makes the allocator give back its cache, what
    is reserved is what it then holds."""
    facts = {**(assumptions or {}), **_facts(trace), **_seen(trace, assumptions or {})}
    if trace.device_rules == "cpu":
        return _on_host(trace, limit_bytes, context_bytes, facts)
    events = list(_with_workspace(trace.events, workspace_bytes))
    replayed = replay(events, allocator)
    fits, limited = _limited(events, allocator, replayed, limit_bytes, context_bytes)
    gives_back = limited is not replayed
    replayed = limited
    allocated, reserved = replayed.peak_allocated, replayed.peak_reserved
    components = _components(events, trace.steps, allocated)
    passing = _passing(components, allocated)
    device = reserved + context_bytes + round(HISTORY * passing)
    if fits and limit_bytes is not None:
        device = max(
            reserved + context_bytes, min(device, limit_bytes)
        )  # history is cache, which can be given back
    return Estimate(
        method="trace",
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_device_bytes=device,
        intervals=intervals_of(
            _spread(events),
            passing_bytes=passing,
            allocated=allocated,
            reserved=reserved,
            device=device,
            context=context_widths(context_bytes, context_interval),
        ),
        limit_bytes=limit_bytes,
        components=components | {"fragmentation": replayed.fragmentation, "context": context_bytes},
        phases={
            peak.phase: peak.allocated for peak in replayed.phases if peak.step == trace.steps - 1
        },
        assumptions=facts,
        timeline=tuple(
            (f"{peak.phase} of step {peak.step}", peak.allocated) for peak in replayed.phases
        ),
        terms={"cublas_workspace": workspace_bytes, "history": device - reserved - context_bytes},
        fits_by_replay=fits,
        gives_back=gives_back,
    )


def _on_host(
    trace: Trace, limit_bytes: int | None, context_bytes: int, facts: dict[str, Any]
) -> Estimate:
    summary = trace.summary(top=0)
    peak = summary.peak_bytes + context_bytes
    components = _components(trace.events, trace.steps, summary.peak_bytes)
    return Estimate(
        method="trace",
        peak_allocated_bytes=peak,
        intervals=intervals_of(
            TRACED_ON_HOST, passing_bytes=_passing(components, summary.peak_bytes), allocated=peak
        ),
        limit_bytes=limit_bytes,
        components=components | {"context": context_bytes},
        phases={name: size + context_bytes for name, size in summary.phase_peak_bytes.items()},
        assumptions=facts,
        timeline=tuple(
            (name, size + context_bytes) for name, size in summary.phase_peak_bytes.items()
        ),
    )


def _limited(
    events: list[MemoryEvent],
    allocator: AllocatorConfig | None,
    endless: Replay,
    limit_bytes: int | None,
    context_bytes: int,
) -> tuple[bool | None, Replay]:
    """Whether the step goes through with this much memory, and how: the allocator gives its cache back before it gives up."""
    if limit_bytes is None:
        return None, endless
    if endless.peak_reserved + context_bytes <= limit_bytes:
        return True, endless
    if endless.peak_allocated + context_bytes > limit_bytes:
        return False, endless
    limited = replay(events, allocator, limit_bytes, outside_bytes=context_bytes)
    return limited.ok, limited if limited.ok else endless


def _spread(events: Iterable[MemoryEvent]) -> Spread:
    return TRACED_CONVOLUTIONS if any("convolution" in event.op for event in events) else TRACED


def _passing(components: Mapping[str, int], peak: int) -> int:
    """What comes and goes within a step: the peak less parameters, buffers and state."""
    return max(
        0, peak - sum(components[name] for name in ("parameters", "buffers", "optimizer_state"))
    )


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
    most: Counter[str] = Counter(
        dict.fromkeys(("parameters", "gradients", "optimizer_state", "buffers"), 0)
    )
    kept: dict[str, int] | None = None
    for event in events:
        if kept is None and event.step == steps - 1:
            kept = dict(held)
        held[event.component] += event.size_bytes if event.kind == "alloc" else -event.size_bytes
        if event.component in most:
            most[event.component] = max(most[event.component], held[event.component])
    kept = kept or {}
    return {
        **most,
        "activations": max(0, peak - sum(kept.values())),
        "workspace": kept.get("workspace", 0),
    }


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


def _seen(trace: Trace, asked: Mapping[str, Any]) -> dict[str, str]:
    """What the step did of what a run may turn out not to do: attention by a fused operator or with its scores held, and recomputation."""
    found = {}
    if any(event.op.startswith("aten::_scaled_dot_product") for event in trace.events):
        found["attention"] = "sdpa"
    elif holds_scores(trace):
        found["attention"] = "eager"
    if asked.get("checkpointing", "none") == "none" and _recomputes(trace):
        found["checkpointing"] = "by the model"
    return found


def _recomputes(trace: Trace) -> bool:
    """Whether modules run again in backward: what they allocate there has a module and a line of its source."""
    return any(
        event.phase == "backward" and event.kind == "alloc" and event.module and event.source
        for event in trace.events
    )
