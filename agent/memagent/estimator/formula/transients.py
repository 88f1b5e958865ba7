"""Tensors of a moment: a layer's working memory, recomputed layers, logits and cross-entropy.

Logits are often the peak of a step if the vocabulary is large:

1. Forward holds the logits and their log-softmax, which is saved. It also holds an fp32 copy if the
   loss wants one (transformers/loss/loss_utils.py) or autocast makes one, and a copy if the loss
   shifts the logits.
2. Backward holds the log-softmax, the gradient that `nll_loss` makes of it and log-softmax's own
   gradient at once, and the logits if the model's output is still referenced.
3. Kernels that work in place overwrite the logits (or their copy) with the gradient.
4. A chunked loss does the same on a part of the rows at a time; fused losses (Liger, cut
   cross-entropy) on hidden / vocabulary of them.

Measured for Mistral-7B on an A100: 14 bytes a logit, 2 + 3 x 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from memagent.estimator.formula.saved_tensors import edges_saved, layer_saved, unhooked_bytes
from memagent.estimator.formula.shapes import matrices
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.reductions import outer_sum_bytes


@dataclass(frozen=True)
class LayerBackward:
    """The widest moments of one layer's backward.

    working: its temporaries. pair: with the widest pair of gradients. tail: the most that its
    temporaries and its weights' gradients take beyond what the layer saved.
    """

    working: float
    pair: float
    tail: float


@dataclass(frozen=True)
class _Moment:
    """A moment of it: temporaries, the weights' gradients so far, and the saved bytes that went."""

    working: float
    weights: float = 0.0
    release: float = 0.0


def layer_backward(spec: TrainingSpec) -> LayerBackward:
    """Return the widest moments of one layer's backward.

    1. The feed-forward's last matrix has its gradient, and the widest pair is on its way.
    2. All of its matrices have, and what it saved is gone; its input's gradient isn't there.
    3. So it is when eager attention's scores have theirs.
    4. A bias's gradient is summed up.
    """
    shape, sizes = spec.model, spec.dtype_bytes
    width = shape.ffn_width * max(1, shape.experts_per_token) / spec.parallel.tensor
    if spec.expert_loop and shape.experts:  # one at a time, each with its share of the tokens
        width /= shape.experts
    feed_forward = spec.tokens * width * spec.linear_output_bytes * (2 if shape.is_gated else 1)
    scores = 0.0
    if spec.attention_path != "sdpa":
        values = spec.batch * shape.heads / spec.parallel.tensor * spec.positions**2
        scores = 2 * values * max(4, sizes.compute)
    if spec.quantised is not None:  # one layer's weights, dequantised for its product
        feed_forward += shape.ffn_width * shape.hidden * spec.dequantised_bytes
    stream = 2 * spec.tokens * shape.hidden * sizes.residual
    pair = max(feed_forward, scores) + stream
    both, activation = _gradients(spec, "gate", "up", "down"), _activation(spec)
    moments = [
        _Moment(feed_forward + stream, _gradients(spec, "down")),
        _Moment(feed_forward + stream, both, activation),
        _Moment(scores + stream, both, activation),
    ]
    sums = []
    if spec.lora_rank is None and spec.device == "cuda":
        sums = list(_bias_sums(spec, feed_forward))
    return LayerBackward(
        working=max([pair, *(moment.working for moment in sums)]),
        pair=pair,
        tail=max(each.working + each.weights - each.release for each in (*moments, *sums)),
    )


def _gradients(spec: TrainingSpec, *roles: str) -> float:
    """Return the gradients of one layer's matrices of these roles."""
    if spec.lora_rank is not None:
        return 0.0
    values = (m.parameters for m in matrices(spec.model) if m.layered and m.role in roles)
    return sum(values) / (spec.model.all_layers * spec.parallel.tensor) * spec.dtype_bytes.gradient


def _activation(spec: TrainingSpec) -> float:
    """Return what the feed-forward saves between its matrices."""
    saved = layer_saved(spec).split
    return (saved.get("ffn", 0.0) + saved.get("ffn_hidden", 0.0)) / spec.parallel.tensor


