"""What FSDP holds of frozen weights, by how the model with adapters is wrapped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent.errors import EstimateError
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training

RANKS = 4
SPEC = TrainingSpec(
    preset("llama-2-7b"), sequence=512, precision="bf16", checkpointing="full", lora_rank=8,
    loop="trainer", parallel=Parallel(data=RANKS, zero=3),
)  # fmt: skip
WEIGHTS = SPEC.model.parameter_count()


def held(spec: TrainingSpec) -> float:
    """Return bytes a frozen weight that all ranks hold in the optimizer's step."""
    return RANKS * estimate_training(spec).phases["optimizer"] / WEIGHTS


@pytest.mark.parametrize(
    ("wrap", "precision", "size"),
    [("peft", "bf16", 2), ("peft", "amp", 2), ("layers", "bf16", 4), ("layers", "amp", 8), (None, "bf16", 6)],
)  # fmt: skip
def test_a_frozen_weight_takes_what_its_unit_holds(wrap, precision, size):
    spec = replace(SPEC, fsdp_wrap=wrap, precision=precision)
    assert held(spec) == pytest.approx(size, rel=0.05)


def test_the_gradient_of_frozen_weights_is_gone_in_forward():
    bf16 = estimate_training(replace(SPEC, fsdp_wrap="layers")).phases["forward"]
    assert bf16 == estimate_training(replace(SPEC, fsdp_wrap="peft")).phases["forward"]


def test_without_the_wrapping_the_interval_begins_at_peft_s_and_the_answer_says_so():
    unsaid, peft = (estimate_training(replace(SPEC, fsdp_wrap=wrap)) for wrap in (None, "peft"))
    assert unsaid.intervals["allocated"][0] <= peft.peak_allocated_bytes
    assert unsaid.peak_allocated_bytes <= unsaid.intervals["allocated"][1]
    assert "set-up is unknown" in unsaid.assumptions["notes"][0]
    assert peft.assumptions["fsdp_wrap"] == "peft" and "notes" not in peft.assumptions


@pytest.mark.parametrize(
    "changes", [{"lora_rank": None}, {"quantised": "nf4"}, {"parallel": Parallel()}, {"precision": "fp32"}]
)  # fmt: skip
def test_other_trainings_have_no_such_shards(changes):
    spec = replace(SPEC, **changes)
    assert not spec.is_wrapping_open
    peaks = {
        estimate_training(replace(spec, fsdp_wrap=w)).phases["backward"] for w in (None, "layers")
    }
    assert len(peaks) == 1


def test_another_wrapping_is_refused_with_the_choices():
    with pytest.raises(
        EstimateError, match='fsdp_wrap is \'blocks\': use "peft", "layers" or None'
    ):
        replace(SPEC, fsdp_wrap="blocks")
