"""Logits and cross-entropy: often the peak of a step where the vocabulary is large.

1. Forward holds the logits, their fp32 copy where the loss wants one (transformers/loss/loss_utils.py), and their log-softmax, which
is kept.
2. Backward holds the log-softmax, the gradient that `nll_loss` makes of it and log-softmax' own gradient at once, and the logits where the
   model's output is still referenced.
3. Kernels that work in place overwrite the logits (their copy, where there is one) with the gradient.
4. A chunked loss does the same on a part of the rows at a time; fused ones (Liger, cut cross-entropy) on hidden / vocabulary of them.

Measured for Mistral-7B on an A100: 14 bytes a logit, 2 + 3 x 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from memagent.estimator.spec import TrainingSpec


@dataclass(frozen=True)
class LossBytes:
    """Bytes kept from forward to backward, and the most held at once in each."""

    kept: float
    forward: float
    backward: float


def loss_bytes(spec: TrainingSpec) -> LossBytes:
    """On one rank; tensor parallel ranks hold their part of the vocabulary."""
    values = spec.output_tokens * spec.model.outputs / spec.parallel.tensor
    logits = spec.numbers.compute
    inner = 4.0 if spec.upcasts_logits else logits
    copy = inner if inner > logits else 0.0
    if spec.loss == "eager":
        output = logits if spec.keeps_output else 0.0
        shifted = inner if spec.shifted_copy else 0.0
        return LossBytes(values * inner, values * (logits + copy + shifted + inner), values * (output + 3 * inner))
    if spec.loss == "inplace":
        held = values * (logits + (2 * inner if spec.shifted_copy else copy))
        return LossBytes(held, held, held)
    shape = spec.model
    chunks = spec.loss_chunks if spec.loss == "chunked" else max(1, ceil(shape.outputs / shape.hidden))
    gradient = spec.output_tokens * shape.hidden * logits  # of the head's input, made in forward
    at_once = values / chunks * (logits + copy + 2 * inner)
    return LossBytes(gradient, gradient + at_once, gradient + at_once)
