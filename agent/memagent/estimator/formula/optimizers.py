"""What optimizers hold from step to step, and what they allocate within one.

Sources: torch/optim/*.py (`_init_group` for states, `_multi_tensor_*` and `_single_tensor_*` for temporaries); bitsandbytes/optim
(block-wise 8-bit states with one fp32 scale to each 256 values); Shazeer and Stern 2018 (Adafactor); Chen et al. 2023 (Lion); Jordan
2024 (Muon).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memagent.errors import EstimateError

Implementation = Literal["foreach", "fused", "single"]


@dataclass(frozen=True)
class Optimizer:
    """`states` tensors as large as the parameter, in its dtype unless `state_bytes` says otherwise (bytes of one value of all states).
    `foreach` is how many copies of all gradients its multi-tensor step makes, `single` how many of the largest parameter the loop makes;
    `factored` ones keep a row and a column of each matrix; `paged` states may leave for the host when memory is short."""

    states: float
    foreach: float = 1.0
    single: float = 2.0
    state_bytes: float | None = None
    factored: bool = False
    paged: bool = False
    always_single: bool = False


_EIGHT_BIT = Optimizer(2, state_bytes=2 + 2 * 4 / 256, single=0.0, always_single=True)

OPTIMIZERS = {
    "sgd": Optimizer(0, foreach=0.0, single=0.0),
    "momentum": Optimizer(1, foreach=0.0, single=0.0),
    "adam": Optimizer(2),
    "adamw": Optimizer(2),
    "nadam": Optimizer(2),
    "radam": Optimizer(2),
    "amsgrad": Optimizer(3),
    "adamax": Optimizer(2),
    "adam8bit": _EIGHT_BIT,
    "adamw8bit": _EIGHT_BIT,
    "paged_adamw": Optimizer(2, paged=True, single=0.0, always_single=True),
    "paged_adamw8bit": Optimizer(
        2, state_bytes=2 + 2 * 4 / 256, paged=True, single=0.0, always_single=True
    ),
    "rmsprop": Optimizer(1),
    "adagrad": Optimizer(1),
    "lion": Optimizer(1, single=1.0, always_single=True),
    "lion8bit": Optimizer(1, state_bytes=1 + 4 / 256, single=0.0, always_single=True),
    "adafactor": Optimizer(0, single=3.0, factored=True, always_single=True),
    "muon": Optimizer(1, single=4.0, always_single=True),
    "lbfgs": Optimizer(203, foreach=0.0, single=0.0, always_single=True),
}
"""LBFGS with its default history of 100: pairs of flat vectors, and direction, gradient and the previous one (torch/optim/lbfgs.py).
Muon's Newton-Schulz iteration holds about four matrices; its embeddings and head, which Adam usually trains, are not told apart."""


def optimizer_named(name: str) -> Optimizer:
    """Raises EstimateError that lists the optimizers known."""
    try:
        return OPTIMIZERS[name.lower()]
    except KeyError:
        raise EstimateError(
            f"optimizer {name!r} is not known: use one of {', '.join(OPTIMIZERS)}"
        ) from None


def state_bytes(optimizer: Optimizer, *, value_bytes: float) -> float:
    """Bytes of state a parameter, where its states take `value_bytes` a value. Factored ones are counted by matrix instead."""
    return (
        optimizer.state_bytes
        if optimizer.state_bytes is not None
        else optimizer.states * value_bytes
    )


def temporary_bytes(
    optimizer: Optimizer,
    implementation: Implementation,
    *,
    gradients_bytes: float,
    largest_bytes: float,
) -> float:
    """What a step allocates for a moment: foreach one copy of all gradients (the root of Adam's second moment: torch/optim/adam.py,
    `_multi_tensor_adam`), the loop two of the largest parameter, fused nothing."""
    if implementation == "fused" and not optimizer.always_single:
        return 0.0
    if implementation == "foreach" and not optimizer.always_single:
        return optimizer.foreach * gradients_bytes
    return optimizer.single * largest_bytes
