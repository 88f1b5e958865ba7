"""Hooks on the optimizer's step: its start ends backward, its end ends the step.

The clock decides which optimizer's steps count (hooks/clock.py). The others only mark where the
optimizer phase begins.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from typing import Any

from memagent.diagnostics import ErrorGuard
from memagent.errors import SettingError
from memagent.hooks import Hook
from memagent.hooks.clock import Clock

Remove = Callable[[], None]

NO_GRAPH_TASK = -1
"""torch's number for a thread that runs no backward."""
_MAX_WRAPPERS = 5
"""Depth of wrappers around an optimizer; a deeper chain is a cycle."""


class BeforeStepHook(Hook):
    """Calls `call(optimizer)` when gradients exist: before a step, or after each closure call.

    It does nothing inside a backward: an optimizer for each parameter, stepping as its gradient
    arrives, has no separate phase. In a graph of torch.compile it vanishes, so that the graph
    stays whole: see `hide_where_harmless`.
    """

    def __init__(
        self, optimizer: Any, call: Callable[[Any], None], guard: ErrorGuard, after: AfterStepHook
    ) -> None:
        self._call = call
        self._guard = guard
        self._after = after
        self._takes_closure = takes_closure(type(optimizer))
        self._is_compiling = compiling_test()
        self._graph_task = graph_task()

    def __call__(self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._is_compiling():
            return None
        return self.run(optimizer, arguments, keywords)

    def run(self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Do what a call does, on a thread that compiles nothing."""
        # before the test for backward: its end counts in any case
        self._after.is_due = True
        try:
            if self._graph_task() != NO_GRAPH_TASK:
                return None
            if keywords or len(arguments) > 1:
                return self._before_step(optimizer, arguments, keywords)
            self._call(optimizer)
        except Exception as error:  # noqa: BLE001 - no error of the agent leaves a hook
            self._guard.caught("before step", error)
        return None

    def _before_step(
        self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        if keywords.get("closure") is not None:
            closure = self._with_call(optimizer, keywords["closure"])
            return arguments, {**keywords, "closure": closure}
        if len(arguments) > 1 and arguments[1] is not None and self._takes_closure:
            closure = self._with_call(optimizer, arguments[1])
            return (arguments[0], closure, *arguments[2:]), keywords
        self._call(optimizer)
        return None

    def _with_call(self, optimizer: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a closure, in which forward and backward run, to call `call` after it."""

        @functools.wraps(closure, updated=())
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            result = closure(*arguments, **keywords)
            try:
                self._call(optimizer)
            except Exception as error:  # noqa: BLE001
                self._guard.caught("before step", error)
            return result

        return wrapper


class AfterStepHook(Hook):
    """Calls `call(optimizer)` after a step.

    A step inside a graph of torch.compile only sets `has_uncounted_step`: writing a constant
    neither breaks the graph nor guards it. The next hook that runs counts the step.

    torch calls hooks around each `step` in the optimizer's class and its bases. If one calls
    `super().step()`, the inner call's end is the step's, and the outer one's is not due any more.
    """

    def __init__(self, call: Callable[[Any], None], guard: ErrorGuard) -> None:
        self._call = call
        self._guard = guard
        self._is_compiling = compiling_test()
        self.has_uncounted_step = False
        self.is_due = True

    def __call__(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if self._is_compiling():
            self.has_uncounted_step = True
        else:
            self.run(optimizer, arguments, keywords)

    def run(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        """Do what a call does, on a thread that compiles nothing."""
        if not self.is_due:
            return
        self.is_due = False
        try:
            self._call(optimizer)
        except Exception as error:  # noqa: BLE001
            self._guard.caught("after step", error)


def hide_where_harmless(optimizer: Any, hook: BeforeStepHook | AfterStepHook) -> Any:
    """Return the hook as torch.compile should see it.

    Steps of torch's own optimizers break the graph anyway (`_use_grad_for_differentiable`), before
    they reach the arithmetic: there a hidden hook costs nothing and counts exactly. Other
    optimizers may be part of a `fullgraph`, which a hidden hook would end with an error: there the
    hook is traced and sets `has_uncounted_step`.
    """
    return hide(hook, hook.run) if breaks_graphs(optimizer) else hook


def breaks_graphs(optimizer: Any) -> bool:
    """Return True if torch.compile breaks the graph at this optimizer's step anyway."""
    return type(optimizer).__module__.startswith("torch.optim.")


def hide(call: Any, run: Callable[..., Any] | None = None) -> Any:
    """Return `call` in a form that torch.compile skips and runs as it is.

    torch's own form for this costs 10 us a call when caches are cold, so it's only used on a thread
    that compiles. On others, which one C function tells, `run` is called, by default `call` too.
    """
    torch = sys.modules["torch"]
    disable: Callable[[Any], Any] | None = getattr(torch, "_disable_dynamo", None)
    if disable is None:
        return call
    disabled = disable(call)
    run = run or call
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    callback: Callable[[], Any] | None = getattr(frames, "get_eval_frame_callback", None)

    def dispatch(*arguments: Any) -> Any:
        return run(*arguments) if callback() is None else disabled(*arguments)  # type: ignore[misc]

    if callback is None or not _skip_code(frames, dispatch.__code__):
        return disabled
    dispatch._torchdynamo_disable = True  # type: ignore[attr-defined]
    return dispatch


def _skip_code(frames: Any, code: Any) -> bool:
    """Make torch.compile skip a function's frame; return False if this torch can't."""
    if hasattr(frames, "skip_code"):  # before torch 2.7
        frames.skip_code(code)
        return True
    if not hasattr(frames, "set_code_exec_strategy"):
        return False
    action = frames._FrameAction
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return True


def takes_closure(optimizer_class: Any) -> bool:
    """Return True if the first argument of the optimizer's step is a closure, as in torch's own.

    A script's optimizer may take anything there, such as the loss.
    """
    step = getattr(optimizer_class, "step", None)
    parameters = list(inspect.signature(step).parameters) if step is not None else []
    return parameters[1:2] == ["closure"]


def compiling_test() -> Callable[[], bool]:
    """Return torch.compiler.is_compiling.

    torch.compile treats it as a constant: a hook that calls it first leaves no trace in the graph.
    """
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    test: Callable[[], bool] = getattr(compiler, "is_compiling", None) or _never
    return test


def graph_task() -> Callable[[], int]:
    """Return a function that tells the backward on this thread, or NO_GRAPH_TASK outside of any.

    Recomputed forwards, for one, are inside a backward.
    """
    task: Callable[[], int] | None = getattr(
        sys.modules["torch"]._C, "_current_graph_task_id", None
    )
    return task or _no_graph_task


def _no_graph_task() -> int:
    return NO_GRAPH_TASK


def _never() -> bool:
    return False


def unwrap(optimizer: Any) -> Any:
    """Return the torch optimizer inside a wrapper such as accelerate's.

    Raises SettingError for anything else.
    """
    candidate = optimizer
    for _ in range(_MAX_WRAPPERS + 2):
        # accelerate's wrapper inherits the method, but calling it raises AttributeError
        is_wrapper = type(candidate).__name__ == "AcceleratedOptimizer"
        # a class that was passed for an object has the method, too
        if isinstance(candidate, type):
            break
        if hasattr(candidate, "register_step_post_hook") and not is_wrapper:
            return candidate
        inner = getattr(candidate, "optimizer", None)
        if inner is None:
            break
        candidate = inner
    raise SettingError(
        "optimizer must be a torch.optim.Optimizer or a sequence of them, "
        f"got a {type(candidate).__name__}."
    )


class StepHooks:
    """Hooks on optimizers.

    `before(optimizer)` is called when an optimizer is about to change parameters, `after(steps)`
    when steps of the run ended.
    """

    def __init__(
        self,
        clock: Clock,
        guard: ErrorGuard,
        *,
        before: Callable[[Any], None],
        after: Callable[[int], None],
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._before = before
        self._after = after
        self._hooks: list[tuple[weakref.ref[Any], AfterStepHook]] = []
        self._removes: list[Remove] = []

    def add(self, optimizer: Any) -> None:
        self._clock.add(optimizer)
        after = AfterStepHook(self._count_step, self._guard)
        self._hooks = [(ref, hook) for ref, hook in self._hooks if ref() is not None]
        self._hooks.append((weakref.ref(optimizer), after))
        before = BeforeStepHook(optimizer, self._before, self._guard, after)
        for register, hook in (
            (optimizer.register_step_pre_hook, before),
            (optimizer.register_step_post_hook, after),
        ):
            self._removes.append(register(hide_where_harmless(optimizer, hook)).remove)

    def catch_up(self) -> None:
        """Count steps that ended inside compiled graphs since the last call."""
        for ref, hook in self._hooks:
            if hook.has_uncounted_step:
                hook.has_uncounted_step = False
                if (optimizer := ref()) is not None:
                    self._count_step(optimizer)

    def remove(self) -> None:
        while self._removes:
            self._removes.pop()()

    def _count_step(self, optimizer: Any) -> None:
        if steps := self._clock.steps_ended(optimizer):
            self._after(steps)
