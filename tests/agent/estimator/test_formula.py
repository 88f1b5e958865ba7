"""The rules of thumb that every tutorial gives, as cases: the formula must agree with them."""

from __future__ import annotations

import pytest

from memagent.errors import EstimateError
from memagent.estimator.formula.saved_tensors import layer_saved
from memagent.estimator.formula.training import (
    StepSizes,
    TrainingSpec,
    TransformerShape,
    attention_scores,
    estimate_step,
    estimate_transformer,
    state_bytes_per_parameter,
    transformer_activations,
    with_batch,
)

LLAMA_7B = TransformerShape(
    layers=32, hidden=4096, heads=32, vocab=32_000, sequence=2048, ffn=11_008, gated=True
)
GPT2 = TransformerShape(
    layers=12, hidden=768, heads=12, vocab=50_257, sequence=1024, tied_embeddings=True
)


def test_parameter_counts_of_known_models():
    assert LLAMA_7B.parameter_count() == pytest.approx(6.738e9, rel=0.001)
    assert GPT2.parameter_count() == pytest.approx(124.4e6, rel=0.001)


def test_seven_billion_parameters_with_adam_in_mixed_precision_are_112_gigabytes_before_activations():
    estimate = estimate_transformer(LLAMA_7B, parameter_count=7_000_000_000)
    held = sum(estimate.components[name] for name in ("parameters", "gradients", "optimizer_state"))
    assert held == 16 * 7_000_000_000 == 112_000_000_000


@pytest.mark.parametrize(
    ("optimizer", "size"), [("sgd", 0), ("momentum", 4), ("adamw", 8), ("AdamW", 8), ("lion", 4)]
)
def test_state_by_optimizer(optimizer, size):
    assert state_bytes_per_parameter(optimizer) == size


def test_eight_bit_states_are_a_quarter():
    assert state_bytes_per_parameter("adamw8bit") / state_bytes_per_parameter(
        "adamw"
    ) == pytest.approx(0.25, rel=0.02)


def test_attention_scores_are_batch_heads_sequence_squared_times_two():
    assert attention_scores(with_batch(LLAMA_7B, 4)) == 4 * 32 * 2048**2 * 2


PLAIN = TransformerShape(
    layers=24, hidden=2048, heads=16, vocab=50_257, sequence=1024, tied_embeddings=True
)


def test_a_layer_keeps_34_sbh_and_eager_attention_five_as_squared_b_more():
    """Korthikanti et al. 2022, equation 1: GPT's block with a plain GELU and dropout in two bytes; FlashAttention keeps no scores."""
    layer = layer_saved(TrainingSpec(PLAIN.model(), 1, 1024, precision="mixed", use_cache=False))
    statistics = 1024 * (
        2 * 8 + 4 * 16
    )  # two norms' mean and deviation, attention's log-sum-exp: the paper leaves them out
    assert layer.total - statistics == 34 * 1024 * 2048
    eager, sdpa = transformer_activations(PLAIN, attention="eager"), transformer_activations(PLAIN)
    assert eager - sdpa == 24 * (5 * 16 * 1024**2 - 4 * 16 * 1024)


def test_tensor_parallel_divides_24_of_34_and_sequence_parallel_the_rest():
    """Korthikanti et al. 2022, equations 2 and 4: s b h (10 + 24 / t), then 34 / t."""
    layer = layer_saved(TrainingSpec(PLAIN.model(), 1, 1024, precision="mixed", use_cache=False))
    sbh, small = 1024 * 2048, 1024 * (2 * 8 + 4 * 16)
    assert layer.on_rank(4, sequence=False) == pytest.approx(sbh * (10 + 24 / 4), abs=small)
    assert layer.on_rank(4, sequence=True) == pytest.approx(sbh * 34 / 4, abs=small)


def test_checkpointing_keeps_a_layers_input_each_and_one_layer():
    full, none = (
        transformer_activations(PLAIN, checkpointing="full"),
        transformer_activations(PLAIN),
    )
    layer = layer_saved(
        TrainingSpec(PLAIN.model(), 1, 1024, precision="mixed", use_cache=False)
    ).total
    assert full < 0.3 * none
    assert none - full == 23 * layer - 24 * 2 * 1024 * 2048


def test_selective_checkpointing_drops_the_scores_alone():
    selective = transformer_activations(PLAIN, checkpointing="selective", attention="eager")
    assert transformer_activations(PLAIN, attention="eager") - selective == 24 * 5 * 16 * 1024**2


def test_activations_grow_with_the_batch():
    assert transformer_activations(with_batch(GPT2, 8)) == 8 * transformer_activations(GPT2)


def test_fp32_takes_four_bytes_for_each_and_eight_for_adam():
    parts = estimate_transformer(GPT2, precision="fp32").components
    assert parts["parameters"] == parts["gradients"] == 4 * GPT2.parameter_count()
    assert parts["optimizer_state"] == 8 * GPT2.parameter_count()


def test_the_peak_is_the_largest_moment_and_the_bounds_hold_it():
    estimate = estimate_step(
        StepSizes(100, 100, 200, activations_bytes=1000, temporaries_bytes=50), limit_bytes=1300
    )
    assert estimate.peak_allocated_bytes == 300 + 1000 + 25
    low, high = estimate.intervals["allocated"]
    assert low < estimate.peak_allocated_bytes < high
    assert estimate.fits is False and "will not fit" in estimate.verdict()
    small = estimate_step(StepSizes(100, 100, 200, activations_bytes=10, temporaries_bytes=50))
    assert small.peak_allocated_bytes == 300 + 100 + 50 and small.fits is None


def test_it_becomes_a_message_and_a_dict():
    estimate = estimate_step(StepSizes(1, 2, 3), limit_bytes=100, assumptions={"a": 1})
    message = estimate.to_message(rank=2, device="GPU-1")
    assert (message.rank, message.device, message.components["gradients"], message.limit_bytes) == (
        2,
        "GPU-1",
        2,
        100,
    )
    assert estimate.to_dict()["fits"] is True and estimate.to_dict()["assumptions"] == {"a": 1}


def test_nonsense_is_refused_by_name():
    with pytest.raises(EstimateError, match="layers is 0"):
        TransformerShape(layers=0, hidden=1, heads=1, vocab=1, sequence=1)
    with pytest.raises(EstimateError, match="adamw"):
        state_bytes_per_parameter("adamax9000")
