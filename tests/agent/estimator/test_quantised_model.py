"""Adapters on bitsandbytes' layers, traced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memagent.errors import EstimateError
from memagent.estimator import engine
from memagent.estimator.formula.from_config import from_config
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.estimator.huggingface import request_for_config
from memagent.estimator.trace.data_dependent_ops import NO_OUTLIERS_NOTE
from memagent.estimator.trace.isolation import can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")
CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1536, "vocab_size": 16000,
}  # fmt: skip
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
STEP: dict[str, Any] = {
    "batch": 4, "sequence": 512, "precision": "bf16-amp", "lora_rank": 16, "lora_targets": TARGETS
}  # fmt: skip


@pytest.fixture(autouse=True)
def libraries():
    for name in ("bitsandbytes", "peft", "transformers"):
        pytest.importorskip(name)


def traced(**changes: Any):
    options = {**STEP, "quantised": "nf4-double", "checkpointing": "non_reentrant", **changes}
    return engine.record(request_for_config(CONFIG, **options)).summary()


@pytest.mark.parametrize("preparation", [None, "peft", "trl"])
@pytest.mark.parametrize("checkpointing", [None, "non_reentrant"])
def test_the_formula_is_near_the_trace(preparation, checkpointing):
    summary = traced(kbit_training=preparation, checkpointing=checkpointing)
    spec = TrainingSpec(
        from_config(CONFIG), **STEP, quantised="nf4-double", kbit_training=preparation,
        checkpointing="full" if checkpointing else "none", loop="trainer", transformers="5.24",
    )  # fmt: skip
    estimate = estimate_training(spec)
    held = estimate.terms["cublas_workspace"]
    assert estimate.peak_allocated_bytes - held == pytest.approx(summary.peak_bytes, rel=0.03)


@pytest.mark.parametrize("checkpointing", [None, "non_reentrant"])
def test_layers_in_int8_hold_their_inputs_in_spite_of_checkpointing(checkpointing):
    peaks = {
        name: traced(quantised=name, checkpointing=checkpointing).peak_bytes
        for name in ("nf4", "int8")
    }
    spec = TrainingSpec(
        from_config(CONFIG), **STEP, quantised="int8", loop="trainer", transformers="5.24",
        checkpointing="full" if checkpointing else "none",
    )  # fmt: skip
    estimate = estimate_training(spec)
    held = estimate.terms["cublas_workspace"]
    assert estimate.peak_allocated_bytes - held == pytest.approx(peaks["int8"], rel=0.03)
    wider_weights = 4 * 512 * (2 * 512 + 2 * 256 + 3 * 1536) * (1 - 0.5625)
    hidden = 4 * 4 * 512 * 2 * 1536  # of the last products, which nothing else keeps
    assert peaks["int8"] - peaks["nf4"] > wider_weights + 0.5 * hidden


def test_int8_says_that_it_expects_no_outliers():
    trace = engine.record(request_for_config(CONFIG, **STEP, quantised="int8"))
    assert NO_OUTLIERS_NOTE in trace.notes


def test_quantised_weights_count_with_their_scales():
    parameters = traced().components["parameters"]
    adapted = TrainingSpec(from_config(CONFIG), **STEP, quantised="nf4-double")
    by_formula = estimate_training(adapted).components["parameters"]
    assert parameters == pytest.approx(by_formula, rel=0.01)
    single = estimate_training(replace(adapted, quantised="nf4")).components["parameters"]
    assert traced(quantised="nf4").components["parameters"] == pytest.approx(single, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantised": "int4"}, "'int4' cannot be traced: use one of int8, nf4, nf4-double"),
        ({"quantised": None, "kbit_training": "trl"}, "give quantised as well"),
    ],
)
def test_it_refuses_what_it_cannot_trace(changes, words):
    with pytest.raises(EstimateError, match=words):
        request_for_config(CONFIG, **{**STEP, **changes})


MIXTRAL = {**CONFIG, "model_type": "mixtral", "num_local_experts": 4, "vocab_size": 1000}


@pytest.mark.parametrize("quantised", ["nf4", "int8"])
def test_it_says_that_most_weights_stay_as_they_are(quantised):
    """Mixtral's experts are one tensor since transformers 5."""
    options = {**STEP, "quantised": quantised}
    notes = engine.record(request_for_config(MIXTRAL, **options)).notes
    assert any(
        "% of the layers' weights are quantised: bitsandbytes replaces" in note for note in notes
    )
    assert not any("are quantised" in note for note in traced_notes(quantised))


def traced_notes(quantised: str):
    return engine.record(request_for_config(CONFIG, **{**STEP, "quantised": quantised})).notes
