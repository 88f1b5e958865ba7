"""The model's forward: its beginning ends data, its end begins backward; outside training it is the phase eval.

1. `torch._disable_dynamo` on the hook's own `__call__` hides it from torch.compile: one graph, no break, also with `fullgraph=True`
   and `model.compile()`, and every step is still seen. (An object that calls a hidden function is not enough: fullgraph refuses it.)
2. Forward hooks fire again where activation checkpointing recomputes a forward inside backward; those are part of backward.
3. A forward that records no gradients is followed by no backward: it counts as eval, whatever the module's mode.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from memagent.guard import Guard
from memagent.hooks import Hook
from memagent.hooks.step import Remove

Shape = tuple[tuple[int, ...], str]
"""Shape and dtype name of a tensor handed to forward."""

BeforeForward = Callable[[bool, tuple[Any, ...], dict[str, Any]], None]
AfterForward = Callable[[bool], None]


def watch_forward(models: Sequence[Any], guard: Guard, *, before: BeforeForward, after: AfterForward) -> list[Remove]:
    """Call `before(training, args, kwargs)` and `after(training)` around each forward of the models themselves, not of their children."""
    before_hook, after_hook = _hook_types()
    handles = []
    for model in models:
        handles.append(model.register_forward_pre_hook(before_hook(before, guard), with_kwargs=True))
        handles.append(model.register_forward_hook(after_hook(after, guard)))
    return [handle.remove for handle in handles]


@functools.cache
def _hook_types() -> tuple[type[Any], type[Any]]:
    """The two hook classes; made at the first use, because their decorator is torch's."""
    torch = sys.modules["torch"]
    hidden = getattr(torch, "_disable_dynamo", lambda call: call)
    is_grad_enabled = torch.is_grad_enabled
    backward_id = getattr(torch._C, "_current_graph_task_id", lambda: -1)

    class BeforeForwardHook(Hook):
        def __init__(self, call: BeforeForward, guard: Guard) -> None:
            self._call, self._guard = call, guard

        @hidden  # type: ignore[untyped-decorator]
        def __call__(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            try:
                if backward_id() == -1:
                    self._call(module.training and is_grad_enabled(), arguments, keywords)
            except Exception as error:  # noqa: BLE001 - the guard is where errors inside the agent end
                self._guard.caught("before forward", error)

    class AfterForwardHook(Hook):
        def __init__(self, call: AfterForward, guard: Guard) -> None:
            self._call, self._guard = call, guard

        @hidden  # type: ignore[untyped-decorator]
        def __call__(self, module: Any, _arguments: Any, _output: Any) -> None:
            try:
                if backward_id() == -1:
                    self._call(module.training and is_grad_enabled())
            except Exception as error:  # noqa: BLE001
                self._guard.caught("after forward", error)

    return BeforeForwardHook, AfterForwardHook


def tensor_shapes(arguments: Any, keywords: dict[str, Any]) -> tuple[Shape, ...]:
    """Shapes of the tensors handed to forward, looking one level into lists, tuples and dicts."""
    found: list[Shape] = []
    for value in (*arguments, *keywords.values()):
        for item in _items(value):
            shape = getattr(item, "shape", None)
            if shape is not None and hasattr(item, "dtype"):
                found.append((tuple(int(size) for size in shape), str(item.dtype).removeprefix("torch.")))
    return tuple(found)


def input_size(arguments: Any, keywords: dict[str, Any]) -> int:
    """Elements of the tensors handed to forward, looking one level into lists, tuples and dicts."""
    total = 0
    for value in arguments:
        total += _elements(value)
    if keywords:
        for value in keywords.values():
            total += _elements(value)
    return total


def _elements(value: Any) -> int:
    try:
        return int(value.numel())
    except AttributeError:
        return sum(int(item.numel()) for item in _items(value) if hasattr(item, "numel"))


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return list(value.values())
    return (value,)
