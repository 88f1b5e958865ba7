"""The rules of thumb of the tutorials: the formula must agree with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent.errors import EstimateError
from memagent.estimator.formula.optimizers import optimizer_named, state_bytes
from memagent.estimator.formula.saved_tensors import layer_saved
from memagent.estimator.formula.shapes import ModelShape
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.estimator.formula.transients import activation_stack, edge_bytes, loss_bytes

LLAMA_7B = ModelShape(32, 4096, 32, 32_000, ffn=11_008, tied_embeddings=False)


def gpt(layers: int, hidden: int, heads: int) -> ModelShape:
    """GPT-2's block with a plain GELU and dropout."""
    return ModelShape(
        layers, hidden, heads, 50_257, family="gpt2", activation="gelu", positions=1024, dropout=0.1
    )


def mixed(model: ModelShape, **options) -> TrainingSpec:
    return TrainingSpec(model, precision="mixed", use_cache=False, **options)


def activations(spec: TrainingSpec) -> int:
    """All that is saved for backward, logits' log-softmax included."""
    saved, recomputed, _ = activation_stack(spec, layers=spec.model.layers, decoders=0)
    return round(saved + recomputed + edge_bytes(spec) + loss_bytes(spec).saved)


GPT2 = gpt(12, 768, 12)
PLAIN = gpt(24, 2048, 16)


def test_parameter_counts_of_known_models():
    assert LLAMA_7B.parameter_count() == pytest.approx(6.738e9, rel=0.001)
    assert GPT2.parameter_count() == pytest.approx(124.4e6, rel=0.001)


def test_seven_billion_parameters_with_adam_in_mixed_precision_are_112_gigabytes():
    estimate = estimate_training(mixed(LLAMA_7B, sequence=2048, parameter_count=7_000_000_000))
    total = sum(
        estimate.components[name] for name in ("parameters", "gradients", "optimizer_state")
    )
    assert total == 16 * 7_000_000_000 == 112_000_000_000


@pytest.mark.parametrize(
    ("optimizer", "size"), [("sgd", 0), ("momentum", 4), ("adamw", 8), ("AdamW", 8), ("lion", 4)]
)
def test_state_by_optimizer(optimizer, size):
    assert state_bytes(optimizer_named(optimizer), value_bytes=4) == size


def test_eight_bit_states_are_a_quarter():
    eight_bit, adam = (
        state_bytes(optimizer_named(name), value_bytes=4) for name in ("adamw8bit", "adamw")
    )
    assert eight_bit / adam == pytest.approx(0.25, rel=0.02)


def test_a_layer_saves_34_sbh_and_eager_attention_five_as_squared_b_more():
    """Korthikanti et al. 2022, equation 1: GPT's block with a plain GELU, dropout and two bytes."""
    layer = layer_saved(mixed(PLAIN))
    # two norms' mean and deviation, attention's log-sum-exp: not in the paper
    statistics = 1024 * (2 * 8 + 4 * 16)
    assert layer.total - statistics == 34 * 1024 * 2048
    eager = activations(mixed(PLAIN, attention="eager"))
    assert eager - activations(mixed(PLAIN)) == 24 * (5 * 16 * 1024**2 - 4 * 16 * 1024)


def test_tensor_parallel_divides_24_of_34_and_sequence_parallel_the_rest():
    """Korthikanti et al. 2022, equations 2 and 4: s b h (10 + 24 / t), then 34 / t."""
    layer = layer_saved(mixed(PLAIN))
    sbh, small = 1024 * 2048, 1024 * (2 * 8 + 4 * 16)
    assert layer.on_rank(4, sequence=False) == pytest.approx(sbh * (10 + 24 / 4), abs=small)
    assert layer.on_rank(4, sequence=True) == pytest.approx(sbh * 34 / 4, abs=small)


def test_checkpointing_saves_the_input_of_each_layer_and_one_layer():
    full, none = activations(mixed(PLAIN, checkpointing="full")), activations(mixed(PLAIN))
    layer = layer_saved(mixed(PLAIN)).total
    assert full < 0.3 * none
    assert none - full == 23 * layer - 24 * 2 * 1024 * 2048


def test_selective_checkpointing_drops_only_the_scores():
    eager = mixed(PLAIN, attention="eager")
    selective = replace(eager, checkpointing="selective")
    assert activations(eager) - activations(selective) == 24 * 5 * 16 * 1024**2


def test_activations_grow_with_the_batch():
    assert activations(mixed(GPT2, batch=8)) == 8 * activations(mixed(GPT2))


def test_fp32_takes_four_bytes_for_each_and_eight_for_adam():
    parts = estimate_training(replace(mixed(GPT2), precision="fp32")).components
    assert parts["parameters"] == parts["gradients"] == 4 * GPT2.parameter_count()
    assert parts["optimizer_state"] == 8 * GPT2.parameter_count()


def test_an_invalid_value_is_named():
    with pytest.raises(EstimateError, match="layers is 0"):
        ModelShape(layers=0, hidden=1, heads=1, vocab=1)
    with pytest.raises(EstimateError, match="adamw"):
        optimizer_named("adamax9000")
