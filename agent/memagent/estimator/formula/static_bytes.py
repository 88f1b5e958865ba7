"""Parameters, gradients and optimizer state: counted by matrix, then divided over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from memagent.estimator.formula.optimizers import state_bytes, temporary_bytes
from memagent.estimator.formula.precision import quantised_bytes
from memagent.estimator.formula.shapes import Matrix, matrices
from memagent.estimator.formula.spec import TrainingSpec


@dataclass(frozen=True)
class StaticBytes:
    """Bytes that one rank holds whatever its input.

    `layer` and `root` are what ZeRO-3 gathers at once: a layer, and all outside of the layers. The
    gradients of the head and of a tied embedding are in the compute dtype. `layer_gradients` are
    those of one layer, of the first stack if there are two: backward ends with it.
    """

    parameters: float
    gradients: float
    state: float
    temporaries: float
    layer: float
    root: float
    buckets: float
    head_gradient: float
    embedding_gradient: float
    late_gradient: float
    layer_gradients: float


def static_bytes(spec: TrainingSpec, *, first: bool = True, last: bool = True) -> StaticBytes:
    """Count a pipeline stage that holds the embeddings (`first`), the head (`last`), or both."""
    plan, sizes, rule = spec.parallel, spec.dtype_bytes, spec.optimizer_rule
    shares = [
        (matrix, _share(spec, matrix, first=first, last=last)) for matrix in matrices(spec.model)
    ]
    count = spec.parameter_count
    scale = 1.0 if count is None else count / spec.model.parameter_count()
    layered = sum(share * m.parameters * _weight_bytes(spec, m) for m, share in shares if m.layered)
    loose = sum(
        share * m.parameters * _weight_bytes(spec, m) for m, share in shares if not m.layered
    )
    weights = scale * (layered + loose)
    weights += scale * sum(share * m.parameters * spec.frozen_shard_bytes(m) for m, share in shares)
    if spec.lora_rank is None:
        trained = scale * sum(share * m.parameters for m, share in shares)
        largest = scale * max((share / m.copies * m.parameters for m, share in shares), default=0.0)
        gradient, state_value, master = sizes.gradient, sizes.state, sizes.master
    else:
        trained = sum(share * _adapter_values(spec, m) for m, share in shares)
        largest = max(
            (share / m.copies * _adapter_values(spec, m) for m, share in shares), default=0.0
        )
        gradient, state_value, master = spec.lora_bytes, spec.lora_bytes, 0.0
        weights += trained * spec.lora_bytes
    gradients = trained * gradient
    frozen = sum(share * m.parameters * spec.frozen_gradient_bytes(m) for m, share in shares)
    gradients += scale * frozen
    state = trained * (state_bytes(rule, value_bytes=state_value) + master)
    if rule.factored:
        state += state_value * sum(share * _factored_values(spec, m, scale) for m, share in shares)
    temporaries = temporary_bytes(
        rule,
        spec.step_implementation,
        gradients_bytes=trained * (master or gradient) / plan.shards(1),
        largest_bytes=largest * max(master, gradient),
    )
    embedding = max(
        (share * m.parameters for m, share in shares if m.kind == "embedding"), default=0.0
    )
    head = sum(share * m.parameters for m, share in shares if m.kind == "head")
    gathered = sizes.compute / sizes.weight if spec.lora_rank is None else 1.0
    adds_embedding = spec.lora_rank is None and spec.model.is_tied
    # decoders are walked first, and embed by the same matrix
    is_late = spec.lora_rank is None and not (spec.model.is_tied or spec.model.decoder_layers)
    return StaticBytes(
        parameters=0.0 if spec.offload_parameters else weights / plan.shards(3),
        gradients=gradients / plan.shards(2),
        state=0.0 if spec.offload_optimizer else state / plan.shards(1),
        temporaries=0.0 if spec.offload_optimizer else temporaries,
        layer=gathered * scale * layered / max(1, spec.model.all_layers // plan.pipeline),
        root=gathered * scale * loose,
        buckets=plan.bucket_total(gradients),
        head_gradient=(head or (embedding if spec.model.is_tied else 0.0)) * sizes.compute,
        embedding_gradient=embedding * sizes.gradient if adds_embedding else 0.0,
        late_gradient=embedding * sizes.gradient / plan.shards(2) if is_late else 0.0,
        layer_gradients=sizes.gradient * sum(s * _layer_values(spec, m) for m, s in shares),
    )


def _share(spec: TrainingSpec, matrix: Matrix, *, first: bool, last: bool) -> float:
    """Return the share of a matrix on one rank of a tensor and pipeline group, before ZeRO."""
    plan = spec.parallel
    tensor = 1 if matrix.kind == "norm" else plan.tensor
    if matrix.layered:
        return 1 / (tensor * plan.pipeline)
    if plan.pipeline == 1:
        return 1 / tensor
    if matrix.kind in ("head", "norm"):
        is_here = last
    else:  # both ends hold a tied embedding
        is_here = first or (last and matrix.name == "tokens" and spec.model.is_tied)
    return 1 / tensor if is_here else 0.0


def _weight_bytes(spec: TrainingSpec, matrix: Matrix) -> float:
    sizes = spec.dtype_bytes
    is_expert = matrix.kind == "expert"
    can_be_quantised = spec.quantises_experts if is_expert else matrix.kind == "linear"
    is_inner = matrix.layered and matrix.role != "router"
    if spec.quantised is not None and can_be_quantised and is_inner:
        return quantised_bytes(spec.quantised)
    if spec.has_wide_edges or (spec.has_wide_norms and (is_expert or matrix.kind == "norm")):
        return 4.0
    if spec.quantised is not None or (spec.lora_rank is not None and spec.precision != "fp32"):
        return min(sizes.weight, sizes.compute)
    return sizes.weight


def _layer_values(spec: TrainingSpec, matrix: Matrix) -> float:
    """Count a matrix's trained values in one layer of the first stack, none of few adapters."""
    is_shared = matrix.layered and not matrix.role.startswith("cross_")
    is_trained = is_shared and spec.lora_rank is None
    layers = spec.model.all_layers / spec.parallel.pipeline
    return matrix.parameters / layers if is_trained else 0.0


def _factored_values(spec: TrainingSpec, matrix: Matrix, scale: float) -> float:
    """Count a row and a column of each trained matrix (torch/optim/_adafactor.py)."""
    if spec.lora_rank is None:
        return scale * matrix.copies * (matrix.rows + matrix.cols)
    adapted = spec.is_target(matrix)
    return matrix.copies * (matrix.rows + matrix.cols + 2 * spec.lora_rank) if adapted else 0.0


def _adapter_values(spec: TrainingSpec, matrix: Matrix) -> float:
    """Count the two thin matrices that LoRA adds to this one (Hu et al. 2021)."""
    if not spec.is_target(matrix):
        return 0.0
    return float((spec.lora_rank or 0) * (matrix.rows + matrix.cols) * matrix.copies)
