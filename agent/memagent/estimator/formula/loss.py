"""Logits and cross-entropy: often the peak of a step where the vocabulary is large.

1. Forward holds the logits, their fp32 copy where the loss wants one (transformers/loss/loss_utils.py) or autocast makes one, a copy
   that is shifted where the loss does so, and their log-softmax, which is kept.
2. Backward holds the log-softmax, the gradient that `nll_loss` makes of it and log-softmax' own gradient at once, and the logits where the
   model's output is still referenced.
3. Kernels that work in place overwrite the logits (their copy, where there is one) with the gradient.
4. A chunked loss does the same on a part of the rows at a time; fused ones (Liger, cut cross-entropy) on hidden / vocabulary of them.

Measured for Mistral-7B on an A100: 14 bytes a logit, 2 + 3 x 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from memagent.estimator.formula.spec import TrainingSpec


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
    shifting = (
        4.0 if spec.casts_logits else logits
    )  # what the loss gets, and copies where it shifts them
    inner = 4.0 if spec.casts_logits or spec.numbers.autocast else logits
    copy = shifting if shifting > logits else 0.0
    cast = inner if inner > shifting else 0.0  # autocast's, within cross-entropy
    shifted = shifting if spec.shifted_copy else 0.0
    output = _output_bytes(spec)
    returned = logits + output if output != logits else logits
    if spec.loss == "eager":
        forward = max(logits + copy + shifted + cast + inner, inner + returned)
        held = output if spec.keeps_output else 0.0
        return LossBytes(values * inner, values * forward, values * (held + 3 * inner))
    if spec.loss == "inplace":  # kernels of their own: autocast does not know them
        kept = shifted or shifting
        forward = max(logits + copy + shifted, returned + (kept if shifted or copy else 0.0))
        held = output if spec.keeps_output and (shifted or copy) else 0.0
        # a shifted copy's gradient is put into zeros as large as the logits
        return LossBytes(
            values * kept,
            values * forward,
            values * (held + kept + (shifting if shifted else copy)),
        )
    shape = spec.model
    chunks = (
        spec.loss_chunks if spec.loss == "chunked" else max(1, ceil(shape.outputs / shape.hidden))
    )
    gradient = spec.output_tokens * shape.hidden * logits  # of the head's input, made in forward
    at_once = values / chunks * (logits + copy + 2 * inner)
    return LossBytes(gradient, gradient + at_once, gradient + at_once)


def held_output_bytes(spec: TrainingSpec) -> float:
    """Logits that the caller still refers to while layers run backward; chunked and fused losses return none."""
    if not spec.keeps_output or spec.loss not in ("eager", "inplace"):
        return 0.0
    return spec.output_tokens * spec.model.outputs * _output_bytes(spec) / spec.parallel.tensor


def _output_bytes(spec: TrainingSpec) -> float:
    """Of one value of the logits that the caller gets."""
    return spec.numbers.compute if spec.output_bytes is None else spec.output_bytes
