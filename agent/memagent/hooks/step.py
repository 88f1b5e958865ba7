"""Hooks on the optimizer's step: its start ends backward, its end ends the step.

The clock decides which optimizer's steps count (hooks/clock.py). The others only mark where the
optimizer phase begins.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from itertools import repeat, starmap
from typing import Any

from memagent.diagnostics import ErrorGuard
from memagent.errors import SettingError
from memagent.hooks.clock import Clock
from memagent.hooks.compiling import (
    NO_GRAPH_TASK,
    breaks_graphs,
    graph_task,
    torch_functions_disabled,
)
from memagent.hooks.dispatcher import Remove, step_dispatcher
from memagent.sampling.sampler import Sampler

_MAX_WRAPPERS = 5
"""Depth of wrappers around an optimizer; a deeper chain is a cycle."""


class MonitoredOptimizer:
    """The steps of one optimizer, for one run. `before` and `after` run around each."""

    __slots__ = (
        "_after",
        "_before",
        "_graph_task",
        "ends_once",
        "guard",
        "is_due",
        "reference",
        "sampler",
        "thread",
        "work",
    )

    def __init__(
        self,
        optimizer: Any,
        guard: ErrorGuard,
        before: Callable[[Any], None],
        after: Callable[[Any], bool | None],
        sampler: Sampler | None = None,
        work: Callable[[], None] = lambda: None,
    ) -> None:
        self.sampler = sampler
        self.work = work
        self.guard = guard
        self.reference = weakref.ref(optimizer)
        self._before = before
        self._after = after
        self._graph_task = graph_task()
        self.ends_once = breaks_graphs(optimizer)
        """No subclass in a script has a step around the one in torch, so each end is due."""
        self.is_due = True
        self.thread: int | None = None
        """Identity of the thread on which the newest step counted as one of the run's."""

    def before_step(
        self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Call `before` when gradients exist: now, or after each call of a closure.

        It isn't called inside a backward: an optimizer for each parameter, stepping as its gradient
        arrives, has no separate phase.
        """
        # before the test for backward: its end counts in any case
        self.is_due = True
        try:
            if self._graph_task() != NO_GRAPH_TASK:
                return None
            if (keywords or len(arguments) > 1) and is_closure_private(optimizer):
                if callable(closure := keywords.get("closure")):
                    return arguments, {**keywords, "closure": self._followed(optimizer, closure)}
                if len(arguments) > 1 and callable(arguments[1]):
                    closure = self._followed(optimizer, arguments[1])
                    return (arguments[0], closure, *arguments[2:]), keywords
            self._before(optimizer)
        except Exception as error:  # noqa: BLE001 - no error of the agent leaves a hook
            self.guard.caught("before step", error)
        return None

    def after_step(self, optimizer: Any) -> None:
        """Call `after`, once a step.

        torch calls hooks around each `step` in the optimizer's class and its bases. If one calls
        `super().step()`, the inner call's end is the step's, and the outer one's is not due.
        """
        if not self.is_due:
            return
        self.is_due = self.ends_once
        self.count(optimizer)

    def count(self, optimizer: Any) -> None:
        try:
            self.thread = threading.get_ident() if self._after(optimizer) else None
        except Exception as error:  # noqa: BLE001
            self.guard.caught("after step", error)

    def _followed(self, optimizer: Any, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return the closure, in which forward and backward run, with `before` after it.

        It is made of iterators so that the traceback of an error in the closure has no frame of
        memagent.
        """

        def follow(result: Any) -> Any:
            try:
                with torch_functions_disabled():
                    self._before(optimizer)
            except Exception as error:  # noqa: BLE001
                self.guard.caught("before step", error)
            return result

        return map(follow, starmap(closure, repeat(()))).__next__


def is_closure_private(optimizer: Any) -> bool:
    """Return True if only torch's own code receives the closure of this optimizer's step.

    A class or a hook of the script may look at it, and may take anything else in its place.
    """
    optimizers = sys.modules["torch.optim.optimizer"]
    return (
        breaks_graphs(optimizer)
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and len(optimizers._global_optimizer_pre_hooks) == 1
        and len(optimizers._global_optimizer_post_hooks) == 1
    )


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
        # nor has a wrapper that is an optimizer by name only, and never called the base's __init__
        if "_optimizer_step_post_hooks" in getattr(candidate, "__dict__", ()) and not is_wrapper:
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
    when steps of the run ended. Steps that repeat each other only go to `sampler`, and `work` is
    called after those with requested work.
    """

    def __init__(
        self,
        clock: Clock,
        guard: ErrorGuard,
        *,
        before: Callable[[Any], None],
        after: Callable[[int], None],
        sampler: Sampler | None = None,
        work: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._sampler = sampler
        self._work = work
        self._guard = guard
        self._before = before
        self._after = after
        self._removes: list[Remove] = []

    def add(self, optimizer: Any) -> None:
        self._clock.add(optimizer)
        monitored = MonitoredOptimizer(
            optimizer, self._guard, self._before, self._count_step, self._sampler, self._work
        )
        self._removes.append(step_dispatcher().add(optimizer, monitored))

    def catch_up(self) -> None:
        """Count steps that ended inside compiled graphs since the last call."""
        if self._removes:
            step_dispatcher().catch_up()

    def remove(self) -> None:
        while self._removes:
            self._removes.pop()()

    def _count_step(self, optimizer: Any) -> bool:
        """Return whether the step was one of the run's."""
        steps = self._clock.steps_ended(optimizer)
        if steps:
            self._after(steps)
        return steps == 1
