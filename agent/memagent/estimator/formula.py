"""Memory of a training step by formula: sizes in, `Estimate` out. No torch.

Sources: mixed-precision bookkeeping after Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054, section 3.1: 2 + 2 + 12 bytes a parameter
for Adam); activations of a transformer layer after Korthikanti et al. 2022 (arXiv 2205.05198, equations 1 and 2); optimizer temporaries
as torch.optim allocates them (torch/optim/adam.py, `_multi_tensor_adam` and `_single_tensor_adam`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from memagent.errors import EstimateError
from memagent.estimator.estimate import Estimate

BYTES_OF = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "int8": 1,
    "uint8": 1,
    "int4": 0.5,
}

STATE_BYTES = {
    "sgd": 0.0, "momentum": 4.0, "adam": 8.0, "adamw": 8.0, "nadam": 8.0, "radam": 8.0, "amsgrad": 12.0,
    "adam8bit": 2.03, "adamw8bit": 2.03, "rmsprop": 4.0, "adagrad": 4.0, "lion": 4.0, "adafactor": 0.02, "muon": 4.0,
}  # fmt: skip
"""Optimizer state in bytes a parameter where states are fp32; the 8-bit optimizers add one fp32 scale to each block of 256."""

MASTER_BYTES = 4.0
UNCERTAIN = 0.3
"""Relative error allowed for activations when bounding the peak; the other components are exact or nearly so."""


@dataclass(frozen=True)
class StepSizes:
    """Bytes that a step's tensors take. `temporaries_bytes` are what the optimizer allocates within its step."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    buffers_bytes: int = 0
    activations_bytes: int | None = None
    temporaries_bytes: int = 0
    context_bytes: int = 0


@dataclass(frozen=True)
class TransformerShape:
    """A decoder or encoder. `ffn` defaults to 4 x hidden, `kv_heads` to heads; `gated` feed-forward has three matrices."""

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

    def parameter_count(self) -> int:
        """Weights and biases of embeddings, layers and the output, positions learned only where the feed-forward is not gated."""
        ffn, h = self.ffn or 4 * self.hidden, self.hidden
        kv = h * (self.kv_heads or self.heads) // self.heads
        attention = 2 * h * h + 2 * h * kv
        feed_forward = (3 if self.gated else 2) * h * ffn
        small = 2 * h if self.gated else 13 * h  # norms, and biases where there are any
        embeddings = self.vocab * h * (1 if self.tied_embeddings else 2) + (0 if self.gated else self.sequence * h)
        return self.layers * (attention + feed_forward + small) + embeddings + h


def estimate_step(
    sizes: StepSizes, *, limit_bytes: int | None = None, assumptions: dict[str, Any] | None = None
) -> Estimate:
    """The peak of a step: the larger of the moment when activations are held and gradients begin, and the optimizer's step.

    At the end of forward the step holds parameters, buffers, state (from the second step on) and all activations; gradients grow as
    activations are freed, so their sum never reaches both totals. At the optimizer's step activations are gone, gradients and
    temporaries are there.
    """
    known = sizes.parameters_bytes + sizes.buffers_bytes + sizes.optimizer_state_bytes + sizes.context_bytes
    activations = sizes.activations_bytes or 0
    forward_end = known + activations
    backward = known + max(activations, sizes.gradients_bytes) + min(activations, sizes.gradients_bytes) // 4
    optimizer_step = known + sizes.gradients_bytes + sizes.temporaries_bytes
    peak = max(forward_end, backward, optimizer_step)
    margin = int(UNCERTAIN * activations)
    return Estimate(
        method="formula",
        peak_allocated_bytes=peak,
        low_bytes=max(known, peak - margin),
        high_bytes=peak + margin,
        components={
            "parameters": sizes.parameters_bytes,
            "gradients": sizes.gradients_bytes,
            "optimizer_state": sizes.optimizer_state_bytes,
            "buffers": sizes.buffers_bytes,
            "activations": activations,
            "workspace": sizes.temporaries_bytes,
            "context": sizes.context_bytes,
        },
        limit_bytes=limit_bytes,
        assumptions=assumptions or {},
        timeline=(("forward", forward_end), ("backward", backward), ("optimizer", optimizer_step)),
    )


