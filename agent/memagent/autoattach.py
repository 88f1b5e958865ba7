"""Attach without touching the script: when it makes its first optimizer, its model already exists and can be found.

`torch.optim.Optimizer.__init__` is wrapped for as long as the script runs. The models are the outermost modules that own parameters of
that optimizer, found among the live objects once.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

from memagent.components import distinct
from memagent.guard import Guard
from memagent.run import Options, start_run
from memagent.settings import Settings


class AutoAttach:
    """`install()` before the script runs, `remove()` after. A script that calls `memagent.attach` itself takes over from here."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guard = Guard(raise_errors=settings.raise_errors)
        self._original: Callable[..., None] | None = None
        self._attached = False

    def install(self) -> None:
        import torch

        original = self._original = torch.optim.Optimizer.__init__

        @functools.wraps(original)
        def init(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            original(optimizer, *arguments, **keywords)
            if not self._attached:
                self._attached = True
                with self._guard.at("attaching"):
                    self._attach(optimizer)

        torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign, assignment]

    def remove(self) -> None:
        if self._original is not None:
            import torch

            torch.optim.Optimizer.__init__ = self._original  # type: ignore[method-assign]

    def _attach(self, optimizer: Any) -> None:
        from memagent.run import newest_run

        newest = newest_run()
        if newest is not None and newest.status == "running":
            return  # the script has attached by itself
        start_run(self._settings, find_models(optimizer), [optimizer], Options(automatic=True))


def find_models(optimizer: Any) -> list[Any]:
    """The outermost live modules that own parameters of `optimizer`: those that own most of them, and no module inside another."""
    import torch

    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    modules = [item for item in gc.get_objects() if isinstance(item, torch.nn.Module)]
    owned = [(sum(id(parameter) in wanted for parameter in module.parameters()), module) for module in modules]
    most = max((count for count, _ in owned), default=0)
    candidates = [module for count, module in owned if count == most > 0]
    inner = {id(child) for module in candidates for child in module.modules() if child is not module}
    return list(distinct(module for module in candidates if id(module) not in inner))
