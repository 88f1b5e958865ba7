"""Memory of a training step by formula: a model's shape and how it is trained in, `Estimate` out. No torch.

Each part has a file and its sources there: `shapes` and `families` (parameters), `precision`, `optimizers`, `weights` (what is held),
`saved` and `loss` (what forward keeps), `working` (what lives for a moment), `parallel`, `devices`, and `moments`, which adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from memagent.errors import EstimateError
from memagent.estimator.devices import context_of
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.from_sizes import StepSizes, estimate_step
from memagent.estimator.formula.loss import loss_bytes
from memagent.estimator.formula.optimizers import optimizer_named, state_bytes
from memagent.estimator.formula.precision import BYTES_OF
from memagent.estimator.formula.shapes import ModelShape
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.step_peaks import Moments, moments
from memagent.estimator.formula.transients import activation_stack, edge_bytes
from memagent.estimator.intervals import FRAGMENTED, FROM_SHAPE, context_widths, intervals_of

__all__ = [
    "BYTES_OF",
    "ModelShape",
    "StepSizes",
    "TrainingSpec",
    "TransformerShape",
    "attention_scores",
    "estimate_step",
    "estimate_training",
    "estimate_transformer",
    "state_bytes_per_parameter",
    "transformer_activations",
    "with_batch",
]


def estimate_training(
    spec: TrainingSpec, *, limit_bytes: int | None = None, context_bytes: int | None = None
) -> Estimate:
    """What one rank needs for one step.

    With `spec.gpu` or `context_bytes` the device's level is given too: tensors, what the allocator cannot reuse, and the context;
    `limit_bytes` defaults to what that GPU has. Raises EstimateError for what makes no sense (by name).
    """
    stage = _fullest_stage(spec)
    gpu = spec.gpu_rule
    context = context_of(context_bytes) if gpu or context_bytes is not None else None
    peak = round(stage.peak)
    terms = {name: round(size) for name, size in stage.terms.items()}
    passing = max(0.0, peak - stage.static.parameters - stage.static.state)
    fragmentation = round(FRAGMENTED * passing) if spec.device == "cuda" else 0
    reserved = peak + fragmentation if spec.device == "cuda" else None
    device = peak + fragmentation + context.size_bytes if context else None
    phases = {name: round(size) for name, size in stage.phases.items()}
    return Estimate(
        method="formula",
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved,
        intervals=intervals_of(
            FROM_SHAPE,
            passing_bytes=passing,
            allocated=peak,
            reserved=reserved,
            device=device,
            context=context_widths(context.size_bytes, context.interval) if context else None,
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
        limit_bytes=limit_bytes if limit_bytes is not None else gpu.total_bytes if gpu else None,
        assumptions=_assumptions(spec),
        timeline=tuple(phases.items()),
        peak_device_bytes=device,
        phases=phases,
        terms=terms,
    )


def _fullest_stage(spec: TrainingSpec) -> Moments:
    """A pipeline's first stage holds the embeddings and most micro-batches, its last the head: the worse of the two."""
    if spec.parallel.pipeline == 1:
        return moments(spec)
    ends = moments(spec, last=False), moments(spec, first=False)
    return max(ends, key=lambda stage: stage.peak)


