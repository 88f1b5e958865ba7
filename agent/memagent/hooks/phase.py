"""The model's forward: its beginning ends data, its end begins backward; outside training it is the phase eval.

The hooks are hidden from torch.compile by `torch._disable_dynamo`: one graph, no break, and every step still seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from memagent.guard import Guard
from memagent.hooks import Hook
from memagent.hooks.step import Remove

Shape = tuple[tuple[int, ...], str]
"""Shape and dtype name of a tensor handed to forward."""


class BeforeForward(Hook):
    def __init__(self, call: Callable[[bool, tuple[Any, ...], dict[str, Any]], None], guard: Guard) -> None:
        self._call, self._guard = call, guard

    def __call__(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        try:
            self._call(module.training, arguments, keywords)
        except Exception as error:  # noqa: BLE001 - the guard is where errors inside the agent end
            self._guard.caught("before forward", error)


class AfterForward(Hook):
    def __init__(self, call: Callable[[bool], None], guard: Guard) -> None:
        self._call, self._guard = call, guard

    def __call__(self, module: Any, _arguments: Any, _output: Any) -> None:
        try:
            self._call(module.training)
        except Exception as error:  # noqa: BLE001
            self._guard.caught("after forward", error)


def watch_forward(
    models: Sequence[Any],
    guard: Guard,
    *,
    before: Callable[[bool, tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[bool], None],
) -> list[Remove]:
    """Call `before(training, args, kwargs)` and `after(training)` around each forward of the models themselves, not of their children."""
    hidden = getattr(sys.modules["torch"], "_disable_dynamo", lambda call: call)
    handles = []
    for model in models:
        handles.append(model.register_forward_pre_hook(_Hidden(hidden, BeforeForward(before, guard)), with_kwargs=True))
        handles.append(model.register_forward_hook(_Hidden(hidden, AfterForward(after, guard))))
    return [handle.remove for handle in handles]


class _Hidden(Hook):
    """A hook behind `torch._disable_dynamo`, which returns a plain function that could not be copied with the model."""

    def __init__(self, hide: Callable[[Any], Any], hook: Hook) -> None:
        self._call = hide(hook)

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)


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
    for value in (*arguments, *keywords.values()):
        for item in _items(value):
            count = getattr(item, "numel", None)
            total += int(count()) if count is not None else 0
    return total


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return list(value.values())
    return (value,)
