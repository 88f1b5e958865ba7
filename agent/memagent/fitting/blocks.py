"""Parts of a model that can run again in backward, in place of keeping what they computed.

1. A block is a module that holds modules: an entry of a list or a Sequential, or a module that has
   neither inside. One with more than a share of the saved bytes is divided into its own.
2. A Sequential of layers is divided into runs of layers, about the square root of their number
   (Chen et al. 2016, section 4.1), each of which is a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

MAX_SHARES = (0.125, 0.5)
"""The most of the saved bytes in one block: below the first, a finer choice saves too little. The
second spares a net of few, large blocks the tensors between their parts."""
MIN_LAYERS = 4
"""A shorter Sequential of layers isn't divided."""


@dataclass(frozen=True, order=True)
class ModelBlock:
    """The module at `path`, or the children `first` to `last` (inclusive) of a Sequential."""

    path: str
    first: int = -1
    last: int = -1

    @property
    def is_run(self) -> bool:
        """Return True for a part of a Sequential."""
        return self.first >= 0

    @property
    def input_path(self) -> str:
        """Return the path of the module whose arguments are the block's."""
        return self._path_of(self.first)

    @property
    def output_path(self) -> str:
        """Return the path of the module whose output is the block's."""
        return self._path_of(self.last)

    def _path_of(self, child: int) -> str:
        if not self.is_run:
            return self.path
        return f"{self.path}.{child}" if self.path else str(child)

    def holds(self, path: str) -> bool:
        """Return whether the module at `path` runs inside this block."""
        if not self.is_run:
            return path == self.path or path.startswith(f"{self.path}.")
        prefix = f"{self.path}." if self.path else ""
        if not path.startswith(prefix):
            return False
        child = path[len(prefix) :].partition(".")[0]
        return child.isdecimal() and self.first <= int(child) <= self.last

    def __str__(self) -> str:
        return f"{self.path}[{self.first}:{self.last + 1}]" if self.is_run else self.path


def blocks_of(
    model: Any, saved_bytes: Callable[[str], int], max_share: float = MAX_SHARES[0]
) -> list[ModelBlock]:
    """Return the model's blocks in the order of its modules.

    saved_bytes: what the module at a path keeps for backward, those inside it included.
    """
    total = saved_bytes("")
    return list(_blocks(model, "", lambda path: saved_bytes(path) <= max_share * total))


def _blocks(module: Any, path: str, is_small: Callable[[str], bool]) -> Iterator[ModelBlock]:
    if not any(True for _ in module.children()):
        return
    kind = type(module).__name__
    holders = [(name, child) for name, child in module.named_children() if _holds_modules(child)]
    if not holders and kind == "Sequential" and len(module) >= MIN_LAYERS:
        yield from _runs(path, list(module.children()))
    elif path and kind not in ("ModuleList", "ModuleDict") and (not holders or is_small(path)):
        yield ModelBlock(path)
    else:
        for name, child in holders:
            yield from _blocks(child, f"{path}.{name}" if path else name, is_small)


def _holds_modules(module: Any) -> bool:
    return any(True for _ in module.children())


def _runs(path: str, layers: Sequence[Any]) -> Iterator[ModelBlock]:
    """Divide the layers; none starts with one that changes its input, which backward needs."""
    size = math.isqrt(len(layers))
    starts = [
        next((n for n in range(first, len(layers)) if not _is_in_place(layers[n])), len(layers))
        for first in range(0, len(layers), size)
    ]
    for first, end in pairwise(sorted({*starts, len(layers)})):
        yield ModelBlock(path, first, end - 1)


def _is_in_place(layer: Any) -> bool:
    return bool(getattr(layer, "inplace", False))
