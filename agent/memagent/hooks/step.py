"""The optimizer's step: its beginning ends backward, its end ends the step.

Which optimizer's steps count is the clock's business (hooks/clock.py). Others only mark where the optimizer phase begins.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from memagent.diagnostics.error_guard import ErrorGuard
from memagent.errors import SettingError
from memagent.hooks import Hook
from memagent.hooks.clock import Clock

Remove = Callable[[], None]


class BeforeStep(Hook):
    """Calls `call(optimizer)` when gradients are there: before a step, or after each call of the closure that it was given.

    Inside a backward (an optimizer for each parameter, stepping as its gradient arrives) there is no moment of its own to tell.
    In a graph of torch.compile it is nothing at all, so that the graph stays whole: see `hidden`.
    """

    def __init__(self, call: Callable[[Any], None], guard: ErrorGuard, after: AfterStep) -> None:
        self._call, self._guard, self._after = call, guard, after
        self._is_compiling, self._in_backward = compiling_test(), backward_test()

    def __call__(self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._is_compiling():
            return None
        self._after.is_due = True
        try:
            if self._in_backward():
                return None
            closure = arguments[1] if len(arguments) > 1 else keywords.get("closure")
            if closure is None:
                self._call(optimizer)
            elif len(arguments) > 1:
                return (arguments[0], self._then(optimizer, closure), *arguments[2:]), keywords
            else:
                return arguments, {**keywords, "closure": self._then(optimizer, closure)}
        except Exception as error:  # noqa: BLE001 - the guard is where errors inside the agent end
            self._guard.caught("before step", error)
        return None

    def _then(self, optimizer: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
        """The closure, and after it the moment: forward and backward have run in it."""

        @functools.wraps(closure, updated=())
        def closed(*arguments: Any, **keywords: Any) -> Any:
            result = closure(*arguments, **keywords)
            try:
                self._call(optimizer)
            except Exception as error:  # noqa: BLE001
                self._guard.caught("before step", error)
            return result

        return closed


class AfterStep(Hook):
    """Calls `call(optimizer)` after a step. A step inside a graph of torch.compile only leaves word in `unseen`: writing a constant
    neither breaks the graph nor guards it, and whoever comes next counts the step.

    torch calls hooks around each `step` in the optimizer's class and its bases: where one calls `super().step()`, the inner one's end is
    the step's, and the outer one's is not due any more."""

    def __init__(self, call: Callable[[Any], None], guard: ErrorGuard) -> None:
        self._call, self._guard = call, guard
        self._is_compiling = compiling_test()
        self.unseen = False
        self.is_due = True

    def __call__(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if self._is_compiling():
            self.unseen = True
            return
        if not self.is_due:
            return
        self.is_due = False
        try:
            self._call(optimizer)
        except Exception as error:  # noqa: BLE001
            self._guard.caught("after step", error)


def hidden(optimizer: Any, hook: Any) -> Any:
    """The hook as torch.compile should meet it.

    The steps of torch's own optimizers break the graph by themselves (`_use_grad_for_differentiable`), before they come to the
    arithmetic: there a hook that is skipped costs nothing and counts exactly. Others may be part of a `fullgraph`, which it would end
    with an error: there the hook is traced and leaves word.
    """
    return hide(hook) if breaks_graphs(optimizer) else hook


def breaks_graphs(optimizer: Any) -> bool:
    """Whether torch.compile breaks the graph at this optimizer's step anyway."""
    return type(optimizer).__module__.startswith("torch.optim.")


def hide(call: Any) -> Any:
    """`call`, skipped by torch.compile and run as it is."""
    disable: Callable[[Any], Any] = getattr(
        sys.modules["torch"], "_disable_dynamo", lambda same: same
    )
    return disable(call)


def compiling_test() -> Callable[[], bool]:
    """torch.compiler.is_compiling, which torch.compile knows for a constant, so that a hook that asks it first leaves no trace."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    test: Callable[[], bool] = getattr(compiler, "is_compiling", None) or _never
    return test


def backward_test() -> Callable[[], bool]:
    """Tells whether this thread is inside a backward: recomputed forwards and optimizers-in-backward are."""
    task: Callable[[], int] | None = getattr(
        sys.modules["torch"]._C, "_current_graph_task_id", None
    )
    return _never if task is None else lambda: task() != -1


def _never() -> bool:
    return False


def unwrap(optimizer: Any) -> Any:
    """The torch optimizer inside a wrapper such as accelerate's. Raises SettingError for what is no optimizer at all."""
    seen = 0
    while (
        isinstance(optimizer, type)
        or not hasattr(optimizer, "register_step_post_hook")
        or type(optimizer).__name__ == "AcceleratedOptimizer"
    ):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or seen > 5 or isinstance(optimizer, type):
            raise SettingError(
                f"optimizer is a {type(optimizer).__name__}: give attach() a torch.optim.Optimizer, or a sequence of them"
            )
        optimizer, seen = inner, seen + 1
    return optimizer


class StepHooks:
    """Hooks on optimizers: `before(optimizer)` when one is about to change parameters, `after(steps)` when a step of the run ended."""

    def __init__(
        self,
        clock: Clock,
        guard: ErrorGuard,
        *,
        before: Callable[[Any], None],
        after: Callable[[int], None],
    ) -> None:
        self._clock, self._guard, self._before, self._after = clock, guard, before, after
        self._hooks: list[tuple[weakref.ref[Any], AfterStep]] = []
        self._removes: list[Remove] = []

    def add(self, optimizer: Any) -> None:
        self._clock.add(optimizer)
        after = AfterStep(self._ended, self._guard)
        self._hooks = [
            (reference, hook) for reference, hook in self._hooks if reference() is not None
        ]
        self._hooks.append((weakref.ref(optimizer), after))
        before = BeforeStep(self._before, self._guard, after)
        self._removes.append(optimizer.register_step_pre_hook(hidden(optimizer, before)).remove)
        self._removes.append(optimizer.register_step_post_hook(hidden(optimizer, after)).remove)

    def catch_up(self) -> None:
        """Count steps that ended inside compiled graphs since the last call."""
        for reference, hook in self._hooks:
            if hook.unseen:
                hook.unseen = False
                if (optimizer := reference()) is not None:
                    self._ended(optimizer)

    def remove(self) -> None:
        while self._removes:
            self._removes.pop()()

    def _ended(self, optimizer: Any) -> None:
        if steps := self._clock.ended(optimizer):
            self._after(steps)
