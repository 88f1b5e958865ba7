"""Hooks on the model's forward: its start ends data, its end starts backward; without training it
is the phase eval.

1. In a graph of torch.compile the hooks vanish: `is_dynamo_compiling()` is a constant
   there. So the graph stays whole, nothing is recompiled, and `fullgraph=True` holds even for a
   function that calls the model. (A hook hidden by `torch._disable_dynamo` would end such a
   function with an error.) A compiled forward is hooked from outside: see `hook_compiled_forward`.
2. Forward hooks fire again when activation checkpointing recomputes a forward inside backward;
   those calls are part of backward.
3. A forward that records no gradients isn't followed by a backward: it counts as eval, in any mode
   of the module; see `_require_gradients`.
4. In a step that repeats those before it (`memagent.sampling.repetition`), a forward only sets the
   phase, within the hook itself: with cold caches, each Python function takes 2 us.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from memagent.components.live_objects import instances
from memagent.diagnostics import ErrorGuard
from memagent.hooks.compiling import NO_GRAPH_TASK, dynamo_test, graph_task
from memagent.hooks.dispatcher import Remove, step_dispatcher
from memagent.hooks.hidden_hooks import hide_forward_hooks
from memagent.sampling.sampler import Sampler

TensorShape = tuple[tuple[int, ...], str]
"""Shape and dtype name of a tensor passed to forward."""

BeforeForward = Callable[[bool, tuple[Any, ...], dict[str, Any]], None]
AfterForward = Callable[[bool], None]


def hook_forward(
    models: Sequence[Any],
    guard: ErrorGuard,
    *,
    before: BeforeForward,
    after: AfterForward,
    sampler: Sampler | None = None,
) -> list[Remove]:
    """Call `before(training, args, kwargs)` and `after(training)` around each forward.

    Only of the models themselves, not of their children, and not in repeated steps of `sampler`.
    """
    removes: list[Remove] = []
    for model in models:
        before_hook = BeforeForwardHook(before, guard, sampler)
        after_hook = AfterForwardHook(after, guard, sampler)
        if getattr(model, "_compiled_call_impl", None) is not None:
            removes.append(_wrap_compiled_call(model, before_hook, after_hook))
            continue
        if not isinstance(model, sys.modules["torch"].jit.ScriptModule):  # it runs no Python hooks
            removes.append(hide_forward_hooks(model, before_hook, after_hook, sampler))
    return removes


def hook_compiled_forward(
    models: Sequence[Any],
    guard: ErrorGuard,
    *,
    before: BeforeForward,
    after: AfterForward,
    sampler: Sampler | None = None,
) -> list[Remove]:
    """Hook the forward of compiled models from outside.

    That is around `torch.compile(model)`, or the call that `model.compile()` made. Lists the
    live objects once to find the wrappers of `models`.
    """
    compiled_in_place = [
        model for model in models if getattr(model, "_compiled_call_impl", None) is not None
    ]
    ids = {id(model) for model in models}
    compiler = sys.modules.get("torch._dynamo.eval_frame")  # None: nothing is compiled
    wrappers = [
        item
        for item in (instances(compiler.OptimizedModule) if compiler is not None else ())
        if id(item.__dict__.get("_modules", {}).get("_orig_mod")) in ids
    ]
    callables = [*compiled_in_place, *wrappers]
    return hook_forward(callables, guard, before=before, after=after, sampler=sampler)


def _wrap_compiled_call(model: Any, before: BeforeForwardHook, after: AfterForwardHook) -> Remove:
    compiled = model._compiled_call_impl

    @functools.wraps(compiled, updated=())
    def call(*arguments: Any, **keywords: Any) -> Any:
        before(model, arguments, keywords)
        output = compiled(*arguments, **keywords)
        after(model, arguments, output)
        return output

    def remove() -> None:
        # not if the script has compiled the model again since
        if model.__dict__.get("_compiled_call_impl") is call:
            model._compiled_call_impl = compiled

    model._compiled_call_impl = call
    return remove


class _ForwardHook:
    __slots__ = (
        "_call",
        "_dispatcher",
        "_graph_task",
        "_guard",
        "_is_compiling",
        "_records_gradients",
        "_sampler",
        "_tensor",
        "_torch_function_modes",
        "_without_torch_functions",
    )

    def __init__(
        self, call: Callable[..., None], guard: ErrorGuard, sampler: Sampler | None
    ) -> None:
        self._call = call
        self._guard = guard
        self._sampler = sampler
        self._dispatcher = step_dispatcher()
        self._tensor = sys.modules["torch"].Tensor
        self._is_compiling = dynamo_test()
        self._graph_task = graph_task()
        self._records_gradients: Callable[[], bool] = sys.modules["torch"].is_grad_enabled
        # modes and tensor classes of the script see no call of memagent
        self._without_torch_functions = sys.modules["torch"]._C.DisableTorchFunction
        self._torch_function_modes: Callable[[], int] = getattr(
            sys.modules["torch"]._C, "_len_torch_function_stack", _one_mode
        )


class BeforeForwardHook(_ForwardHook):
    __slots__ = ()

    def __call__(
        self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any] | None = None
    ) -> None:
        # before the try: nothing after this line is traced into a graph
        if self._is_compiling() or keywords is None:
            return
        try:
            if self._graph_task() == NO_GRAPH_TASK:
                sampler = self._sampler
                if (
                    sampler is not None
                    and sampler.is_repetition
                    and module.training
                    and self._records_gradients()
                    and not keywords
                    and len(arguments) == 1
                    and type(arguments[0]) is self._tensor
                    and self._dispatcher.compiled is None
                    and not self._torch_function_modes()
                ):
                    size = sampler.input_size + arguments[0].numel()
                    if size == sampler.repeated_input_size:
                        sampler.input_size = size
                        sampler.phase = "forward"
                        return
                with self._without_torch_functions():
                    training = module.training and (
                        self._records_gradients() or _require_gradients(arguments)
                    )
                    self._call(training, arguments, keywords)
        except Exception as error:  # noqa: BLE001 - no error of the agent leaves a hook
            self._guard.caught("before forward", error)


class AfterForwardHook(_ForwardHook):
    __slots__ = ()

    def __call__(self, module: Any, arguments: Any, _output: Any) -> None:
        if self._is_compiling():
            return
        sampler = self._sampler
        # the hook before this forward has found that it trains, outside of a backward
        if sampler is not None and sampler.is_repetition and sampler.phase == "forward":
            sampler.phase = "backward"
            return
        try:
            if self._graph_task() == NO_GRAPH_TASK:
                with self._without_torch_functions():
                    self._call(
                        module.training
                        and (self._records_gradients() or _require_gradients(arguments))
                    )
        except Exception as error:  # noqa: BLE001
            self._guard.caught("after forward", error)


def _require_gradients(arguments: Sequence[Any]) -> bool:
    """Return True if a backward follows although no gradients are recorded.

    Reentrant checkpointing runs the forward so, on inputs that require them.
    """
    return any(getattr(value, "requires_grad", False) for value in arguments)


def _one_mode() -> int:
    """Stand in for a torch that can't count modes: there may be one."""
    return 1


def tensor_shapes(arguments: Any, keywords: dict[str, Any]) -> tuple[TensorShape, ...]:
    """Return the shapes of tensors passed to forward, also one level inside lists and dicts."""
    return tuple(
        (tuple(int(size) for size in item.shape), str(item.dtype).removeprefix("torch."))
        for value in (*arguments, *keywords.values())
        for item in _items(value)
        if hasattr(item, "shape") and hasattr(item, "dtype")
    )


def input_size(arguments: Any, keywords: dict[str, Any]) -> int:
    """Return the elements of tensors passed to forward, also one level inside lists and dicts."""
    total = 0
    for value in (*arguments, *keywords.values()) if keywords else arguments:
        try:
            # tried before any type test, since most arguments are tensors and this runs each step
            total += int(value.numel())
        except AttributeError:
            total += sum(int(item.numel()) for item in _items(value) if hasattr(item, "numel"))
    return total


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return list(value.values())
    return (value,)
