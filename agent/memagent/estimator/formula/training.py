"""Memory of a training step by formula: a model's shape and its training in, an `Estimate` out.

Each part has a module with its sources:

- `shapes`, `families` and `presets` count parameters; `precision` and `optimizers` have sizes;
- `spec` describes the training and its ranks;
- `static_bytes` counts what is held throughout, `saved_tensors` what forward saves, `transients`
  short-lived tensors and the loss.

`step_peaks` adds them up at the moments that can be the peak of a step:

1. The end of forward: all saved tensors, and what the loss holds while it is computed.
2. The start of backward: the same, with the gradients of the logits.
3. The walk back through the layers: activations go as gradients come. Both change linearly, so only
   the first and the last layer count.
4. The end of backward: all gradients. A tied embedding's second gradient exists before it is added
   to the first.
5. The optimizer's step: gradients and its temporaries; activations are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memagent.estimator.devices import (
    CUBLAS_HANDLES,
    ContextSize,
    context_of,
    cublas_workspace_bytes,
    nccl_buffers,
)
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.saved_tensors import cast_bytes
from memagent.estimator.formula.shapes import ModelShape
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.static_bytes import StaticBytes, static_bytes
from memagent.estimator.formula.transients import (
    LossBytes,
    activation_stack,
    edge_bytes,
    held_output_bytes,
    last_norm_bytes,
    loss_bytes,
    surviving_cache_bytes,
    working_bytes,
)
from memagent.estimator.intervals import (
    FRAGMENTATION_RATIO,
    STORED_FRAGMENTATION_RATIO,
    context_widths,
    intervals_of,
    ratio_table,
)

if TYPE_CHECKING:
    from memagent.estimator.request import FormulaRequest

__all__ = ["ModelShape", "TrainingSpec", "estimate_formula", "estimate_training"]

_NO_LOSS = LossBytes(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class StepPeaks:
    """One stage's parts and phases, in bytes.

    `activations` are what forward saves for backward, one recomputed layer included. `terms` are
    held throughout the step, besides parameters and state.
    """

    static: StaticBytes
    activations: float
    working: float
    terms: dict[str, float]
    phases: dict[str, float]

    @property
    def peak(self) -> float:
        return max(self.phases.values())


@dataclass(frozen=True)
class _Activations:
    """Bytes of tensors that depend on the input.

    - stack: saved by the layers. edges: saved outside of them.
    - recomputed: one layer under checkpointing. largest: the largest layer.
    - local: only lives until the end of forward.
    - output: freed when the caller drops the output (logits and a cache).
    """

    stack: float
    recomputed: float
    largest: float
    edges: float
    casts: float
    working: float
    local: float
    output: float
    cache: float
    loss: LossBytes


def step_peaks(spec: TrainingSpec, *, first: bool = True, last: bool = True) -> StepPeaks:
    """Return the peaks of a stage with the embeddings (`first`), the head (`last`), or both."""
    static = static_bytes(spec, first=first, last=last)
    parts = _activations(spec, first=first, last=last)
    terms = _terms(spec, static, parts.casts)
    return StepPeaks(
        static=static,
        activations=parts.stack + parts.recomputed + parts.edges + parts.loss.saved,
        working=parts.working + static.temporaries,
        terms=terms,
        phases=_phases(spec, static, terms, parts),
    )


def _activations(spec: TrainingSpec, *, first: bool, last: bool) -> _Activations:
    plan, shape = spec.parallel, spec.model
    layers, decoders = shape.layers / plan.pipeline, shape.decoder_layers / plan.pipeline
    stack, recomputed, largest = activation_stack(spec, layers=layers, decoders=decoders)
    cache = surviving_cache_bytes(spec, layers=layers + decoders)
    return _Activations(
        stack=stack * (plan.in_flight() if first else 1),
        recomputed=recomputed,
        largest=largest,
        edges=edge_bytes(spec),
        casts=cast_bytes(spec) / (plan.tensor * plan.pipeline),
        working=working_bytes(spec),
        local=last_norm_bytes(spec) if last else 0.0,
        output=held_output_bytes(spec) + (cache if spec.keeps_output else 0.0),
        cache=cache,
        loss=loss_bytes(spec) if last else _NO_LOSS,
    )


def _phases(
    spec: TrainingSpec, static: StaticBytes, terms: dict[str, float], parts: _Activations
) -> dict[str, float]:
    persistent = static.parameters + static.state + sum(terms.values()) - parts.casts
    gradients = _gradients(spec, static)
    before = gradients if spec.accumulation > 1 or not spec.set_to_none else 0.0
    full = persistent + parts.casts + parts.stack + parts.edges + before
    start = walk = full
    if spec.checkpointing == "full":
        # autocast's cache drops the layers' casts at the end of forward: each layer casts again,
        # after the head's casts went with its gradient
        plan = spec.parallel
        layers = cast_bytes(spec, head=False) / (plan.tensor * plan.pipeline)
        start = full - layers
        walk = full - parts.casts + layers / spec.model.all_layers
    backward = (
        start + parts.loss.backward + (parts.cache if spec.keeps_output else 0.0),
        walk + parts.output + parts.recomputed + parts.working,
        persistent + before + (gradients - before) + parts.output + parts.largest + parts.working,
        persistent + gradients + parts.output + _tied_gradients(spec, static),
    )
    # after backward no layer is gathered, and ZeRO's buckets are scattered; DDP's stay
    backward_terms = terms.get("gathered_layers", 0.0)
    backward_terms += terms.get("reduction_buckets", 0.0) if spec.parallel.zero >= 2 else 0.0
    forward = max(parts.loss.forward + parts.local + parts.cache, parts.working / 2)
    return {
        "forward": full + forward,
        "backward": max(backward),
        "optimizer": persistent - backward_terms + static.gradients + static.temporaries,
    }


def _tied_gradients(spec: TrainingSpec, static: StaticBytes) -> float:
    """Return what a tied embedding's gradient takes beside `gradients`, while its parts add up.

    Autograd adds in place only to a tensor of its own storage. Under autocast the head's part is
    such a copy; else it is a view, so both parts and their sum are held at once. Accumulated
    gradients are held besides.
    """
    copies = 1 if spec.dtype_bytes.autocast else 2
    return static.embedding_gradient * (copies + (spec.accumulation > 1))


def _gradients(spec: TrainingSpec, static: StaticBytes) -> float:
    """Return the gradients of one rank; accumulating with torch's `no_sync` keeps them whole."""
    whole = spec.accumulation > 1 and spec.no_sync and spec.parallel.zero >= 2
    return static.gradients * (spec.parallel.shards(2) if whole else 1)


