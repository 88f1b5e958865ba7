"""The model's forward: its beginning ends data, its end begins backward; outside training it is the phase eval.

1. In a graph of torch.compile the hooks are nothing at all: `torch.compiler.is_compiling()` is a constant there, so that the graph
   stays whole, nothing is compiled again, and `fullgraph=True` holds even for a function that calls the model. (A hook hidden by
   `torch._disable_dynamo` ends such a function with an error.) A compiled forward is seen from outside: see `watch_compiled`.
2. Forward hooks fire again where activation checkpointing recomputes a forward inside backward; those are part of backward.
3. A forward that records no gradients is followed by no backward: it counts as eval, whatever the module's mode; see
   `_records_gradients`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

from memagent.diagnostics.error_guard import ErrorGuard
from memagent.hooks import Hook
from memagent.hooks.step import Remove, backward_test, compiling_test

Shape = tuple[tuple[int, ...], str]
"""Shape and dtype name of a tensor handed to forward."""

BeforeForward = Callable[[bool, tuple[Any, ...], dict[str, Any]], None]
AfterForward = Callable[[bool], None]


def watch_forward(
    models: Sequence[Any], guard: ErrorGuard, *, before: BeforeForward, after: AfterForward
) -> list[Remove]:
    """Call `before(training, args, kwargs)` and `after(training)` around each forward of the models themselves, not of their children."""
    removes: list[Remove] = []
    for model in models:
        before_hook, after_hook = BeforeForwardHook(before, guard), AfterForwardHook(after, guard)
        if getattr(model, "_compiled_call_impl", None) is not None:
            removes.append(_around_call(model, before_hook, after_hook))
        else:
            with contextlib.suppress(
                RuntimeError
            ):  # torch.jit.script refuses hooks: its forward is not seen
                removes.append(
                    model.register_forward_pre_hook(before_hook, with_kwargs=True).remove
                )
                removes.append(model.register_forward_hook(after_hook).remove)
    return removes


def watch_compiled(
    models: Sequence[Any], guard: ErrorGuard, *, before: BeforeForward, after: AfterForward
) -> list[Remove]:
    """The same for models whose forward is compiled: from outside, around `torch.compile(model)` or the call that `model.compile()` made.

    Walks the live objects once to find the wrappers of `models`.
    """
    removes: list[Remove] = []
    for model in models:
        if getattr(model, "_compiled_call_impl", None) is not None:
            removes.append(
                _around_call(
                    model, BeforeForwardHook(before, guard), AfterForwardHook(after, guard)
                )
            )
    wrapped = {id(model) for model in models}
    wrappers = [item for item in gc.get_objects() if type(item).__name__ == "OptimizedModule"]
    found = [
        wrapper
        for wrapper in wrappers
        if id(wrapper.__dict__.get("_modules", {}).get("_orig_mod")) in wrapped
    ]
    return removes + watch_forward(found, guard, before=before, after=after)


def _around_call(model: Any, before: BeforeForwardHook, after: AfterForwardHook) -> Remove:
    compiled = model._compiled_call_impl

    @functools.wraps(compiled, updated=())
    def call(*arguments: Any, **keywords: Any) -> Any:
        before(model, arguments, keywords)
        output = compiled(*arguments, **keywords)
        after(model, arguments, output)
        return output

    def remove() -> None:
        if model.__dict__.get("_compiled_call_impl") is call:
            model._compiled_call_impl = compiled

    model._compiled_call_impl = call
    return remove


class BeforeForwardHook(Hook):
    def __init__(self, call: BeforeForward, guard: ErrorGuard) -> None:
        self._call, self._guard = call, guard
        self._is_compiling, self._in_backward = compiling_test(), backward_test()

    def __call__(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self._is_compiling():
            return
        try:
            if not self._in_backward():
                self._call(module.training and _records_gradients(arguments), arguments, keywords)
        except Exception as error:  # noqa: BLE001 - the guard is where errors inside the agent end
            self._guard.caught("before forward", error)


class AfterForwardHook(Hook):
    def __init__(self, call: AfterForward, guard: ErrorGuard) -> None:
        self._call, self._guard = call, guard
        self._is_compiling, self._in_backward = compiling_test(), backward_test()

    def __call__(self, module: Any, arguments: Any, _output: Any) -> None:
        if self._is_compiling():
            return
        try:
            if not self._in_backward():
                self._call(module.training and _records_gradients(arguments))
        except Exception as error:  # noqa: BLE001
            self._guard.caught("after forward", error)


def _records_gradients(arguments: Sequence[Any]) -> bool:
    """Whether a backward follows. Reentrant checkpointing runs the forward without gradients too, but hands it inputs that have them."""
    return sys.modules["torch"].is_grad_enabled() or any(
        getattr(value, "requires_grad", False) for value in arguments
    )


def tensor_shapes(arguments: Any, keywords: dict[str, Any]) -> tuple[Shape, ...]:
    """Shapes of the tensors handed to forward, looking one level into lists, tuples and dicts."""
    found: list[Shape] = []
    for value in (*arguments, *keywords.values()):
        for item in _items(value):
            shape = getattr(item, "shape", None)
            if shape is not None and hasattr(item, "dtype"):
                found.append(
                    (tuple(int(size) for size in shape), str(item.dtype).removeprefix("torch."))
                )
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
