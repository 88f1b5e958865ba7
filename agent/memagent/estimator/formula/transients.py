"""What a layer needs for a moment while it runs: the tensors that live within one operation's neighbours and are gone after them."""

from __future__ import annotations

from memagent.estimator.formula.saved_tensors import edges_saved, layer_saved
from memagent.estimator.formula.spec import TrainingSpec


def working_bytes(spec: TrainingSpec) -> float:
    """Of one layer's backward: the gradient that comes in, and the widest pair of gradients in it (feed-forward's, or the scores')."""
    shape, numbers = spec.model, spec.numbers
    c, tokens = numbers.compute, spec.tokens
    width = shape.ffn_width * max(1, shape.experts_per_token) / spec.parallel.tensor
    if spec.expert_loop and shape.experts:  # one at a time, each with its share of the tokens
        width /= shape.experts
    feed_forward = tokens * width * spec.linear_output_bytes * (2 if shape.is_gated else 1)
    scores = 0.0
    if spec.attention_path != "sdpa":
        scores = (
            2
            * spec.batch
            * shape.heads
            / spec.parallel.tensor
            * spec.positions**2
            * (4 if c < 4 else c)
        )
    if spec.quantised is not None:  # one layer's weights, dequantised for its product
        feed_forward += shape.ffn_width * shape.hidden * c
    return max(feed_forward, scores) + 2 * tokens * shape.hidden * numbers.residual


def activation_stack(
    spec: TrainingSpec, *, layers: float, decoders: float
) -> tuple[float, float, float]:
    """Bytes kept by so many layers at the end of forward, what one of them has when it is recomputed (0 without checkpointing), and
    what the largest layer keeps."""
    plan, shape = spec.parallel, spec.model
    one = layer_saved(spec).on_rank(plan.tensor, sequence=plan.sequence)
    two = (
        layer_saved(spec, decoder=True).on_rank(plan.tensor, sequence=plan.sequence)
        if decoders
        else 0.0
    )
    if spec.checkpointing != "full":
        return layers * one + decoders * two, 0.0, max(one, two)
    share = 1 / spec.checkpoint_every
    divided = plan.tensor if plan.sequence else 1
    numbers = spec.numbers
    stream = numbers.residual * shape.hidden * spec.batch / divided
    kept = layers * spec.positions * stream + decoders * spec.target_positions * stream
    kept -= (numbers.residual - spec.first_input_bytes) * shape.hidden * spec.tokens / divided
    return (
        share * kept + (1 - share) * (layers * one + decoders * two),
        max(one, two),
        max(one, two),
    )


def surviving_bytes(spec: TrainingSpec, *, layers: float) -> float:
    """What a cache that is filled in spite of checkpointing holds until the output is dropped: keys and values; of a fused projection
    they are views, which keep the queries too."""
    if not spec.cache_survives:
        return 0.0
    shape, numbers = spec.model, spec.numbers
    width = 2 * shape.kv_width + (shape.query_width if shape.style.fused_qkv else 0)
    size = numbers.residual if spec.quantised is not None else numbers.compute
    return layers * spec.tokens * width / spec.parallel.tensor * size


def local_bytes(spec: TrainingSpec) -> float:
    """The last norm's output, which the model's forward still refers to while it computes the loss; trained heads keep it anyway."""
    if spec.lora_rank is None or spec.model.kind_of_head != "lm":
        return 0.0
    return spec.output_tokens * spec.model.hidden * spec.numbers.residual


def edge_bytes(spec: TrainingSpec) -> float:
    plan = spec.parallel
    return edges_saved(spec).on_rank(plan.tensor, sequence=plan.sequence)
