"""Hooks on the optimizer's step: its start ends backward, its end ends the step.

The clock decides which optimizer's steps count (hooks/clock.py). The others only mark where the
optimizer phase begins.

In a step that repeats those before it (`memagent.sampling.repetition`), the only optimizer that is
monitored takes a short way: with cold caches, each Python function takes 2 us.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from itertools import repeat, starmap
from typing import Any

from memagent.diagnostics import ErrorGuard
from memagent.errors import SettingError
from memagent.hooks.clock import Clock
from memagent.sampling.sampler import Sampler

Remove = Callable[[], None]

NO_GRAPH_TASK = -1
"""torch's number for a thread that runs no backward."""
_KEY = -1
"""Key of the hooks among torch's, whose own keys count from 0."""
_MAX_WRAPPERS = 5
"""Depth of wrappers around an optimizer; a deeper chain is a cycle."""


class MonitoredOptimizer:
    """The steps of one optimizer, for one run. `before` and `after` run around each."""

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
        self.is_due = False
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


class StepDispatcher:
    """torch's hooks around the steps of all optimizers: they carry nothing of memagent."""

    def __init__(self) -> None:
        self._monitored: dict[int, tuple[MonitoredOptimizer, ...]] = {}
        self._only: MonitoredOptimizer | None = None
        """The optimizer that may take the short way: nothing else is called at any step."""
        self._triggers: tuple[Callable[[], None], ...] = ()
        self._graph_task = graph_task()
        self._can_shorten = _skip_code(_eval_frames(), Sampler.end_repetition.__code__)
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
            and only.reference() is optimizer
            and only.thread == threading.get_ident()
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
            and only.thread == threading.get_ident()
        ):
            only.is_due = False
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


def torch_functions_disabled() -> Any:
    """Return a context in which modes and tensor classes of the script see no call of memagent."""
    return sys.modules["torch"]._C.DisableTorchFunction()


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
    frames = _eval_frames()
    callback: Callable[[], Any] | None = getattr(frames, "get_eval_frame_callback", None)

    def dispatch(*arguments: Any) -> Any:
        return run(*arguments) if callback() is None else disabled(*arguments)  # type: ignore[misc]

    if callback is None or not _skip_code(frames, dispatch.__code__):
        return disabled
    dispatch._torchdynamo_disable = True  # type: ignore[attr-defined]
    return dispatch


def _eval_frames() -> Any:
    """Return the module by which torch.compile takes frames, None without it."""
    return getattr(getattr(sys.modules["torch"]._C, "_dynamo", None), "eval_frame", None)


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


def compiling_test() -> Callable[[], bool]:
    """Return torch.compiler.is_compiling.

    torch.compile treats it as a constant: a hook that calls it first leaves no trace in the graph.
    """
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    test: Callable[[], bool] = getattr(compiler, "is_compiling", None) or _never
    return test


def dynamo_test() -> Callable[[], bool]:
    """Return torch.compiler.is_dynamo_compiling: the same, of torch.compile alone and cheaper."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return getattr(compiler, "is_dynamo_compiling", None) or compiling_test()


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
