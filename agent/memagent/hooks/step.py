"""The optimizer's step: its beginning ends backward, its end ends the step.

The first optimizer given is the clock: a step of the run is a step of that one. Others only mark where the optimizer phase begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memagent.errors import SettingError
from memagent.guard import Guard
from memagent.hooks import Hook

Remove = Callable[[], None]


class StepHook(Hook):
    def __init__(self, call: Callable[[], None], guard: Guard, place: str) -> None:
        self._call, self._guard, self._place = call, guard, place

    def __call__(self, _optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - the guard is where errors inside the agent end
            self._guard.caught(self._place, error)


def unwrap(optimizer: Any) -> Any:
    """The torch optimizer inside a wrapper such as accelerate's. Raises SettingError for what is no optimizer at all."""
    seen = 0
    while not hasattr(optimizer, "register_step_post_hook") or type(optimizer).__name__ == "AcceleratedOptimizer":
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or seen > 5:
            raise SettingError(
                f"optimizer is a {type(optimizer).__name__}: give attach() a torch.optim.Optimizer, or a sequence of them"
            )
        optimizer, seen = inner, seen + 1
    return optimizer


def watch_steps(
    optimizers: Sequence[Any], guard: Guard, *, before: Callable[[], None], after: Callable[[], None]
) -> list[Remove]:
    """Call `before` when any of the optimizers begins a step and `after` when the first one ends its own."""
    clock = optimizers[0]
    handles = [optimizer.register_step_pre_hook(StepHook(before, guard, "before step")) for optimizer in optimizers]
    handles.append(clock.register_step_post_hook(StepHook(after, guard, "after step")))
    return [handle.remove for handle in handles]
