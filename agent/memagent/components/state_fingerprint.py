"""Has the optimizer's state changed? An answer that costs less than a microsecond a step, for the training thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def state_mark(optimizers: Sequence[Any]) -> list[int]:
    """Compare it with an earlier one: unequal when the state has changed in shape. Costs O(optimizers + parameter groups).

    It notices entries that come (the first step, a parameter that gets its first gradient late) and go, a state replaced as a whole
    (`load_state_dict`), groups and parameters added, and what the newest entry holds: its number of values and the length of its
    lists (LBFGS's history). It misses tensors that are replaced one for one (moved to another device, another dtype), growth in an
    entry other than the newest, and state that an optimizer keeps outside `.state`.
    """
    mark: list[int] = []
    for optimizer in optimizers:
        state = optimizer.state
        mark += (id(state), len(state))
        for group in optimizer.param_groups:
            mark.append(len(group["params"]))
        if state:
            newest = state[next(reversed(state))]
            if type(newest) is dict:
                mark.append(len(newest))
                for value in newest.values():
                    if type(value) is list:
                        mark.append(len(value))
    return mark
