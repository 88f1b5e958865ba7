"""Changes of a rehearsed script in its own process, before it starts.

They stand for edits of the script: hooks around the outermost calls of modules and around the steps
of optimizers, and other classes under the names of torch's optimizers.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from memagent.estimator.model_edits import checkpoint_blocks

_ADAMS = ("Adam", "AdamW", "NAdam", "RAdam")
Around = Callable[[torch.nn.Module], AbstractContextManager[Any]]


def apply_change(key: str) -> None:
    """Make the change of this key in the process."""
    CHANGES[key]()


def _around_calls(around: Around) -> None:
    """Enter `around(module)` in each outermost call of a module."""
    original = torch.nn.Module.__call__
    depth = 0

    @functools.wraps(original)
    def call(module: torch.nn.Module, *arguments: Any, **keywords: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            with around(module) if depth == 1 else nullcontext():
                return original(module, *arguments, **keywords)
        finally:
            depth -= 1

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]


def _autocast() -> None:
    _around_calls(lambda _module: torch.autocast("cuda", dtype=torch.bfloat16))


def _checkpoint() -> None:
    """Recompute the blocks of each model from its first call in training on."""
    changed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def change(module: torch.nn.Module) -> AbstractContextManager[Any]:
        if module.training and torch.is_grad_enabled() and module not in changed:
            changed.add(module)
            checkpoint_blocks(module)
        return nullcontext()

    _around_calls(change)


def _free_gradients() -> None:
    def after(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        optimizer.zero_grad(set_to_none=True)

    optimizers.register_optimizer_step_post_hook(after)


def _with_options(**options: bool) -> None:
    """Set options of the optimizer's step, where it has them."""

    def before(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        for group in optimizer.param_groups:
            group.update({name: value for name, value in options.items() if name in group})

    optimizers.register_optimizer_step_pre_hook(before)


def _instead_of_adam(base: Any) -> None:
    """Give the names of Adam's variants to `base`, which takes their rate and weight decay."""

    class Replacement(base):  # type: ignore[misc]
        def __init__(
            self, params: Any, lr: Any = 1e-3, *_: Any, weight_decay: float = 0.0, **__: Any
        ) -> None:
            super().__init__(params, lr=lr, weight_decay=weight_decay)

    for name in _ADAMS:
        setattr(torch.optim, name, Replacement)


CHANGES: dict[str, Callable[[], None]] = {
    "zero_grad": _free_gradients,
    "autocast": _autocast,
    "checkpointing": _checkpoint,
    "optimizer_step": functools.partial(_with_options, foreach=False),
    "fused": functools.partial(_with_options, foreach=False, fused=True),
    "adafactor": lambda: _instead_of_adam(torch.optim.Adafactor),
    "sgd": lambda: _instead_of_adam(torch.optim.SGD),
}
