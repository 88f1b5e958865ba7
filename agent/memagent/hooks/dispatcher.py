"""torch's hooks around the steps of all optimizers, and which monitored optimizer gets each.

In a step that repeats those before it (`memagent.sampling.repetition`), the only optimizer that is
monitored takes a short way: with cold caches, each Python function takes 2 us. In a step that isn't
read, nothing happens before it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from memagent.hooks.compiling import (
    NO_GRAPH_TASK,
    breaks_graphs,
    dynamo_test,
    eval_frames,
    graph_task,
    hide,
    skip_code,
)
from memagent.sampling.sampler import Sampler

if TYPE_CHECKING:
    from memagent.hooks.step import MonitoredOptimizer

Remove = Callable[[], None]

_KEY = -1
"""Key of the hooks among torch's, whose own keys count from 0."""


class StepDispatcher:
    """torch's hooks around the steps of all optimizers: they carry nothing of memagent."""

    def __init__(self) -> None:
        self._monitored: dict[int, tuple[MonitoredOptimizer, ...]] = {}
        self._only: MonitoredOptimizer | None = None
        """The optimizer that may take the short way: nothing else is called at any step."""
        self._triggers: tuple[Callable[[], None], ...] = ()
        self._graph_task = graph_task()
        self._can_shorten = skip_code(eval_frames(), Sampler.end_repetition.__code__)
        self._is_compiling = dynamo_test()
        self._without_torch_functions = sys.modules["torch"]._C.DisableTorchFunction
        self._before_eager = hide(functools.partial(self._before))
        self._after_eager = hide(functools.partial(self._after))
        self.compiled: Any = None
        """The optimizer that has stepped in a compiled graph since `catch_up`."""
        self._calls = 0
        """Calls of hooks at this moment: torch is iterating over its hooks then."""

    def add(self, optimizer: Any, monitored: MonitoredOptimizer) -> Remove:
        """Pass the steps of `optimizer` on to `monitored`. Return what ends that."""
        key = id(optimizer)
        others = (item for item in self._monitored.get(key, ()) if item.reference() is optimizer)
        self._monitored[key] = (*others, monitored)
        self._find_only()
        self._install()

        def remove() -> None:
            rest = tuple(item for item in self._monitored.get(key, ()) if item is not monitored)
            if rest:
                self._monitored[key] = rest
            else:
                self._monitored.pop(key, None)
            self._find_only()
            self._remove_if_unused()

        return remove

    def add_trigger(self, trigger: Callable[[], None]) -> Remove:
        """Call `trigger` before each step of any optimizer; it may add the optimizer."""
        self._triggers = (*self._triggers, trigger)
        self._find_only()
        self._install()

        def remove() -> None:
            self._triggers = tuple(item for item in self._triggers if item is not trigger)
            self._find_only()
            self._remove_if_unused()

        return remove

    def before_step(
        self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """In a graph of torch.compile it vanishes, so that the graph stays whole.

        Steps of torch's own optimizers break the graph anyway (`_use_grad_for_differentiable`),
        before they reach the arithmetic: there hooks run as they are, and count exactly.
        """
        if self._is_compiling():
            if not breaks_graphs(optimizer):
                return None
        elif (
            (only := self._only) is not None
            and (sampler := only.sampler) is not None
            and sampler.is_repetition
        ):
            if sampler.is_unread and only.ends_once:
                return None
            if (
                only.reference() is optimizer
                and only.thread == get_ident()
                and len(arguments) == 1
                and not keywords
                and self._graph_task() == NO_GRAPH_TASK
            ):
                only.is_due = True
                sampler.phase = "optimizer"
                return None
        return self._before_eager(optimizer, arguments, keywords)

    def after_step(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        """A step inside a graph is only noted: that neither breaks the graph nor guards it."""
        if self._is_compiling():
            if not breaks_graphs(optimizer):
                self.compiled = optimizer
                return
        elif (
            (only := self._only) is not None
            and (sampler := only.sampler) is not None
            and sampler.is_repetition
            and only.is_due
            and only.reference() is optimizer
            and only.thread == get_ident()
        ):
            only.is_due = only.ends_once
            try:
                if sampler.end_repetition():
                    self._work(only)
            except Exception as error:  # noqa: BLE001 - no error of the agent leaves a hook
                only.guard.caught("after step", error)
            return
        self._after_eager(optimizer)

    def catch_up(self) -> None:
        """Count the step that ended inside a compiled graph since the last call."""
        if self.compiled is not None:
            optimizer = self.compiled
            self.compiled = None
            for monitored in self._monitored.get(id(optimizer), ()):
                if monitored.reference() is optimizer:
                    monitored.count(optimizer)

    def _before(
        self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        changed = None
        self._calls += 1
        try:
            with self._without_torch_functions():
                for trigger in self._triggers:
                    trigger()
                for monitored in self._monitored.get(id(optimizer), ()):
                    # another object may have the id of one that is gone
                    if monitored.reference() is not optimizer:
                        continue
                    result = monitored.before_step(optimizer, arguments, keywords)
                    if result is not None:
                        arguments, keywords = changed = result
        finally:
            self._calls -= 1
        return changed

    def _after(self, optimizer: Any) -> None:
        self._calls += 1
        try:
            with self._without_torch_functions():
                for monitored in self._monitored.get(id(optimizer), ()):
                    if monitored.reference() is optimizer:
                        monitored.after_step(optimizer)
        finally:
            self._calls -= 1

    def _work(self, monitored: MonitoredOptimizer) -> None:
        self._calls += 1
        try:
            with self._without_torch_functions():
                monitored.work()
        finally:
            self._calls -= 1

    def _find_only(self) -> None:
        monitored = [item for items in self._monitored.values() for item in items]
        is_only = len(monitored) == 1 and not self._triggers and self._can_shorten
        self._only = monitored[0] if is_only else None

    def _install(self) -> None:
        # without the functions that register hooks: they number the hooks of the script, too
        optimizers = sys.modules["torch.optim.optimizer"]
        optimizers._global_optimizer_pre_hooks.setdefault(_KEY, self.before_step)
        optimizers._global_optimizer_post_hooks.setdefault(_KEY, self.after_step)

    def _remove_if_unused(self) -> None:
        if not (self._monitored or self._triggers or self._calls):
            optimizers = sys.modules["torch.optim.optimizer"]
            optimizers._global_optimizer_pre_hooks.pop(_KEY, None)
            optimizers._global_optimizer_post_hooks.pop(_KEY, None)


@functools.cache
def step_dispatcher() -> StepDispatcher:
    """Return the process's dispatcher. torch must have been imported."""
    return StepDispatcher()
