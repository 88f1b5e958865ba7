"""Likely reason for a component that differs from its prediction, in one sentence.

1. A difference is explained from a tenth of the prediction and 256 MiB on, if both sides are known.
2. Facts decide between the possible reasons of a component: the estimator's assumptions, the size
   of predicted and observed inputs, the ratio of the two figures.
3. A phase's peak includes everything: memory retained from step to step explains it before anything
   that the phase does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MIN_RATIO = 0.1
MIN_BYTES = 256 * 2**20
_LARGER_INPUT_RATIO = 1.05
_DOUBLE_RATIO = 1.8
"""Ratio that counts as twice the size: fp32 in place of 16 bits, with some slack."""


@dataclass(frozen=True)
class MismatchInput:
    """Facts that explain a mismatch.

    assumptions: those of the prediction. config: that of the run. input_ratio: size of the observed
    inputs divided by that of the predicted ones.

    `on_host`: readings are of the process, not of tensors. `retained_bytes`: allocated after the
    newest step, and part of no component.
    """

    assumptions: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    input_ratio: float | None = None
    on_host: bool = False
    retained_bytes: int | None = None


def reason(
    component: str, predicted: int | None, observed: int | None, inputs: MismatchInput
) -> str | None:
    """Return one sentence, or None if the difference is small or has no likely reason."""
    if predicted is None or observed is None:
        return None
    difference = abs(observed - predicted)
    if difference <= MIN_BYTES or difference <= MIN_RATIO * predicted:
        return None
    if component == "activations":
        return _more_activations(inputs) if observed > predicted else _fewer_activations(inputs)
    if component == "optimizer_state":
        return _optimizer_state(predicted, observed)
    more, less = _MORE_OR_LESS.get(component, (None, None))
    return more if observed > predicted else less


def reason_of_phase(
    phase: str, predicted: int | None, observed: int | None, inputs: MismatchInput
) -> str | None:
    """Return the reason for the peak of a phase, like `reason`."""
    sentence = reason(_PHASE_SUBJECTS.get(phase, "activations"), predicted, observed, inputs)
    if sentence is None or predicted is None or observed is None or inputs.retained_bytes is None:
        return sentence
    return _RETAINED if inputs.retained_bytes > (observed - predicted) / 2 > 0 else sentence


_PHASE_SUBJECTS = {"optimizer": "phase_optimizer"}
"""Subject of the reason for a phase; other phases peak because of activations."""
_RETAINED = (
    "most of it survives from step to step and belongs to no component, like a leak, "
    "which a prediction can't include"
)

_MORE_OR_LESS = {
    "phase_optimizer": (
        "the optimizer's step needs more temporaries than assumed: "
        "foreach implementations copy what they update",
        "the optimizer's step needs fewer temporaries than assumed: "
        "it is fused, or updates one tensor at a time (foreach=False)",
    ),
    "parameters": (
        "there is a second copy of the weights: fp32 master weights, or an average (EMA)",
        "the weights are sharded, quantised or offloaded",
    ),
    "gradients": (
        "gradients have a wider type than the parameters, or two copies (communication buckets)",
        "some gradients are freed before the optimizer's step, or parameters are frozen",
    ),
    "context": (
        "the CUDA context and libraries (cuBLAS, cuDNN, NCCL) take more with this driver and GPU",
        "the CUDA context and libraries (cuBLAS, cuDNN, NCCL) take less with this driver and GPU",
    ),
}


def _more_activations(inputs: MismatchInput) -> str:
    if inputs.input_ratio is not None and inputs.input_ratio > _LARGER_INPUT_RATIO:
        return _input_size_reason(inputs.input_ratio)
    if _is_checkpointing(inputs.assumptions):
        return "activation checkpointing was assumed, but seems to be inactive"
    if inputs.assumptions.get("attention") in ("sdpa", "flash", "efficient"):
        return (
            "attention may have fallen back to the eager path, "
            "which saves the scores (batch x heads x sequence^2)"
        )
    return (
        "tensors live longer than predicted: stored outputs, hooks, "
        "or another path through the model"
    )


def _fewer_activations(inputs: MismatchInput) -> str:
    if inputs.on_host:
        return "malloc retains what a step frees, so a host's readings hardly show activations"
    if inputs.input_ratio is not None and inputs.input_ratio < 1 / _LARGER_INPUT_RATIO:
        return _input_size_reason(inputs.input_ratio)
    is_possible = not (_is_checkpointing(inputs.assumptions) or _is_off(inputs.config))
    checkpointing = "activation checkpointing, " if is_possible else ""
    return (
        f"less is saved for backward than predicted: {checkpointing}autocast, frozen layers, "
        "or another path through the model"
    )


def _is_checkpointing(assumptions: Mapping[str, Any]) -> bool:
    return assumptions.get("checkpointing") not in (None, "none", False)


def _is_off(config: Mapping[str, Any]) -> bool:
    """Return True if a config, at any depth, says that activations aren't checkpointed.

    Lightning's `enable_checkpointing` is about files.
    """
    return any(
        _is_off(value)
        if isinstance(value, Mapping)
        else value is False and key.endswith(("gradient_checkpointing", "activation_checkpointing"))
        for key, value in config.items()
    )


def _input_size_reason(ratio: float) -> str:
    return f"inputs were {ratio:.2f} times as large as those of the prediction"


def _optimizer_state(predicted: int, observed: int) -> str:
    if observed >= _DOUBLE_RATIO * predicted:
        return "the optimizer stores its state, or a master copy of the weights, in fp32"
    if observed > predicted:
        return "the optimizer stores more per parameter than assumed"
    if observed == 0:
        return "the optimizer hasn't created its state yet: the first step does"
    if observed <= predicted / _DOUBLE_RATIO:
        return "the optimizer's state is quantised, sharded, or exists for trained parameters only"
    return "some parameters have had no gradient yet, and so no state"
