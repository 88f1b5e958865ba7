"""Run chosen blocks of a live model again in backward, without a trace in what a script saves.

1. The class of a block gets a `forward` that looks up whether the instance is chosen. Neither the
   module nor its dict changes, so that `torch.save`, copies and `state_dict` are as before.
2. A block gets no cache of keys and values, as in transformers' own checkpointing: it would fill
   it a second time.
3. Batch norms update their statistics in the first forward only: running again, they have a
   momentum of 0 and no counter.
4. In evaluation and without gradients, blocks run as they are.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from memagent.fitting.blocks import ModelBlock

_CHOSEN: dict[int, tuple[weakref.ref[Any], tuple[ModelBlock, ...]]] = {}
"""The module and its blocks (itself, or runs of its layers), by its id."""
_PATCHED = "_memagent_recomputes"
_WITHOUT_CACHE = {
    "cache": None,
    "layer_past": None,
    "past_key_value": None,
    "past_key_values": None,
    "use_cache": False,
}
"""The arguments of transformers' layers (transformers/modeling_layers.py), without a cache."""


def recompute(model: Any, blocks: Sequence[ModelBlock]) -> Callable[[], None]:
    """Run these blocks again in backward. Returns a function that ends it."""
    modules: dict[str, list[ModelBlock]] = {}
    for block in blocks:
        modules.setdefault(block.path, []).append(block)
    chosen = ExitStack()
    for path, parts in modules.items():
        chosen.callback(_choose(model.get_submodule(path), tuple(parts)))
    return chosen.close


def _choose(module: Any, blocks: tuple[ModelBlock, ...]) -> Callable[[], None]:
    key = id(module)
    _CHOSEN[key] = (weakref.ref(module, lambda _: _CHOSEN.pop(key, None)), blocks)
    _patch(type(module))

    def undo() -> None:
        _CHOSEN.pop(key, None)

    return undo


def _patch(kind: Any) -> None:
    """Give the class a forward that looks up whether the instance is chosen."""
    if _PATCHED in vars(kind.forward):
        return
    original = kind.forward

    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        blocks = _blocks_of(self) if type(self).forward is forward else ()
        if not blocks:
            return original(self, *arguments, **keywords)
        keywords |= {name: without for name, without in _WITHOUT_CACHE.items() if name in keywords}
        if not blocks[0].is_run:
            return _checkpointed([self], functools.partial(original, self), arguments, keywords)
        return _in_runs(self, blocks, *arguments)

    vars(forward)[_PATCHED] = True
    kind.forward = forward


def _blocks_of(module: Any) -> tuple[ModelBlock, ...]:
    import torch

    reference, blocks = _CHOSEN.get(id(module), (None, ()))
    is_live = reference is not None and reference() is module
    return blocks if is_live and module.training and torch.is_grad_enabled() else ()


def _in_runs(layers: Any, blocks: tuple[ModelBlock, ...], value: Any) -> Any:
    """Run a Sequential, its chosen runs of layers so that they run again in backward."""
    children = list(layers)
    ends = {block.first: block.last for block in blocks}
    position = 0
    while position < len(children):
        if position not in ends:
            value = children[position](value)
            position += 1
            continue
        run = children[position : ends[position] + 1]
        value = _checkpointed(run, functools.partial(_in_order, run), (value,), {})
        position += len(run)
    return value


def _in_order(layers: Sequence[Any], value: Any) -> Any:
    return functools.reduce(lambda result, layer: layer(result), layers, value)


def _checkpointed(
    modules: Sequence[Any],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    from torch.utils.checkpoint import checkpoint

    norms = norms_in(modules)
    if norms:
        keywords["context_fn"] = lambda: (nullcontext(), _unchanged_statistics(norms))
    return checkpoint(function, *arguments, use_reentrant=False, **keywords)


def norms_in(modules: Sequence[Any]) -> list[Any]:
    """Return the modules that keep running statistics."""
    import torch

    kind = torch.nn.modules.batchnorm._NormBase
    return [
        part
        for module in modules
        for part in module.modules()
        if isinstance(part, kind) and part.training
    ]


@contextmanager
def _unchanged_statistics(norms: Sequence[Any]) -> Iterator[None]:
    """Keep statistics as they are: torch/nn/modules/batchnorm.py, `_BatchNorm.forward`."""
    before = [(norm, norm.momentum, norm._buffers.get("num_batches_tracked")) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        norm._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for norm, momentum, counter in before:
            norm.momentum = momentum
            norm._buffers["num_batches_tracked"] = counter
