"""Reasons for residuals. Numbers are those of the module's docstring."""

from __future__ import annotations

import pytest

from memagent_server.compare.mismatch_reasons import (
    MIN_BYTES,
    MismatchInput,
    reason,
    reason_of_phase,
)

GIB = 2**30
UNKNOWN = MismatchInput(assumptions={})


@pytest.mark.parametrize(
    ("predicted", "observed"),
    [(None, GIB), (GIB, None), (GIB, GIB + MIN_BYTES), (100 * GIB, 109 * GIB), (GIB, GIB)],
)
def test_1_small_differences_and_unknown_sides_have_none(predicted, observed):
    assert reason("parameters", predicted, observed, UNKNOWN) is None


@pytest.mark.parametrize(
    ("component", "predicted", "observed", "inputs", "words"),
    [
        (
            "activations",
            10,
            20,
            MismatchInput({"checkpointing": "full"}),
            "checkpointing was assumed",
        ),
        (
            "activations",
            10,
            20,
            MismatchInput({"checkpointing": "by the model"}),
            "checkpointing was assumed",
        ),
        ("activations", 10, 20, MismatchInput({"attention": "flash"}), "eager path"),
        (
            "activations",
            10,
            20,
            MismatchInput({"checkpointing": "none", "attention": "sdpa"}),
            "eager path",
        ),
        (
            "activations",
            10,
            20,
            MismatchInput({"checkpointing": "none", "attention": "eager"}),
            "tensors live longer",
        ),
        ("activations", 10, 20, MismatchInput({}, input_ratio=2.0), "2.00 times as large"),
        ("activations", 10, 20, MismatchInput({}, input_ratio=0.5), "tensors live longer"),
        ("activations", 10, 20, UNKNOWN, "tensors live longer"),
        ("activations", 20, 10, UNKNOWN, "activation checkpointing, autocast"),
        (
            "activations",
            20,
            10,
            MismatchInput({"checkpointing": "full"}),
            "than predicted: autocast",
        ),
        (
            "activations",
            20,
            10,
            MismatchInput({}, config={"train": {"gradient_checkpointing": False, "seed": 1}}),
            "than predicted: autocast",
        ),
        (
            "activations",
            20,
            10,
            MismatchInput(
                {}, config={"gradient_checkpointing": True, "enable_checkpointing": False}
            ),
            "activation checkpointing, autocast",
        ),
        ("activations", 20, 10, MismatchInput({}, on_host=True), "malloc retains"),
        ("activations", 20, 10, MismatchInput({}, input_ratio=0.5), "0.50 times as large"),
        ("optimizer_state", 10, 20, UNKNOWN, "in fp32"),
        ("optimizer_state", 10, 13, UNKNOWN, "more per parameter"),
        ("optimizer_state", 10, 0, UNKNOWN, "first step"),
        ("optimizer_state", 10, 3, UNKNOWN, "quantised"),
        ("optimizer_state", 10, 8, UNKNOWN, "no gradient yet"),
        ("gradients", 10, 20, UNKNOWN, "wider type"),
        ("gradients", 10, 5, UNKNOWN, "frozen"),
        ("parameters", 10, 20, UNKNOWN, "second copy"),
        ("parameters", 10, 5, UNKNOWN, "sharded"),
        ("context", 1, 2, UNKNOWN, "driver"),
    ],
)
def test_2_the_inputs_decide(component, predicted, observed, inputs, words):
    assert words in reason(component, predicted * GIB, observed * GIB, inputs)


def test_a_component_without_reasons_has_none():
    assert reason("fragmentation", GIB, 9 * GIB, UNKNOWN) is None


@pytest.mark.parametrize(
    ("retained", "observed", "words"),
    [
        (None, 30, "tensors live longer"),
        (9, 30, "tensors live longer"),
        (11, 30, "like a leak"),
        (11, 5, "less is saved"),
    ],
)
def test_3_retained_memory_explains_a_phase_first(retained, observed, words):
    inputs = MismatchInput({}, retained_bytes=None if retained is None else retained * GIB)
    assert words in reason_of_phase("forward", 10 * GIB, observed * GIB, inputs)
    assert reason_of_phase("forward", 10 * GIB, 10 * GIB, inputs) is None
