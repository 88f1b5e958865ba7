"""Attach without touching the script.

1. `torch.optim.Optimizer.__init__` is wrapped for as long as the script runs: every optimizer is known when it is made.
2. Nothing is attached then: models are still moved to their devices, wrapped, sharded and compiled. The run begins with the first
   forward of a module that owns parameters of an optimizer, or with the first optimizer step, whichever comes first. (Lightning calls
   `training_step` past all hooks; some parameters belong to no module.)
3. Models are the outermost live modules that own the optimizers' parameters; see `find_models`.
4. Optimizers made later join the run with their models. Which one's steps count is AdaptiveClock's business (hooks/clock.py).
5. A script that calls `memagent.attach` itself takes over for good.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from memagent.attach import start_run
from memagent.components import distinct
from memagent.diagnostics.error_guard import ErrorGuard
from memagent.hooks import Hook
from memagent.hooks.step import Remove, breaks_graphs, compiling_test, hide
from memagent.lifecycle.options import AttachOptions
from memagent.lifecycle.registry import newest_run
from memagent.run import Run
from memagent.settings import Settings

_MOST_LOOKS = 16


class AutoAttach:
    """`install()` before the script runs, `remove()` after; `run` is the run once it has begun, `options` what it begins with.

    `choose` may give the optimizers that it begins with, for who knows better than that all of them are meant.
    """

    def __init__(
        self,
        settings: Settings,
        options: AttachOptions | None = None,
        choose: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self._choose = choose
        self.run: Run | None = None
        self.options = replace(options or AttachOptions(), automatic=True)
        self._settings = settings
        self._guard = ErrorGuard(raise_errors=settings.raise_errors)
        self._original: Callable[..., None] | None = None
        self._init: Callable[..., None] | None = None
        self._waiting: list[weakref.ref[Any]] = []
        self._owned: set[int] = set()
        self._looks_left = _MOST_LOOKS
        self._triggers: list[Remove] = []
        self._unhook: Remove = lambda: None

    def install(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        original = self._original = torch.optim.Optimizer.__init__

        @functools.wraps(original)
        def init(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            original(optimizer, *arguments, **keywords)
            with self._guard.section("adopting an optimizer"):
                self._adopt(optimizer)

        self._init = init
        torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign, assignment]
        trigger = StepTrigger(self.begin, self._guard)
        self._unhook = register_optimizer_step_pre_hook(trigger).remove

    def remove(self) -> None:
        """Watch for no more optimizers; the run goes on."""
        self._disarm()
        self._waiting.clear()
        self._unhook()
        if self._original is not None:
            import torch

            if torch.optim.Optimizer.__init__ is self._init:
                torch.optim.Optimizer.__init__ = self._original  # type: ignore[method-assign]

    def adopt_living(self) -> None:
        """Optimizers that were made before `install`."""
        import torch

        for item in gc.get_objects():
            if issubclass(type(item), torch.optim.Optimizer) and hasattr(
                item, "_optimizer_step_pre_hooks"
            ):
                self._adopt(item)

    def begin(self) -> None:
        """Begin the run now, if an optimizer was made and the script has not begun one by itself."""
        if not self._waiting:
            return
        self._disarm()
        optimizers = [
            optimizer for reference in self._waiting if (optimizer := reference()) is not None
        ]
        self._waiting.clear()
        optimizers = list(self._choose()) or optimizers
        if not optimizers or _script_has_attached():
            return
        self.run = start_run(self._settings, find_models(optimizers), optimizers, self.options)

    def _adopt(self, optimizer: Any) -> None:
        if self.run is not None:
            if self.run.status == "running" and (models := self._look(optimizer)) is not None:
                self.run.extend(models, [optimizer])
            return
        if _script_has_attached():
            return
        self._waiting.append(weakref.ref(optimizer))
        trigger = ForwardTrigger(self._begin_forward, self._guard)
        for model in self._look(optimizer) or ():
            with contextlib.suppress(
                RuntimeError
            ):  # torch.jit.script refuses hooks: the run begins with the first step
                self._triggers.append(
                    model.register_forward_pre_hook(trigger, with_kwargs=True).remove
                )

    def _look(self, optimizer: Any) -> list[Any] | None:
        """Models that own parameters of `optimizer` and have not been found yet, or None when we have looked often enough: walking
        all live objects takes tens of milliseconds, and some scripts make an optimizer for a throw-away copy in every step."""
        parameters = _parameter_ids([optimizer])
        if parameters <= self._owned:
            return []
        if self._looks_left == 0:
            return None
        self._looks_left -= 1
        models = find_models([optimizer])
        self._owned.update(parameters, *(map(id, model.parameters()) for model in models))
        return models

    def _begin_forward(self, module: Any, inputs: Sequence[Any]) -> None:
        self.begin()
        if (
            self.run is not None and module.training
        ):  # the run's own hooks begin with the next forward
            self.run.enter("forward", *inputs)

    def _disarm(self) -> None:
        while self._triggers:
            self._triggers.pop()()


class ForwardTrigger(Hook):
    """Begins the run with a module's forward; nothing at all in a graph of torch.compile."""

    def __init__(self, call: Callable[[Any, Sequence[Any]], None], guard: ErrorGuard) -> None:
        self._call, self._guard, self._is_compiling = call, guard, compiling_test()

    def __call__(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self._is_compiling():
            return
        try:
            self._call(module, (*arguments, *keywords.values()))
        except Exception as error:  # noqa: BLE001 - the guard is where errors inside the agent end
            self._guard.caught("attaching", error)


class StepTrigger(Hook):
    """Begins the run with an optimizer's step. A global hook, which stays: hooks may be added to an optimizer that is about to step from
    a global one only, since the loop over its own has not begun, and none may be taken from the global ones meanwhile."""

    def __init__(self, call: Callable[[], None], guard: ErrorGuard) -> None:
        self._guard, self._is_compiling = guard, compiling_test()
        self._call = hide(functools.partial(call))  # it sets an attribute, which methods refuse

    def __call__(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if self._is_compiling() and not breaks_graphs(optimizer):
            return
        try:
            self._call()
        except Exception as error:  # noqa: BLE001
            self._guard.caught("attaching", error)


def find_models(optimizers: Sequence[Any]) -> list[Any]:
    """The live modules that together own the parameters of `optimizers`: again and again the one that owns most of those not owned
    yet, the outermost (of most modules) among equals."""
    import torch

    wanted = _parameter_ids(optimizers)
    sizes: list[tuple[set[int], int, Any]] = []
    for item in gc.get_objects():
        if issubclass(type(item), torch.nn.Module) and "_parameters" in item.__dict__:
            owned = {id(parameter) for parameter in item.parameters()} & wanted
            if owned:
                sizes.append((owned, sum(1 for _ in item.modules()), item))
    found: list[Any] = []
    while sizes and wanted:
        owned, _, model = max(sizes, key=lambda entry: (len(entry[0] & wanted), entry[1]))
        if not owned & wanted:
            break
        found.append(model)
        wanted -= owned
    return list(distinct(found))


def _parameter_ids(optimizers: Sequence[Any]) -> set[int]:
    return {
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _script_has_attached() -> bool:
    newest = newest_run()
    return newest is not None and not newest.is_automatic and newest.status == "running"
