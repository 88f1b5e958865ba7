"""Quantised models prepared by peft's `prepare_model_for_kbit_training`, by formula."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent.errors import EstimateError
from memagent.estimator.formula.precision import default_precision
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.shapes import matrices
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training

SPEC = TrainingSpec(
    preset("llama-2-7b"), batch=4, sequence=1024, precision="bf16-amp", checkpointing="full",
    lora_rank=16, quantised="nf4-double", loop="trainer",
)  # fmt: skip
EDGES = sum(m.parameters for m in matrices(SPEC.model) if m.kind in ("embedding", "head"))
NORMS = sum(m.parameters for m in matrices(SPEC.model) if m.kind == "norm")


def added(spec: TrainingSpec, preparation: str) -> int:
    """Return the bytes of parameters that the preparation adds."""
    before, after = (
        estimate_training(replace(spec, kbit_training=value)).components["parameters"]
        for value in (None, preparation)
    )
    return after - before


@pytest.mark.parametrize(
    ("preparation", "changes", "values"),
    [
        ("peft", {}, EDGES + NORMS),
        ("trl", {}, NORMS),
        ("trl", {"precision": "bf16"}, EDGES + NORMS),  # TRL narrows them under bf16=True only
        ("peft", {"quantised": "int8"}, EDGES + NORMS),
        ("peft", {"quantised": "int4"}, 0),
    ],
)
def test_what_is_not_quantised_takes_two_bytes_more(preparation, changes, values):
    assert added(replace(SPEC, **changes), preparation) == pytest.approx(2 * values, abs=2)


def test_the_stream_between_layers_is_fp32():
    plain, prepared = (
        estimate_training(replace(SPEC, kbit_training=value)).peak_allocated_bytes
        for value in (None, "trl")
    )
    stream = 2 * 31 * SPEC.tokens * SPEC.model.hidden  # all but the first layer's input
    assert prepared - plain >= stream


def test_prepared_models_train_under_autocast():
    assert default_precision(lora_rank=16, zero=0, kbit_training="peft") == "bf16-amp"


def test_an_answer_says_that_the_function_also_enables_checkpointing():
    without = replace(SPEC, kbit_training="peft", checkpointing="none")
    assert "enables checkpointing" in estimate_training(without).assumptions["notes"][0]
    assert "notes" not in estimate_training(replace(without, checkpointing="full")).assumptions


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kbit_training": "bnb"}, 'kbit_training is \'bnb\': use "peft", "trl" or None'),
        ({"kbit_training": "peft", "quantised": None}, "give quantised as well"),
    ],
)
def test_it_refuses_what_has_no_meaning(changes, words):
    with pytest.raises(EstimateError, match=words):
        replace(SPEC, **changes)


def test_bitsandbytes_leaves_experts_that_are_one_tensor():
    mixtral = replace(SPEC, model=preset("mixtral-8x7b"))
    experts = sum(m.parameters for m in matrices(mixtral.model) if m.kind == "expert")
    layers, tensor = (estimate_training(replace(mixtral, transformers=v)) for v in ("4.57", "5.24"))
    bytes_more = tensor.components["parameters"] - layers.components["parameters"]
    assert bytes_more == pytest.approx((2 - 0.5159) * experts, rel=0.001)
    assert "does not quantise" in tensor.assumptions["notes"][0]
    assert "notes" not in layers.assumptions
