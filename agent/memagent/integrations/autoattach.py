"""Attach without editing the script.

1. `torch.optim.Optimizer.__init__` is wrapped while the script runs: every new optimizer is known.
2. Nothing is attached at that point: models are still moved to their devices, wrapped, sharded and
   compiled. The run starts with the first forward of a module that owns parameters of an optimizer,
   or with the first optimizer step. (Lightning calls `training_step` past all hooks, and some
   parameters belong to no module.)
3. Models are the outermost live modules that own the optimizers' parameters; see `find_models`.
4. Optimizers created later join the run with their models. AdaptiveClock decides which one's steps
   count (hooks/clock.py).
5. A script that calls `memagent.attach` itself takes over permanently.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from memagent.attach import start_run
from memagent.components import distinct, modules_of, parameters_of
from memagent.components.live_objects import instances
from memagent.diagnostics import ErrorGuard
from memagent.hooks.compiling import compiling_test, torch_functions_disabled
from memagent.hooks.dispatcher import Remove, step_dispatcher
from memagent.hooks.hidden_hooks import hide_forward_hooks
from memagent.lifecycle.options import AttachOptions
from memagent.lifecycle.registry import newest_run
from memagent.run import Run
from memagent.settings import Settings

_SEARCH_SHARE = 0.005
_SEARCH_ADVANCE_S = 1.0
"""Processor time of searches for the models of new optimizers: a share of the run's time, and how
far ahead of it they may be. A search of all live objects takes tens of ms, and some scripts create
an optimizer for a throw-away copy in every step."""


class AutoAttach:
    """`install()` before the script runs, `remove()` after it; `run` is None before the start.

    `choose` selects the optimizers to attach to; default: all. `on_optimizer` is called for each
    new optimizer.
    """

    def __init__(
        self,
        settings: Settings,
        options: AttachOptions | None = None,
        choose: Callable[[], Sequence[Any]] = tuple,
        on_optimizer: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_optimizer = on_optimizer
        self._choose = choose
        self.run: Run | None = None
        self.options = replace(options or AttachOptions(), automatic=True)
        self._settings = settings
        self._guard = ErrorGuard(raise_errors=settings.raise_errors)
        self._original: Callable[..., None] | None = None
        self._init: Callable[..., None] | None = None
        self._waiting: list[weakref.ref[Any]] = []
        self._owned: set[int] = set()
        self._search_s = 0.0
        self._created_at = time.monotonic()
        self._triggers: list[Remove] = []
        self._is_compiling: Callable[[], bool] = lambda: False
        self._unhook: Remove = lambda: None

    def install(self) -> None:
        import torch

        self._is_compiling = compiling_test()
        original = self._original = torch.optim.Optimizer.__init__

        @functools.wraps(original)
        def init(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            original(optimizer, *arguments, **keywords)
            with self._guard.section("adopting an optimizer"), torch_functions_disabled():
                self._on_optimizer()
                self._adopt(optimizer)

        self._init = init
        torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign, assignment]
        self._unhook = step_dispatcher().add_trigger(self._begin_step)

    def remove(self) -> None:
        """Stop looking for optimizers; the run continues."""
        self._disarm()
        self._waiting.clear()
        self._unhook()
        if self._original is not None:
            import torch

            if torch.optim.Optimizer.__init__ is self._init:
                torch.optim.Optimizer.__init__ = self._original  # type: ignore[method-assign]

    def adopt_living(self) -> None:
        """Adopt the optimizers that were created before `install`."""
        import torch

        for item in instances(torch.optim.Optimizer):
            if hasattr(item, "_optimizer_step_pre_hooks"):
                self._adopt(item)

    def begin(self) -> None:
        """Start the run, if there is an optimizer and the script hasn't called `attach` itself."""
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
        self._unhook()  # from here on nothing waits

    def _adopt(self, optimizer: Any) -> None:
        if self.run is not None:
            if self.run.status == "running":
                self.run.extend(self._find_new_models(optimizer), [optimizer])
            return
        if _script_has_attached():
            return
        self._waiting.append(weakref.ref(optimizer))
        for model in self._find_new_models(optimizer):
            # a script module runs no Python hooks: then the run starts with the first step
            if not isinstance(model, sys.modules["torch"].jit.ScriptModule):
                self._triggers.append(hide_forward_hooks(model, self._begin_forward))

    def _find_new_models(self, optimizer: Any) -> list[Any]:
        """Return new models that own parameters of `optimizer`, none beyond the time for searches.

        Without its models an optimizer's steps are counted, too, but have no forward phase.
        """
        parameters = _parameter_ids([optimizer])
        allowed_s = _SEARCH_ADVANCE_S + _SEARCH_SHARE * (time.monotonic() - self._created_at)
        if parameters <= self._owned or self._search_s > allowed_s:
            return []
        started_s = time.thread_time()
        models = find_models([optimizer])
        self._owned.update(parameters, map(id, parameters_of(models, ())))
        self._search_s += time.thread_time() - started_s
        return models

    def _begin_forward(
        self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any] | None = None
    ) -> None:
        # compiling: then the run starts with the first step
        if self._is_compiling() or keywords is None:
            return
        with self._guard.section("attaching"), torch_functions_disabled():
            self.begin()
            # The run's own hooks start with the next forward.
            if self.run is not None and module.training:
                self.run.enter("forward", *arguments, *keywords.values())

    def _begin_step(self) -> None:
        with self._guard.section("attaching"):
            self.begin()

    def _disarm(self) -> None:
        while self._triggers:
            self._triggers.pop()()


def find_models(optimizers: Sequence[Any]) -> list[Any]:
    """Return the live modules that together own the parameters of `optimizers`.

    Greedy: repeatedly take the module that owns most of the remaining parameters, and among equals
    the outermost, which has most submodules.
    """
    import torch

    remaining = _parameter_ids(optimizers)
    candidates: list[tuple[set[int], int, Any]] = []
    for item in instances(torch.nn.Module):
        if "_parameters" in item.__dict__:
            modules = modules_of([item])
            owned = {id(p) for module in modules for p in module._parameters.values()} & remaining
            if owned:
                candidates.append((owned, len(modules), item))
    models: list[Any] = []
    while candidates and remaining:
        owned, _, model = max(candidates, key=lambda entry: (len(entry[0] & remaining), entry[1]))
        if not owned & remaining:
            break
        models.append(model)
        remaining -= owned
    return list(distinct(models))


def _parameter_ids(optimizers: Sequence[Any]) -> set[int]:
    return {
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _script_has_attached() -> bool:
    newest = newest_run()
    return newest is not None and not newest.options.automatic and newest.status == "running"
