"""Changes of a live optimizer's step that take no memory from the model: a loop, and states that
wait on the host.

Both leave what the step computes as it is, up to the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def can_loop(optimizer: Any) -> bool:
    """Return whether the step may be one parameter at a time, and isn't yet."""
    groups = optimizer.param_groups
    return any(
        "foreach" in group and group["foreach"] is not False for group in groups
    ) and not any(group.get("fused") for group in groups)


def step_in_a_loop(optimizer: Any) -> Callable[[], None]:
    """Update one parameter at a time: foreach, the default on CUDA, copies all gradients."""
    before = [(group, group["foreach"]) for group in optimizer.param_groups if "foreach" in group]
    for group, _ in before:
        group["foreach"] = False

    def undo() -> None:
        for group, setting in before:
            group["foreach"] = setting

    return undo


def keep_states_on_host(optimizer: Any) -> Callable[[], None]:
    """Move the states to the parameters' device for the step, and back to the host after it.

    A checkpoint's states are then on the host; `load_state_dict` takes either.
    """
    handles = (
        optimizer.register_step_pre_hook(lambda *_: _move_states(optimizer, to_host=False)),
        optimizer.register_step_post_hook(lambda *_: _move_states(optimizer, to_host=True)),
    )

    def undo() -> None:
        for handle in handles:
            handle.remove()
        _move_states(optimizer, to_host=False)

    return undo


def _move_states(optimizer: Any, *, to_host: bool) -> None:
    for parameter, states in optimizer.state.items():
        device = "cpu" if to_host else parameter.device
        for name, value in states.items():
            # counters are read by the host, or belong to the device
            if hasattr(value, "numel") and value.numel() > 1:
                states[name] = value.to(device)
