"""Why a component is not what was predicted: the likely reason in one sentence, where the difference is worth one.

1. A difference is told from a tenth of the prediction and 256 MiB on; below that, and where one side is not known, there is none.
2. The facts decide between the reasons that a component can have: what the estimator took for granted, the size of the inputs it was
   given and of those that came, the ratio of the two figures.
3. A phase's peak holds all there is, so what a run keeps from step to step explains it before anything that the phase does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_SHARE = 0.1
LEAST_BYTES = 256 * 2**20
_LARGER_INPUT = 1.05
_TWICE = 1.8


@dataclass(frozen=True)
class Facts:
    """`assumptions` are the prediction's; `input_ratio` is the largest input that came over the one predicted with, if both are known;
    `on_host`: the readings are of the process's memory, not of tensors; `kept_bytes` is what the newest step left that belongs to no
    component."""

    method: str
    assumptions: Mapping[str, Any]
    input_ratio: float | None = None
    on_host: bool = False
    kept_bytes: int | None = None


def reason(component: str, predicted: int | None, observed: int | None, facts: Facts) -> str | None:
    """One sentence, or None where the difference is small or nothing likely explains it. Sizes in bytes."""
    if predicted is None or observed is None:
        return None
    difference = abs(observed - predicted)
    if difference <= LEAST_BYTES or difference <= LEAST_SHARE * predicted:
        return None
    if component == "activations":
        return _more_activations(facts) if observed > predicted else _fewer_activations(facts)
    if component == "optimizer_state":
        return _optimizer_state(predicted, observed)
    more, less = _MORE_OR_LESS.get(component, (None, None))
    return more if observed > predicted else less


def reason_of_phase(
    phase: str, predicted: int | None, observed: int | None, facts: Facts
) -> str | None:
    """As `reason`, of the peak of a phase."""
    found = reason(_SUBJECT.get(phase, "activations"), predicted, observed, facts)
    if found is None or predicted is None or observed is None or facts.kept_bytes is None:
        return found
    return _KEPT if facts.kept_bytes > (observed - predicted) / 2 > 0 else found


_SUBJECT = {"optimizer": "phase_optimizer"}
"""What a reason is looked for under; a phase's peak is else a matter of activations."""
_KEPT = "most of it is kept from step to step and belongs to no component, which a prediction does not foresee: a leak does that"

_MORE_OR_LESS = {
    "phase_optimizer": (
        "the optimizer's step takes more temporaries than was assumed: foreach implementations keep a copy of what they update",
        "the optimizer's step takes fewer temporaries than was assumed: fused, or one tensor after the other (foreach=False)",
    ),
    "parameters": (
        "there is a second copy of the weights: fp32 master weights, or an average (EMA) in the model",
        "the weights are sharded, quantised or offloaded",
    ),
    "gradients": (
        "gradients are kept in a wider type than the parameters, or twice (communication buckets)",
        "some gradients are freed before the optimizer's step, or parameters are frozen",
    ),
    "context": (
        "the CUDA context and what libraries hold (cuBLAS, cuDNN, NCCL) grow with driver, GPU and version",
        "the CUDA context and what libraries hold (cuBLAS, cuDNN, NCCL) are smaller with this driver, GPU and version",
    ),
}


def _more_activations(facts: Facts) -> str:
    if facts.input_ratio is not None and facts.input_ratio > _LARGER_INPUT:
        return _inputs(facts.input_ratio)
    if facts.assumptions.get("checkpointing") not in (None, "none", False):
        return "activation checkpointing was assumed and does not seem to be active"
    if facts.assumptions.get("attention") in ("sdpa", "flash", "efficient"):
        return "attention may have fallen back to the eager path, which keeps the scores (batch x heads x sequence^2)"
    if facts.method == "formula":
        return "the formula does not see what runs outside of modules, such as functional activations and the loss"
    return "tensors live longer than the trace saw: outputs that are kept, hooks, or another path through the model"


def _fewer_activations(facts: Facts) -> str:
    if facts.on_host:
        return "malloc keeps what a step frees for the next one, so a host's readings hardly show activations"
    if facts.input_ratio is not None and facts.input_ratio < 1 / _LARGER_INPUT:
        return _inputs(facts.input_ratio)
    if facts.method == "formula":
        return "activation checkpointing or autocast is active, which the formula does not see"
    return "less is kept for backward than the trace saw: checkpointing, frozen layers, or another path through the model"


def _inputs(ratio: float) -> str:
    return f"inputs were {ratio:.2f} times the size of those that the prediction saw"


def _optimizer_state(predicted: int, observed: int) -> str:
    if observed >= _TWICE * predicted:
        return "the optimizer keeps its state, or a master copy of the weights, in fp32"
    if observed > predicted:
        return "the optimizer keeps more for each parameter than was assumed"
    if observed == 0:
        return "the optimizer has not made its state yet: it comes with the first step"
    if observed <= predicted / _TWICE:
        return (
            "the optimizer's state is quantised, sharded, or made for the trained parameters only"
        )
    return "some parameters have had no gradient yet, and so no state"
