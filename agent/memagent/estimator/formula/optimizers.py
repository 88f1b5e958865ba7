"""Optimizers: the state they hold between steps, and the temporaries of one step.

Sources: torch/optim/*.py (`_init_group` for states, `_multi_tensor_*` and `_single_tensor_*` for
temporaries); bitsandbytes/optim (block-wise 8-bit states, one fp32 scale for each 256 values);
Shazeer and Stern 2018 (Adafactor); Chen et al. 2023 (Lion); Jordan 2024 (Muon).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memagent.errors import OptionError, did_you_mean

StepImplementation = Literal["foreach", "fused", "single"]


@dataclass(frozen=True)
class OptimizerRule:
    """The state tensors of an optimizer, and the copies that its step makes.

    - states: tensors of the parameter's size, in its dtype unless `state_bytes` gives bytes a
      value.
    - foreach: copies of all gradients in the multi-tensor step.
    - single: copies of the largest parameter in the loop.
    - factored: the states are a row and a column of each matrix.
    - paged: the states may move to the host when memory is short.
    """

    states: float
    foreach: float = 1.0
    single: float = 2.0
    state_bytes: float | None = None
    factored: bool = False
    paged: bool = False
    always_single: bool = False


# two states of one byte, each with an fp32 scale for 256 values
_EIGHT_BIT = OptimizerRule(2, state_bytes=2 + 2 * 4 / 256, single=0.0, always_single=True)

OPTIMIZERS = {
    "sgd": OptimizerRule(0, foreach=0.0, single=0.0),
    "momentum": OptimizerRule(1, foreach=0.0, single=0.0),
    "adam": OptimizerRule(2),
    "adamw": OptimizerRule(2),
    "nadam": OptimizerRule(2),
    "radam": OptimizerRule(2),
    "amsgrad": OptimizerRule(3),
    "adamax": OptimizerRule(2),
    "adam8bit": _EIGHT_BIT,
    "adamw8bit": _EIGHT_BIT,
    "paged_adamw": OptimizerRule(2, paged=True, single=0.0, always_single=True),
    "paged_adamw8bit": OptimizerRule(
        2, state_bytes=2 + 2 * 4 / 256, paged=True, single=0.0, always_single=True
    ),
    "rmsprop": OptimizerRule(1),
    "adagrad": OptimizerRule(1),
    "lion": OptimizerRule(1, single=1.0, always_single=True),
    "lion8bit": OptimizerRule(1, state_bytes=1 + 4 / 256, single=0.0, always_single=True),
    "adafactor": OptimizerRule(0, single=1.0, factored=True, always_single=True),
    "muon": OptimizerRule(1, single=4.0, always_single=True),
    "lbfgs": OptimizerRule(203, foreach=0.0, single=0.0, always_single=True),
}
"""LBFGS has its default history of 100: pairs of flat vectors, the direction, the gradient and the
previous gradient (torch/optim/lbfgs.py). Muon's Newton-Schulz iteration holds about four matrices;
its embeddings and head, which Adam usually trains, are counted like the rest."""


TORCH_OPTIMIZERS = ("adadelta", "adamw_fused", "asgd", "rprop")
"""Names without a rule: a trace builds them."""


def optimizer_named(name: str) -> OptimizerRule:
    """Return the optimizer's rule. Raises EstimateError that lists the known ones."""
    try:
        return OPTIMIZERS[name.lower()]
    except KeyError:
        choices = ", ".join(OPTIMIZERS)
        near = did_you_mean(name, OPTIMIZERS)
        raise OptionError(
            "optimizer", f"{name!r} is not known{near}: use one of {choices}"
        ) from None


def state_bytes(rule: OptimizerRule, *, value_bytes: float) -> float:
    """Return bytes of state a parameter; factored states are counted by matrix instead."""
    return rule.states * value_bytes if rule.state_bytes is None else rule.state_bytes


def temporary_bytes(
    rule: OptimizerRule,
    implementation: StepImplementation,
    *,
    gradients_bytes: float,
    largest_bytes: float,
) -> float:
    """Return the temporaries of a step.

    foreach copies all gradients once (the root of Adam's second moment: torch/optim/adam.py,
    `_multi_tensor_adam`), the loop copies the largest parameter twice, a fused step nothing.
    """
    if implementation == "fused" and not rule.always_single:
        return 0.0
    if implementation == "foreach" and not rule.always_single:
        return rule.foreach * gradients_bytes
    return rule.single * largest_bytes