def _terms(spec: TrainingSpec, static: StaticBytes, casts: float) -> dict[str, float]:
    """Return by name what is held throughout the step besides parameters and state."""
    plan, terms = spec.parallel, {}
    if casts:
        terms["weight_casts"] = casts
    if plan.gathered_units:
        # the gathered layers in the compute dtype, and one layer's gradients before scattering
        units = plan.gathered_units if plan.reshard else max(1, spec.model.all_layers)
        unit = static.unit * spec.dtype_bytes.compute / spec.dtype_bytes.weight
        terms["gathered_layers"] = unit * units + (unit if spec.lora_rank is None else 0.0)
    elif spec.offload_parameters:
        terms["gathered_layers"] = 2 * static.unit
    if static.buckets:
        terms["reduction_buckets"] = static.buckets
    if spec.device == "cuda":
        workspace = cublas_workspace_bytes(spec.card.capability if spec.card else None)
        terms["cublas_workspace"] = float(CUBLAS_HANDLES * workspace)
    return terms


_KNOWN_ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "quick_gelu")


def estimate_training(
    spec: TrainingSpec, *, limit_bytes: int | None = None, context_bytes: int | None = None
) -> Estimate:
    """Return what one rank needs for one step.

    `spec.gpu`, `limit_bytes` or `context_bytes` adds the device's level: tensors, what the
    allocator cannot reuse, and the context. `limit_bytes` defaults to that GPU's memory. Raises
    EstimateError that names an option with an invalid value.
    """
    stage = _fullest_stage(spec)
    card, is_cuda = spec.card, spec.device == "cuda"
    has_device = card or context_bytes is not None or (is_cuda and limit_bytes is not None)
    capability = card.capability if card else None
    context = context_of(context_bytes, capability) if has_device else None
    peak = round(stage.peak)
    terms = {name: round(size) for name, size in stage.terms.items()}
    passing = max(0.0, peak - stage.static.parameters - stage.static.state)
    stores = spec.checkpointing != "full"
    ratio = STORED_FRAGMENTATION_RATIO if stores else FRAGMENTATION_RATIO
    group = f"formula, {_kind(spec)}, {'stored' if stores else 'checkpointed'}"
    fragmentation = round(ratio * passing) if is_cuda else 0
    reserved = peak + fragmentation if is_cuda else None
    outside = _outside(spec, context) if context else None
    device = peak + fragmentation + outside.size_bytes if outside else None
    phases = {name: round(size) for name, size in stage.phases.items()}
    return Estimate(
        method="formula",
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved,
        peak_device_bytes=device,
        intervals=intervals_of(
            ratio_table().ratios_for(group),
            passing_bytes=passing,
            allocated=peak,
            reserved=reserved,
            device=device,
            context=context_widths(outside.size_bytes, outside.interval) if outside else None,
        ),
        components={
            "parameters": round(stage.static.parameters),
            "gradients": round(stage.static.gradients),
            "optimizer_state": round(stage.static.state),
            "buffers": 0,
            "activations": round(stage.activations),
            "workspace": round(stage.working) + sum(terms.values()),
            "fragmentation": fragmentation,
            "context": context.size_bytes if context else 0,
        },
        limit_bytes=limit_bytes if limit_bytes is not None else card.total_bytes if card else None,
        assumptions=_assumptions(spec),
        timeline=tuple(phases.items()),
        phases=phases,
        terms=terms | _nccl_term(context, outside),
        error_group=group,
    )


