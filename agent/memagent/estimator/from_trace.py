"""An estimate from a trace, whose events are replayed through the simulated allocator.

Three levels:

1. `peak_allocated_bytes` is what the tensors take, as torch's allocator counts them (rounded to 512
   bytes, with the slack of large blocks).
2. `peak_reserved_bytes` is what the allocator obtains from the driver for them, fragmentation
   included.
3. `peak_device_bytes` adds the CUDA context and the cache that longer runs accumulate: what
   nvidia-smi shows.

A host has no caching allocator: the first level is the sum of requested bytes, and `context_bytes`
is what the process holds besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memagent.estimator.advice.trace_rewrites import holds_scores
from memagent.estimator.allocator import AllocatorConfig, Replay, replay
from memagent.estimator.devices import CUBLAS_HANDLES, cublaslt_workspace_bytes
from memagent.estimator.estimate import Estimate
from memagent.estimator.intervals import (
    ON_HOST,
    Interval,
    context_widths,
    intervals_of,
    ratio_table,
)
from memagent.estimator.trace.events import MemoryEvent, Trace

LONG_RUN_CACHE_RATIO = 0.05
"""The cache of a long run beyond the replay of two steps, as a ratio of the passing bytes: other
lengths, evaluations, saves. Fitted to six measured fine-tunings (0.01 to 0.2, and one that returned
some of its cache): half of their median, since short runs have none."""
MAX_LARGEST_TENSORS = 10
_PRODUCTS = ("mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot")
_MATRIX_PRODUCTS = frozenset(f"aten::{name}" for name in _PRODUCTS)
_PRODUCTS_WITH_BIAS = frozenset(("aten::addmm", "aten::_addmm_activation"))


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
    """Estimate a traced step.

    `workspace_bytes` is what libraries hold in the allocator (cuBLAS), `context_bytes` what the
    process holds outside of it, with `context_interval` if it wasn't measured. If the limit makes
    the allocator release its cache, the reserved bytes are what it then holds.
    """
    facts = {**(assumptions or {}), **_facts(trace), **_detected(trace, assumptions or {})}
    if trace.device_rules == "cpu":
        return _estimate_on_host(trace, limit_bytes, context_bytes, facts)
    lt_bytes = cublaslt_workspace_bytes(trace.torch_version) if workspace_bytes else 0
    events = list(_with_workspaces(trace.events, workspace_bytes // CUBLAS_HANDLES, lt_bytes))
    unlimited = replay(events, allocator)
    contexts = (context_bytes, (context_interval or (0, context_bytes))[1])
    fits, replayed = _within_limit(events, allocator, unlimited, limit_bytes, contexts)
    allocated, reserved = replayed.peak_allocated, replayed.peak_reserved
    components = _components(events, trace.steps, allocated)
    passing = _passing(components, allocated)
    device = reserved + context_bytes + round(LONG_RUN_CACHE_RATIO * passing)
    if fits and limit_bytes is not None:
        # the allocator can release this cache
        device = max(reserved + context_bytes, min(device, limit_bytes))
    has_convolutions = any("convolution" in event.op for event in events)
    group = "trace, convolutions" if has_convolutions else "trace, others"
    phases = [peak for peak in replayed.phases if peak.step == trace.steps - 1]
    return Estimate(
        method="trace",
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_device_bytes=device,
        intervals=intervals_of(
            ratio_table().ratios_for(group),
            passing_bytes=passing,
            allocated=allocated,
            reserved=reserved,
            device=device,
            context=context_widths(context_bytes, context_interval),
        ),
        limit_bytes=limit_bytes,
        components=components | {"fragmentation": replayed.fragmentation, "context": context_bytes},
        phases={peak.phase: peak.allocated for peak in phases},
        assumptions=facts,
        timeline=tuple(
            (f"{peak.phase} of step {peak.step}", peak.allocated) for peak in replayed.phases
        ),
        terms={"cublas_workspace": workspace_bytes, "history": device - reserved - context_bytes},
        fits_by_replay=fits,
        gives_back=replayed is not unlimited,
        error_group=group,
        context_interval=context_interval,
    )


def _estimate_on_host(
    trace: Trace, limit_bytes: int | None, context_bytes: int, facts: dict[str, Any]
) -> Estimate:
    summary = trace.summary(top=0)
    peak = summary.peak_bytes + context_bytes
    components = _components(trace.events, trace.steps, summary.peak_bytes)
    passing = _passing(components, summary.peak_bytes)
    phases = {name: size + context_bytes for name, size in summary.phase_peak_bytes.items()}
    return Estimate(
        method="trace",
        peak_allocated_bytes=peak,
        intervals=intervals_of(ON_HOST, passing_bytes=passing, allocated=peak),
        limit_bytes=limit_bytes,
        components=components | {"context": context_bytes},
        phases=phases,
        assumptions=facts,
        timeline=tuple(phases.items()),
    )


def _within_limit(
    events: list[MemoryEvent],
    allocator: AllocatorConfig | None,
    unlimited: Replay,
    limit_bytes: int | None,
    contexts: tuple[int, int],
) -> tuple[bool | None, Replay]:
    """Return whether the step succeeds with this much memory, and its replay.

    The allocator releases its cache before it fails, so the replay is repeated with the limit if
    only the cache is too large. What it can't release must also leave room for the largest context.
    """
    if limit_bytes is None:
        return None, unlimited
    context_bytes, largest_context_bytes = contexts
    if unlimited.peak_reserved + context_bytes <= limit_bytes:
        return True, unlimited
    if unlimited.peak_allocated + context_bytes > limit_bytes:
        return False, unlimited
    limited = replay(events, allocator, limit_bytes, outside_bytes=context_bytes)
    if not limited.ok:
        return False, unlimited
    # a context that was not measured may be larger than the middle of its range
    fullest = replay(events, allocator, limit_bytes, outside_bytes=largest_context_bytes)
    return fullest.ok, limited


def _passing(components: Mapping[str, int], peak: int) -> int:
    """Return what comes and goes within a step: the peak less parameters, buffers and state."""
    constant = sum(components[name] for name in ("parameters", "buffers", "optimizer_state"))
    return max(0, peak - constant)


def _with_workspaces(
    events: Iterable[MemoryEvent], size_bytes: int, lt_bytes: int
) -> Iterator[MemoryEvent]:
    """Insert cuBLAS's workspaces, which are never freed, after the first products of matrices.

    Forward's thread has a handle, and backward's another; `size_bytes` is the workspace of one, and
    `lt_bytes` that of cuBLASLt, which adds a bias to a product.
    """
    missing = {
        (phase, kind): size
        for phase in ("forward", "backward")
        for kind, size in (("cublas", size_bytes), ("cublaslt", lt_bytes))
        if size
    }
    for event in events:
        yield event
        if event.kind != "alloc" or event.op not in _MATRIX_PRODUCTS:
            continue
        for kind in ("cublas", "cublaslt") if event.op in _PRODUCTS_WITH_BIAS else ("cublas",):
            if (event.phase, kind) in missing:
                yield MemoryEvent(
                    kind="alloc",
                    storage=-len(missing),
                    size_bytes=missing.pop((event.phase, kind)),
                    index=event.index,
                    phase=event.phase,
                    step=event.step,
                    component="workspace",
                    op=kind,
                )


def _components(events: Iterable[MemoryEvent], steps: int, peak: int) -> dict[str, int]:
    """Return bytes by component, comparable with a run's own readings.

    Gradients are as the optimizer's step reads them; activations are the peak less what stays from
    step to step. The batch counts as activations.
    """
    current: Counter[str] = Counter()
    names = ("parameters", "gradients", "optimizer_state", "buffers")
    maximum: Counter[str] = Counter(dict.fromkeys(names, 0))
    between_steps: dict[str, int] | None = None
    for event in events:
        if between_steps is None and event.step == steps - 1:
            between_steps = dict(current)
        current[event.component] += event.size_bytes if event.kind == "alloc" else -event.size_bytes
        if event.component in maximum:
            maximum[event.component] = max(maximum[event.component], current[event.component])
    between_steps = between_steps or {}
    return {
        **maximum,
        "activations": max(0, peak - sum(between_steps.values())),
        "workspace": between_steps.get("workspace", 0),
    }


def _facts(trace: Trace) -> dict[str, Any]:
    """Return what was traced, and the largest tensors at its peak, JSON-ready."""
    return {
        "traced_for": trace.device_rules,
        "model_class": trace.model_class,
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
            for tensor in trace.summary(top=MAX_LARGEST_TENSORS).top
        ],
    }


def _detected(trace: Trace, assumptions: Mapping[str, Any]) -> dict[str, str]:
    """Return how attention ran, and whether the model recomputes: a run may do otherwise."""
    detected = {}
    if any(event.op.startswith("aten::_scaled_dot_product") for event in trace.events):
        detected["attention"] = "sdpa"
    elif holds_scores(trace):
        detected["attention"] = "eager"
    if assumptions.get("checkpointing", "none") == "none" and _recomputes(trace):
        detected["checkpointing"] = "by the model"
    return detected


def _recomputes(trace: Trace) -> bool:
    """Return True if modules run again in backward: their allocations there have a source line."""
    return any(
        event.phase == "backward" and event.kind == "alloc" and event.module and event.source
        for event in trace.events
    )
