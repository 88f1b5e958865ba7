"""Puts back what a trial may change: the modules' modes, their buffers, the random generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

_COPIED_BYTES = 2**30
"""Buffers up to this much together are copied (to the host) before a trial; beyond it there is no room for copies."""

Restore = Callable[[], None]


@contextmanager
def untouched(models: Sequence[Any], gpus: Sequence[int]) -> Iterator[None]:
    """Whatever is done inside, the next training step finds `models` and the generators of the host and of `gpus` as they were."""
    torch = sys.modules["torch"]
    modules = list(dict.fromkeys(module for model in models for module in model.modules()))
    restores = [_modes(modules), _buffers(torch, modules), _python_generators()]
    try:
        with torch.random.fork_rng(devices=list(gpus), enabled=True):
            yield
    finally:
        for restore in restores:
            restore()


def _modes(modules: Sequence[Any]) -> Restore:
    """Each module's own mode: a part may be in eval mode while the rest trains."""
    modes = [(module, module.training) for module in modules]

    def restore() -> None:
        for module, training in modes:
            module.training = training

    return restore


def _buffers(torch: Any, modules: Sequence[Any]) -> Restore:
    """The same tensors with the same values. Only those that were written to are written back."""
    places = [
        (m._buffers, name, b) for m in modules for name, b in m._buffers.items() if b is not None
    ]
    copies: dict[int, tuple[Any, Any]] = {}
    left = _COPIED_BYTES
    for _, _, buffer in places:
        with suppress(
            RuntimeError, NotImplementedError
        ):  # on the meta device; made in inference mode
            size = buffer.numel() * buffer.element_size()
            if id(buffer) not in copies and size <= left:
                left -= size
                copies[id(buffer)] = (buffer, buffer.detach().to("cpu", copy=True))

    def restore() -> None:
        for owner, name, buffer in places:
            owner[name] = buffer
        for buffer, copy in copies.values():
            if not torch.equal(
                buffer.detach().to("cpu"), copy
            ):  # its version does not tell: batch norm writes without one
                with torch.no_grad():
                    buffer.copy_(copy)

    return restore


def _python_generators() -> Restore:
    """Python's and numpy's: an evaluation may shuffle or augment with either."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        random.setstate(python)
        if numpy is not None and state is not None:
            numpy.random.set_state(state)

    return restore
