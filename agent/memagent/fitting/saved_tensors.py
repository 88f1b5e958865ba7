"""Tensors that forward keeps for backward, moved to the host until backward needs them.

As `torch.autograd.graph.save_on_cpu`, but for one model in any loop, and without parameters and
buffers, which stay on the device anyway. The hooks are those of all modules: `torch.save` and
copies of the model don't have them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any


class _Calls(threading.local):
    """The open calls of a thread: torch's hooks for saved tensors are a thread's, too."""

    def __init__(self) -> None:
        self.contexts: list[ExitStack] = []


def keep_saved_on_host(model: Any) -> Callable[[], None]:
    """Move what forward keeps to the host, in training. Returns a function that ends it."""
    from torch.nn.modules import module as modules

    reference = weakref.ref(model)
    calls = _Calls()

    def enter(module: Any, _: Any) -> None:
        if module is reference():
            calls.contexts.append(ExitStack())
            calls.contexts[-1].enter_context(_on_host(module))

    def leave(module: Any, *_: Any) -> None:
        if module is reference() and calls.contexts:
            calls.contexts.pop().close()

    hooks = ExitStack()
    hooks.callback(modules.register_module_forward_pre_hook(enter).remove)
    hooks.callback(modules.register_module_forward_hook(leave, always_call=True).remove)
    return hooks.close


def _on_host(model: Any) -> AbstractContextManager[Any]:
    import torch

    if not (model.training and torch.is_grad_enabled()):
        return ExitStack()
    own = [*model.parameters(), *model.buffers()]
    storages = {tensor.untyped_storage()._cdata for tensor in own}

    def pack(value: Any) -> tuple[Any, Any]:
        stays = value.layout is torch.strided and value.untyped_storage()._cdata in storages
        return value.device, value if stays else value.to("cpu")

    def unpack(packed: tuple[Any, Any]) -> Any:
        device, value = packed
        return value.to(device)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