def _bias_sums(spec: TrainingSpec, feed_forward: float) -> Iterator[_Moment]:
    """Yield the moments at which the gradients of the feed-forward's biases are summed up.

    The weight's gradient comes first. When the first matrix is reached, its output's gradient is
    held, too, and what the activation and the second matrix saved is gone.
    """
    stream = 2 * spec.tokens * spec.model.hidden * spec.dtype_bytes.residual
    gradient = spec.dtype_bytes.gradient
    for matrix in matrices(spec.model):
        if matrix.bias and matrix.role in ("up", "down"):
            is_first = matrix.role == "up"
            weights = matrix.rows * matrix.cols * gradient * (2 if is_first else 1)
            scratch = outer_sum_bytes(spec.tokens, matrix.rows // spec.parallel.tensor)
            rest = feed_forward - _activation(spec) if is_first else 0.0
            yield _Moment(scratch + rest + stream, weights if scratch else 0.0)


def activation_stack(
    spec: TrainingSpec, *, layers: float, decoders: float
) -> tuple[float, float, float]:
    """Return bytes saved by the layers, one recomputed layer, and the largest layer.

    Without checkpointing the recomputed layer is 0.
    """
    plan, shape, sizes = spec.parallel, spec.model, spec.dtype_bytes
    encoder = layer_saved(spec).on_rank(plan.tensor, sequence=plan.sequence)
    decoder = 0.0
    if decoders:
        decoder = layer_saved(spec, decoder=True).on_rank(plan.tensor, sequence=plan.sequence)
    largest, whole = max(encoder, decoder), layers * encoder + decoders * decoder
    if spec.checkpointing != "full":
        return whole, 0.0, largest
    checkpointed = 1 / spec.checkpoint_every
    ranks = plan.tensor if plan.sequence else 1
    position = sizes.residual * shape.hidden * spec.batch / ranks
    inputs = (layers * spec.positions + decoders * spec.target_positions) * position
    inputs -= (sizes.residual - spec.first_input_bytes) * shape.hidden * spec.tokens / ranks
    inputs += (layers + decoders) * unhooked_bytes(spec)
    return checkpointed * inputs + (1 - checkpointed) * whole, largest, largest


def surviving_cache_bytes(spec: TrainingSpec, *, layers: float) -> float:
    """Return a key-value cache that is filled in spite of checkpointing, until the output is
    dropped.

    In a fused projection keys and values are views, which keep the queries alive too.
    """
    if not spec.cache_survives:
        return 0.0
    shape, sizes = spec.model, spec.dtype_bytes
    width = 2 * shape.kv_width + (shape.query_width if shape.style.fused_qkv else 0)
    size = sizes.compute if spec.quantised is None else sizes.residual
    return layers * spec.tokens * width / spec.parallel.tensor * size


def last_norm_bytes(spec: TrainingSpec) -> float:
    """Return the last norm's output, which forward references during the loss.

    Trained heads save it anyway.
    """
    if spec.lora_rank is None or spec.model.head_kind != "lm":
        return 0.0
    return spec.output_tokens * spec.model.hidden * spec.dtype_bytes.residual


def edge_bytes(spec: TrainingSpec) -> float:
    """Return the tensors saved outside of the layers, on one rank."""
    plan = spec.parallel
    return edges_saved(spec).on_rank(plan.tensor, sequence=plan.sequence)


@dataclass(frozen=True)
class LossBytes:
    """Bytes saved from forward to backward, and the most held at once in each."""

    saved: float
    forward: float
    backward: float


def loss_bytes(spec: TrainingSpec) -> LossBytes:
    """Return the loss on one rank; tensor-parallel ranks hold their part of the vocabulary."""
    logits = spec.dtype_bytes.compute
    # the dtype that the loss receives, and copies if it shifts the logits
    shifting = 4.0 if spec.casts_logits else logits
    copy = shifting if shifting > logits else 0.0
    if spec.loss == "eager":
        return _eager_loss(spec, shifting, copy)
    if spec.loss == "inplace":
        return _inplace_loss(spec, shifting, copy)
    shape = spec.model
    chunks = spec.loss_chunks
    if spec.loss == "fused":
        chunks = max(1, ceil(shape.outputs / shape.hidden))
    inner = 4.0 if spec.casts_logits or spec.dtype_bytes.autocast else logits
    gradient = spec.output_tokens * shape.hidden * logits  # of the head's input, made in forward
    at_once = gradient + _logit_values(spec) / chunks * (logits + copy + 2 * inner)
    return LossBytes(gradient, at_once, at_once)


def _eager_loss(spec: TrainingSpec, shifting: float, copy: float) -> LossBytes:
    values, logits, output = _logit_values(spec), _logit_bytes(spec), _output_bytes(spec)
    shifting = max(shifting, logits)
    inner = 4.0 if spec.casts_logits or spec.dtype_bytes.autocast else logits
    cast = inner if inner > shifting else 0.0  # autocast's, within cross-entropy
    shifted = shifting if spec.shifted_copy else 0.0
    returned = logits + output if output != logits else logits
    logits_bytes = 0.0 if spec.frees_logits and copy else logits
    if not logits_bytes:
        returned = output = max(output, copy)
    forward = max(logits_bytes + copy + shifted + cast + inner, inner + returned)
    live_output = output if spec.holds_output else 0.0
    if cast and spec.device == "cuda" and not shifted:
        # CUDA's autocast leaves log-softmax in its own dtype, and converts the result for nll_loss
        saved, forward = logits + inner, max(2 * logits + inner, logits + inner + returned)
        return LossBytes(values * saved, values * forward, values * (live_output + saved + inner))
    return LossBytes(values * inner, values * forward, values * (live_output + 3 * inner))


def _inplace_loss(spec: TrainingSpec, shifting: float, copy: float) -> LossBytes:
    """Kernels outside of torch: autocast doesn't know them."""
    values, logits, output = _logit_values(spec), spec.dtype_bytes.compute, _output_bytes(spec)
    shifted = shifting if spec.shifted_copy else 0.0
    saved, has_copy = shifted or shifting, bool(shifted or copy)
    returned = logits + output if output != logits else logits
    forward = max(logits + copy + shifted, returned + (saved if has_copy else 0.0))
    live_output = output if spec.holds_output and has_copy else 0.0
    # a shifted copy's gradient is put into zeros as large as the logits
    backward = live_output + saved + (shifting if shifted else copy)
    return LossBytes(values * saved, values * forward, values * backward)


def held_output_bytes(spec: TrainingSpec) -> float:
    """Return logits that the caller references during backward; none if chunked or fused."""
    if not spec.holds_output or spec.loss not in ("eager", "inplace"):
        return 0.0
    return _logit_values(spec) * _output_bytes(spec)


def _logit_values(spec: TrainingSpec) -> float:
    return spec.output_tokens * spec.model.outputs / spec.parallel.tensor


def _logit_bytes(spec: TrainingSpec) -> float:
    """Return bytes a logit: a bias outside of autocast's products widens them."""
    sizes = spec.dtype_bytes
    return sizes.residual if spec.model.style.logits_bias and sizes.autocast else sizes.compute


def _output_bytes(spec: TrainingSpec) -> float:
    if spec.output_bytes is not None:
        return spec.output_bytes
    is_converted = spec.loop == "trainer" and spec.dtype_bytes.autocast
    return 4.0 if is_converted else _logit_bytes(spec)
