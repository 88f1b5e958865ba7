"""Parameters, gradients, optimizer state: counted matrix by matrix, then divided over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from memagent.estimator.formula.optimizers import state_bytes, temporary_bytes
from memagent.estimator.formula.precision import quantised_bytes
from memagent.estimator.formula.shapes import Matrix, matrices
from memagent.estimator.formula.spec import TrainingSpec


@dataclass(frozen=True)
class StaticBytes:
    """What one rank holds whatever the input: bytes. `unit` is the largest thing gathered at once under ZeRO-3 (a layer, or the
    embeddings)."""

    parameters: float
    gradients: float
    state: float
    temporaries: float
    unit: float
    buckets: float
    trained: float
    """Values that are trained, on this rank before ZeRO divides them."""
    embedding_gradient: float


def static_bytes(spec: TrainingSpec, *, first: bool = True, last: bool = True) -> StaticBytes:
    """Of a pipeline stage that holds the embeddings (`first`), the head (`last`), or both."""
    plan, numbers, rule = spec.parallel, spec.numbers, spec.rule
    held = [
        (matrix, _part(spec, matrix, first=first, last=last)) for matrix in matrices(spec.model)
    ]
    scale = (
        1.0 if spec.parameter_count is None else spec.parameter_count / spec.model.parameter_count()
    )
    weights = scale * sum(
        share * matrix.parameters * _weight_bytes(spec, matrix) for matrix, share in held
    )
    adapters = sum(share * _adapter(spec, matrix) for matrix, share in held)
    if spec.lora_rank is None:
        trained = scale * sum(share * matrix.parameters for matrix, share in held)
        largest = scale * max(
            (share / matrix.copies * matrix.parameters for matrix, share in held), default=0.0
        )
        gradients, state_value, master = trained * numbers.gradient, numbers.state, numbers.master
    else:
        trained = adapters
        largest = max(
            (share / matrix.copies * _adapter(spec, matrix) for matrix, share in held), default=0.0
        )
        gradients, state_value, master = adapters * spec.lora_bytes, spec.lora_bytes, 0.0
        weights += adapters * spec.lora_bytes
    state = trained * (state_bytes(rule, value_bytes=state_value) + master)
    if rule.factored:
        state += (
            scale
            * 4
            * sum(share * matrix.copies * (matrix.rows + matrix.cols) for matrix, share in held)
        )
    value = gradients / trained if trained else 0.0
    layered = sum(share * m.parameters * _weight_bytes(spec, m) for m, share in held if m.layered)
    loose = sum(share * m.parameters * _weight_bytes(spec, m) for m, share in held if not m.layered)
    sharded = gradients / plan.shards(2)
    temporaries = temporary_bytes(
        rule, spec.step_implementation,
        gradients_bytes=trained * (master or value) / plan.shards(1), largest_bytes=largest * max(master, value),
    )  # fmt: skip
    embedding = max(
        (share * m.parameters for m, share in held if m.kind == "embedding"), default=0.0
    )
    return StaticBytes(
        parameters=weights / plan.shards(3) if not spec.offload_parameters else 0.0,
        gradients=sharded,
        state=0.0 if spec.offload_optimizer else state / plan.shards(1),
        temporaries=0.0 if spec.offload_optimizer else temporaries,
        unit=max(scale * layered / max(1, spec.model.all_layers // plan.pipeline), scale * loose),
        buckets=plan.bucket_total(gradients),
        trained=trained,
        embedding_gradient=embedding * numbers.gradient
        if spec.lora_rank is None and spec.model.is_tied
        else 0.0,
    )


def _part(spec: TrainingSpec, matrix: Matrix, *, first: bool, last: bool) -> float:
    """The share of a matrix that one rank of a tensor and pipeline group holds, before ZeRO."""
    plan = spec.parallel
    tensor = 1 if matrix.kind == "norm" else plan.tensor
    if matrix.layered:
        return 1 / (tensor * plan.pipeline)
    if plan.pipeline == 1:
        return 1 / tensor
    # a tied embedding is held by both ends
    here = (
        last
        if matrix.kind in ("head", "norm")
        else first or (last and matrix.name == "tokens" and spec.model.is_tied)
    )
    return 1 / tensor if here else 0.0


def _weight_bytes(spec: TrainingSpec, matrix: Matrix) -> float:
    if (
        spec.quantised is not None
        and matrix.layered
        and matrix.kind in ("linear", "expert")
        and matrix.role != "router"
    ):
        return quantised_bytes(spec.quantised)
    if spec.quantised is not None or (spec.lora_rank is not None and spec.precision != "fp32"):
        return min(spec.numbers.weight, spec.numbers.compute)
    return spec.numbers.weight


def _adapter(spec: TrainingSpec, matrix: Matrix) -> float:
    """Values of the two thin matrices that LoRA puts beside this one (Hu et al. 2021)."""
    return (
        float((spec.lora_rank or 0) * (matrix.rows + matrix.cols) * matrix.copies)
        if spec.is_target(matrix)
        else 0.0
    )
