"""The changes that `memagent.fit` makes, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memagent.fitting.blocks import ModelBlock

ALLOWED = ("recompute", "loop", "parts", "host", "autocast")
"""The names of the changes, for `memagent.fit(allow=...)`."""


@dataclass(frozen=True)
class Changes:
    """Changes of a step: of the model, of its batch, and of the optimizer's step.

    - blocks run again in backward; `recompute_share` is the share of a step's operations.
    - parts: forwards that one batch is divided into.
    - loops: the optimizer's step takes one parameter at a time.
    - states_on_host: the optimizer's states wait on the host between steps.
    - saved_on_host: what forward keeps for backward waits on the host.
    - autocast: the dtype of forward, as the script has it or as it was chosen.
    """

    blocks: tuple[ModelBlock, ...] = ()
    recompute_share: float = 0.0
    parts: int = 1
    loops: bool = False
    states_on_host: bool = False
    saved_on_host: bool = False
    autocast: Literal["bf16", "fp16"] | None = None