def transformer_activations(
    shape: TransformerShape,
    *,
    bytes_per_value: float = 2.0,
    checkpointing: Literal["none", "full"] = "none",
    attention: Literal["eager", "sdpa"] = "sdpa",
) -> int:
    """Bytes saved for backward, logits and their loss included.

    Per layer and without checkpointing s*b*h*34 bytes at two bytes a value (Korthikanti et al., equation 1), and 5*a*s^2*b more where
    attention materialises its scores (softmax input and output and a one-byte dropout mask). With full checkpointing only the layer's
    input, 2*s*b*h, is kept (plus one layer being recomputed). Logits: their copy in fp32 and its gradient, s*b*v*(value + 4 + 4).
    """
    tokens = shape.batch * shape.sequence
    scale = bytes_per_value / 2
    layer = 34 * tokens * shape.hidden * scale
    if attention == "eager":
        layer += attention_scores(shape, bytes_per_value=bytes_per_value) * 2.5
    kept = layer * shape.layers if checkpointing == "none" else 2 * tokens * shape.hidden * scale * shape.layers + layer
    logits = tokens * shape.vocab * (bytes_per_value + 8)
    return int(kept + logits)


def attention_scores(shape: TransformerShape, *, bytes_per_value: float = 2.0) -> int:
    """Bytes of one layer's attention scores where they are materialised: batch x heads x sequence^2 x bytes a value."""
    return int(shape.batch * shape.heads * shape.sequence**2 * bytes_per_value)


def estimate_transformer(
    shape: TransformerShape,
    *,
    precision: Literal["fp32", "bf16", "fp16", "mixed"] = "mixed",
    optimizer: str = "adamw",
    checkpointing: Literal["none", "full"] = "none",
    attention: Literal["eager", "sdpa"] = "sdpa",
    parameter_count: int | None = None,
    context_bytes: int = 0,
    limit_bytes: int | None = None,
) -> Estimate:
    """A transformer's step from its shape alone.

    precision `mixed` keeps 2-byte weights and gradients and a 4-byte master copy: with Adam 2 + 2 + 12 = 16 bytes a parameter.
    `bf16` and `fp16` keep weights, gradients and state in two bytes; `fp32` keeps all in four.
    Raises EstimateError for an unknown optimizer.
    """
    count = parameter_count or shape.parameter_count()
    weight = 4 if precision == "fp32" else 2
    state = state_bytes_per_parameter(optimizer) * (0.5 if precision in ("bf16", "fp16") else 1)
    master = MASTER_BYTES if precision == "mixed" else 0.0
    activations = transformer_activations(
        shape, bytes_per_value=weight, checkpointing=checkpointing, attention=attention
    )
    sizes = StepSizes(
        parameters_bytes=count * weight,
        gradients_bytes=count * weight,
        optimizer_state_bytes=int(count * (state + master)),
        activations_bytes=activations,
        context_bytes=context_bytes,
    )
    taken = {
        "parameters": count,
        "precision": precision,
        "optimizer": optimizer,
        "checkpointing": checkpointing,
        "attention": attention,
        "batch": shape.batch,
        "sequence": shape.sequence,
    }
    return estimate_step(sizes, limit_bytes=limit_bytes, assumptions=taken)


def state_bytes_per_parameter(optimizer: str) -> float:
    """Bytes of fp32 state a parameter. Raises EstimateError that lists the optimizers known."""
    try:
        return STATE_BYTES[optimizer.lower()]
    except KeyError:
        raise EstimateError(f"optimizer {optimizer!r} is not known: use one of {', '.join(STATE_BYTES)}") from None


def with_batch(shape: TransformerShape, batch: int) -> TransformerShape:
    return replace(shape, batch=batch)
