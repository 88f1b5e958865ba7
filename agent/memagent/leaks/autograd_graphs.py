"""Autograd's graphs: who keeps them, and how large they are. What they save has no referrers in Python; their roots have names."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

MOST_NODES = 100_000
_MOST_ROOTS, _MOST_GRADIENTS = 64, 4


@dataclass(frozen=True)
class Root:
    """A live tensor and how many nodes of autograd's graph it keeps; `parameter` is whose gradient it is, where it is one."""

    tensor: Any
    nodes: int
    parameter: Any = None


def roots(tensors: Iterable[Any]) -> list[tuple[Any, Any]]:
    """(tensor, None) of all that were computed with gradients, (gradient, parameter) of gradients that have a graph themselves."""
    found: list[tuple[Any, Any]] = []
    torch = sys.modules.get("torch")
    if torch is None:
        return found
    with torch._C.DisableTorchFunction():
        for tensor in tensors:
            if not tensor.requires_grad:
                continue
            if tensor.grad_fn is not None:
                found.append((tensor, None))
            elif (gradient := tensor.grad) is not None and gradient.grad_fn is not None:
                found.append((gradient, tensor))
    return found


def count(tensors: Iterable[Any], limit: int = MOST_NODES) -> int:
    """Nodes that these tensors' graphs have together, counted up to `limit`."""
    return len(_reach([tensor.grad_fn for tensor, _ in roots(tensors)], limit))


def heads(tensors: Sequence[Any], limit: int = MOST_NODES) -> list[Any]:
    """Those that no other one's graph leads to. The rest may be kept by these alone: autograd saves what Python has seen, too."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        nodes = [tensor.grad_fn for tensor in tensors]
    below = _reach(
        [following for node in nodes if node is not None for following, _ in node.next_functions],
        limit,
    )
    return [tensor for tensor, node in zip(tensors, nodes, strict=True) if id(node) not in below]


def largest(tensors: Iterable[Any], limit: int = MOST_NODES) -> list[Root]:
    """The roots, largest graph first. Newest roots only where there are very many."""
    found = sorted(roots(tensors), key=lambda pair: -_age(pair[0]))
    computed = [pair for pair in found if pair[1] is None]
    gradients = islice((pair for pair in found if pair[1] is not None), _MOST_GRADIENTS)
    sized = [Root(tensor, len(_reach([tensor.grad_fn], limit // 4)), parameter)
             for tensor, parameter in [*computed[:_MOST_ROOTS], *gradients]]  # fmt: skip
    return sorted(sized, key=lambda root: -root.nodes)


def saved_bytes(tensor: Any, limit: int = MOST_NODES) -> int:
    """What a graph may hold: the outputs of its nodes. A rough figure, as some are views and others not saved."""
    total, todo = 0, [tensor.grad_fn]
    seen: dict[int, Any] = {}
    while todo and len(seen) < limit:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node  # kept, so that ids stay true
        if any(name.startswith("_raw_saved_") for name in dir(type(node))):
            total += sum(map(_bytes_of, getattr(node, "_input_metadata", ())))
        todo.extend(following for following, _ in node.next_functions)
    return total


def kept_storages(
    tensors: Sequence[Any], limit: int = MOST_NODES
) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes by storage: of those the tensors lie on, and of those their graphs save.
    What a script packs by hooks of its own is not unpacked."""
    torch = sys.modules["torch"]
    names: dict[type, list[str]] = {}
    with torch._C.DisableTorchFunction():
        own = dict(filter(None, map(_storage_of, tensors)))
        kept: dict[int, int] = {}
        for node in _reach([tensor.grad_fn for tensor in tensors], limit).values():
            kind = type(node)
            if kind not in names:
                names[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
            for name in names[kind]:
                kept.update(filter(None, map(_storage_of, _saved(node, name))))
    return own, kept


def _saved(node: Any, name: str) -> list[Any]:
    """As they lie there: nothing is unpacked, so no hook runs."""
    try:
        saved = getattr(node, name)
    except (RuntimeError, AttributeError):  # a list whose graph was freed says so by raising
        return []
    return [
        getattr(each, "data", None)
        for each in (saved if isinstance(saved, tuple | list) else (saved,))
    ]


def _storage_of(tensor: Any) -> tuple[int, int] | None:
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.nbytes()
    except (
        RuntimeError,
        NotImplementedError,
        AttributeError,
        ValueError,
        TypeError,
    ):  # freed, packed, sparse, opaque
        return None


def _bytes_of(metadata: Any) -> int:
    size = int(metadata.dtype.itemsize)
    for length in metadata.shape:
        size *= int(length)
    return size


def _age(tensor: Any) -> int:
    number = getattr(tensor.grad_fn, "_sequence_nr", None)
    return int(number()) if number is not None else 0


def _reach(todo: list[Any], limit: int) -> dict[int, Any]:
    """Nodes by id, with all that follow."""
    seen: dict[int, Any] = {}
    while todo and len(seen) < limit:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node  # kept, so that ids stay true
        todo.extend([following for following, _ in node.next_functions])
    return seen
