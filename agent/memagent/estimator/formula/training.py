"""Memory of a training step by formula: a model's shape and its training in, an `Estimate` out.

Each part has a module with its sources:

- `shapes`, `families` and `presets` count parameters; `precision` and `optimizers` have sizes;
- `spec` describes the training and its ranks;
- `static_bytes` counts what is held throughout, `saved_tensors` what forward saves, `transients`
  short-lived tensors and the loss.

`step_phases` adds them up at the moments that can be the peak of a step, `sharded_phases` for FSDP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memagent.estimator.devices import ContextSize, context_of, nccl_buffers
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.shapes import ModelShape
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.step_phases import StepPeaks, step_peaks
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
    intervals = intervals_of(
        ratio_table().ratios_for(group),
        passing_bytes=passing,
        allocated=peak,
        reserved=reserved,
        device=device,
        context=context_widths(outside.size_bytes, outside.interval) if outside else None,
    )
    if spec.is_wrapping_open:
        saved = peak - round(_fullest_stage(replace(spec, fsdp_wrap="peft")).peak)
        intervals = {level: (low - saved, high) for level, (low, high) in intervals.items()}
    return Estimate(
        method="formula",
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved,
        peak_device_bytes=device,
        intervals=intervals,
        components={
            "parameters": round(stage.static.parameters),
            "gradients": round(stage.static.gradients),
            "optimizer_state": round(stage.static.state),
            "buffers": terms.get("buffers", 0),
            "activations": round(stage.activations),
            "workspace": round(stage.working) + sum(terms.values()) - terms.get("buffers", 0),
            "fragmentation": fragmentation,
            "context": context.size_bytes if context else 0,
        },
        limit_bytes=limit_bytes if limit_bytes is not None else card.total_bytes if card else None,
        assumptions=_assumptions(spec),
        timeline=tuple(phases.items()),
        phases=phases,
        terms=terms | _nccl_term(context, outside),
        error_group=group,
        context_interval=context.interval if context else None,
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
        "loop": spec.loop,
        "batch": spec.batch,
        "sequence": spec.positions,
    }
    if spec.transformers is not None:
        assumptions["transformers"] = spec.transformers
    if spec.lora_rank is not None:
        assumptions["lora"] = f"rank {spec.lora_rank} at {', '.join(spec.lora_targets)}"
    if spec.fsdp_wrap is not None:
        assumptions["fsdp_wrap"] = spec.fsdp_wrap
    if spec.quantised is not None:
        assumptions["quantised"] = spec.quantised
    if spec.kbit_training is not None:
        assumptions["kbit_training"] = spec.kbit_training
    if spec.optimizer_rule.paged:
        assumptions["optimizer_state"] = "paged: counted in full, may move to the host"
    if plan.data * plan.tensor * plan.pipeline > 1:
        assumptions["parallel"] = (
            f"data {plan.data} (ZeRO {plan.zero}), tensor {plan.tensor}, pipeline {plan.pipeline}: "
            "one rank's share"
        )
    if shape.activation_name not in _KNOWN_ACTIVATIONS:
        assumptions["activation"] = f"{shape.activation_name} is assumed to save its input"
    if notes := list(_notes(spec)):
        assumptions["notes"] = notes
    return assumptions


def _notes(spec: TrainingSpec) -> Iterator[str]:
    """Yield what the answer depends on and the spec doesn't say."""
    if spec.is_wrapping_open:
        yield (
            "fsdp_wrap is not given: six bytes are counted for each frozen weight, as published "
            "runs held, whose set-up is unknown; peft's policy, the Trainer's own, holds two"
        )
    if spec.quantised and spec.model.experts and not spec.quantises_experts:
        yield (
            "since transformers 5 experts are one tensor, which bitsandbytes does not quantise; "
            "transformers 4 has layers, which it does"
        )
    if spec.kbit_training and spec.checkpointing != "full":
        yield "peft's function enables checkpointing by default: choose full if yours does"