def _kind(spec: TrainingSpec) -> str:
    """Return the kind of model and training that errors are counted by."""
    model = spec.model
    if spec.parallel.data > 1:
        return "sharded" if spec.parallel.zero else "replicated"
    if model.experts > 1:
        return "mixture of experts"
    if model.decoder_layers:
        return "encoder-decoder"
    if model.patch:
        return "image"
    return "encoder" if model.head_kind in ("mlm", "classifier") else "decoder"


def _outside(spec: TrainingSpec, context: ContextSize) -> ContextSize:
    """Return the context, and the buffers of NCCL for each group of ranks."""
    capability = spec.card.capability if spec.card else None
    groups = spec.parallel.groups if spec.device == "cuda" else ()
    buffers = [nccl_buffers(ranks, capability) for ranks in groups]
    least, usual, most = map(sum, zip(*buffers, strict=True)) if buffers else (0, 0, 0)
    low, high = context.interval or (context.size_bytes, context.size_bytes)
    interval = (low + least, high + most) if context.interval or buffers else None
    return ContextSize(context.size_bytes + usual, interval)


def _nccl_term(context: ContextSize | None, outside: ContextSize | None) -> dict[str, int]:
    if context is None or outside is None or outside.size_bytes == context.size_bytes:
        return {}
    return {"nccl_buffers": outside.size_bytes - context.size_bytes}


def estimate_formula(request: FormulaRequest) -> Estimate:
    """Return the estimate of a request by formula."""
    return estimate_training(
        request.spec, limit_bytes=request.limit_bytes, context_bytes=request.context_bytes
    )


def _fullest_stage(spec: TrainingSpec) -> StepPeaks:
    """Return the fuller end of a pipeline.

    Its first stage holds the embeddings and the most micro-batches, its last the head.
    """
    if spec.parallel.pipeline == 1:
        return step_peaks(spec)
    ends = step_peaks(spec, last=False), step_peaks(spec, first=False)
    return max(ends, key=lambda stage: stage.peak)


def _assumptions(spec: TrainingSpec) -> dict[str, Any]:
    shape, plan = spec.model, spec.parallel
    assumptions: dict[str, Any] = {
        "model": shape.name or shape.family,
        "parameters": spec.parameter_count or shape.parameter_count(),
        "precision": spec.precision,
        "optimizer": f"{spec.optimizer} ({spec.step_implementation})",
        "checkpointing": spec.checkpointing,
        "attention": spec.attention_path,
        "loss": spec.loss,
        "batch": spec.batch,
        "sequence": spec.positions,
    }
    if spec.transformers is not None:
        assumptions["transformers"] = spec.transformers
    if spec.lora_rank is not None:
        assumptions["lora"] = f"rank {spec.lora_rank} at {', '.join(spec.lora_targets)}"
    if spec.quantised is not None:
        assumptions["quantised"] = spec.quantised
    if spec.optimizer_rule.paged:
        assumptions["optimizer_state"] = "paged: counted in full, may move to the host"
    if plan.data * plan.tensor * plan.pipeline > 1:
        assumptions["parallel"] = (
            f"data {plan.data} (ZeRO {plan.zero}), tensor {plan.tensor}, pipeline {plan.pipeline}: "
            "one rank's share"
        )
    if shape.activation_name not in _KNOWN_ACTIVATIONS:
        assumptions["activation"] = f"{shape.activation_name} is assumed to save its input"
    return assumptions