def _assumptions(spec: TrainingSpec) -> dict[str, Any]:
    shape, plan = spec.model, spec.parallel
    taken: dict[str, Any] = {
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
    if shape.parameters is not None:
        taken["activations"] = "left out: only the number of parameters is known of this model"
    if spec.lora_rank is not None:
        taken["lora"] = f"rank {spec.lora_rank} at {', '.join(spec.lora_targets)}"
    if spec.quantised is not None:
        taken["quantised"] = spec.quantised
    if spec.rule.paged:
        taken["optimizer_state"] = (
            "paged: it may leave for the host when memory is short; counted as held"
        )
    if plan.data * plan.tensor * plan.pipeline > 1:
        taken["parallel"] = (
            f"data {plan.data} (ZeRO {plan.zero}), tensor {plan.tensor}, pipeline {plan.pipeline}: one rank's share"
        )
    if shape.activation_name not in (
        "silu",
        "gelu",
        "gelu_new",
        "gelu_pytorch_tanh",
        "relu",
        "quick_gelu",
    ):
        taken["activation"] = f"{shape.activation_name} is taken to keep its input"
    return taken


@dataclass(frozen=True)
class TransformerShape:
    """A decoder or encoder with its batch, for those who know no more than that. `ffn` defaults to 4 x hidden, `kv_heads` to heads; a
    `gated` feed-forward has three matrices, and is taken for Llama's block; others for GPT-2's."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    sequence: int
    batch: int = 1
    kv_heads: int | None = None
    ffn: int | None = None
    gated: bool = False
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "vocab", "sequence", "batch"):
            if getattr(self, name) < 1:
                raise EstimateError(f"{name} is {getattr(self, name)}: give 1 or more")

    def model(self) -> ModelShape:
        """The same as a model: learned positions and dropout go with GPT-2's block."""
        common: dict[str, Any] = {
            "kv_heads": self.kv_heads,
            "ffn": self.ffn,
            "tied_embeddings": self.tied_embeddings,
        }
        if self.gated:
            return ModelShape(
                self.layers, self.hidden, self.heads, self.vocab, family="llama", **common
            )
        return ModelShape(
            self.layers, self.hidden, self.heads, self.vocab, family="gpt2", activation="gelu", positions=self.sequence, dropout=0.1,
            **common,
        )  # fmt: skip

    def parameter_count(self) -> int:
        """Weights and biases, tied ones once."""
        return self.model().parameter_count()


def transformer_activations(
    shape: TransformerShape,
    *,
    precision: str = "mixed",
    checkpointing: Literal["none", "full", "selective"] = "none",
    attention: Literal["eager", "math", "sdpa"] = "sdpa",
) -> int:
    """Bytes kept for backward, logits' log-softmax included; for GPT-2's block in two bytes 34 s b h a layer, and 5 a s^2 b more where
    attention materialises its scores (Korthikanti et al. 2022, equation 1)."""
    spec = _plain(shape, precision=precision, checkpointing=checkpointing, attention=attention)
    kept, recomputed, _ = activation_stack(spec, layers=shape.layers, decoders=0)
    return round(kept + recomputed + edge_bytes(spec) + loss_bytes(spec).kept)


def attention_scores(shape: TransformerShape, *, bytes_per_value: float = 2.0) -> int:
    """Bytes of one layer's attention scores where they are materialised: batch x heads x sequence^2 x bytes a value."""
    return int(shape.batch * shape.heads * shape.sequence**2 * bytes_per_value)


def estimate_transformer(
    shape: TransformerShape,
    *,
    precision: Literal["fp32", "bf16", "fp16", "mixed", "amp", "fp8"] = "mixed",
    optimizer: str = "adamw",
    checkpointing: Literal["none", "full", "selective"] = "none",
    attention: Literal["eager", "math", "sdpa"] = "sdpa",
    parameter_count: int | None = None,
    context_bytes: int = 0,
    limit_bytes: int | None = None,
) -> Estimate:
    """A transformer's step from its shape alone. `precision` is one of `memagent.estimator.formula.precision.PRECISIONS`.

    Raises EstimateError for an unknown optimizer.
    """
    spec = _plain(
        shape, precision=precision, optimizer=optimizer, checkpointing=checkpointing, attention=attention, parameter_count=parameter_count
    )  # fmt: skip
    return estimate_training(spec, limit_bytes=limit_bytes, context_bytes=context_bytes or None)


def _plain(shape: TransformerShape, **options: Any) -> TrainingSpec:
    return TrainingSpec(shape.model(), shape.batch, shape.sequence, use_cache=False, **options)


def state_bytes_per_parameter(optimizer: str) -> float:
    """Bytes of fp32 state a parameter. Raises EstimateError that lists the optimizers known."""
    return state_bytes(optimizer_named(optimizer), value_bytes=4)


def with_batch(shape: TransformerShape, batch: int) -> TransformerShape:
    return replace(shape, batch=batch)
