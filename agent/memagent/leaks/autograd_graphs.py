"""Autograd's graphs: the tensors that keep them, and their size.

Tensors that a graph saves have no referrers in Python, but those at its roots have names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any

MAX_NODES = 100_000
_MAX_ROOTS = 64
_MIN_ROOTS = 12
"""Roots whose graphs are counted however long that takes."""
_MAX_GRADIENTS = 4


def node_of(tensor: Any) -> Any:
    """Return the node of the graph that made a tensor, None for a leaf.

    Also None for a row of a parameter, `for scale in scales`, once a step has changed the parameter
    in place: torch refuses to say.
    """
    try:
        return getattr(tensor, "grad_fn", None)
    except RuntimeError:
        return None


def is_leaf(tensor: Any) -> bool:
    """Return False for what was computed, and for such a row."""
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:
        return False


@dataclass(frozen=True)
class GraphRoot:
    """A live tensor and the number of graph nodes it keeps."""

    tensor: Any
    nodes: int
    parameter: Any = None
    """The parameter whose gradient the tensor is, if it is one."""


def count_nodes(tensors: Iterable[Any], limit: int = MAX_NODES) -> int:
    """Return the number of nodes in these tensors' graphs together, counted up to `limit`."""
    return len(_reachable_nodes([node_of(tensor) for tensor, _ in _roots(tensors)], limit))


def newest_node(tensors: Iterable[Any]) -> int:
    """Return the sequence number of the node that autograd made last, 0 if there is none."""
    return max((_sequence_number(node_of(tensor)) for tensor, _ in _roots(tensors)), default=0)


def outermost(tensors: Sequence[Any], limit: int = MAX_NODES) -> list[Any]:
    """Return the tensors that aren't part of another one's graph.

    These alone may keep the others, since autograd also saves tensors that Python has seen.
    """
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        nodes = list(map(node_of, tensors))
    inputs = [part for node in nodes if node is not None for part, _ in node.next_functions]
    # from the inputs, so that a tensor's own node is not in its own graph
    inner = _reachable_nodes(inputs, limit)
    return [tensor for tensor, node in zip(tensors, nodes, strict=True) if id(node) not in inner]


def largest_roots(
    tensors: Iterable[Any],
    is_time_over: Callable[[], bool],
    limit: int = MAX_NODES,
    *,
    number: int = 0,
) -> list[GraphRoot]:
    """Return the roots, largest graph first. If there are very many, only the newest.

    number: leave out graphs without a node of this sequence number or an earlier one, unless 0.
    """
    roots = sorted(_roots(tensors), key=lambda pair: -_sequence_number(node_of(pair[0])))
    computed = [pair for pair in roots if pair[1] is None]
    if number:
        reaching = _reaching([node_of(tensor) for tensor, _ in computed], number)
        computed = list(compress(computed, reaching))
    gradients = islice((pair for pair in roots if pair[1] is not None), _MAX_GRADIENTS)
    sized: list[GraphRoot] = []
    for tensor, parameter in [*gradients, *computed[:_MAX_ROOTS]]:
        if len(sized) >= _MIN_ROOTS and is_time_over():
            break
        nodes = _reachable_nodes([node_of(tensor)], limit // 4).values()
        sized.append(GraphRoot(tensor, len(nodes), parameter))
    return sorted(sized, key=lambda root: -root.nodes)


def _reaching(nodes: Sequence[Any], number: int) -> list[bool]:
    """Return for each node whether it leads to one that was made up to a sequence number.

    Only newer nodes are visited, so this takes no longer in a large graph than in a small one.
    """
    known: dict[int, bool] = {}
    visited: list[Any] = []  # keeps the nodes, so that ids aren't reused
    for first in nodes:
        todo = [first]
        while todo:
            node = todo[-1]
            following = [item for item, _ in node.next_functions if item is not None]
            is_old = _sequence_number(node) <= number
            missing = [] if is_old else [item for item in following if id(item) not in known]
            if missing and id(node) not in known:
                todo += missing
                continue
            known[id(node)] = is_old or any(known[id(item)] for item in following)
            visited.append(todo.pop())
    return [known[id(node)] for node in nodes]


def _roots(tensors: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return (tensor, None) for computed tensors, (gradient, parameter) for computed gradients."""
    torch = sys.modules.get("torch")
    roots: list[tuple[Any, Any]] = []
    if torch is None:
        return roots
    # a subclass or mode of the script must not run for these reads
    with torch._C.DisableTorchFunction():
        for tensor in tensors:
            if not tensor.requires_grad:
                continue
            if node_of(tensor) is not None:
                roots.append((tensor, None))
            elif is_leaf(tensor) and node_of(tensor.grad) is not None:
                roots.append((tensor.grad, tensor))
    return roots


def with_gradient(tensors: Iterable[Any], gradient: Any) -> list[Any]:
    """Return the parameter that a tensor is the gradient of, as a list, empty if there is none."""
    with sys.modules["torch"]._C.DisableTorchFunction():
        leaves = (item for item in tensors if item.requires_grad and is_leaf(item))
        return [leaf for leaf in leaves if leaf.grad is gradient][:1]


def saved_bytes(tensor: Any, limit: int = MAX_NODES) -> int:
    """Return the size of the outputs of a graph's nodes, which it may hold.

    A rough figure, as some outputs are views and others aren't saved.
    """
    total = 0
    for node in _reachable_nodes([node_of(tensor)], limit).values():
        if _saved_names(type(node)):
            total += sum(map(_metadata_bytes, getattr(node, "_input_metadata", ())))
    return total


def held_storages(
    tensors: Sequence[Any], limit: int = MAX_NODES
) -> tuple[dict[int, int], dict[int, int]]:
    """Return bytes by storage: of the tensors' own storages, and of those their graphs save.

    Tensors that the script's hooks have packed aren't unpacked.
    """
    torch = sys.modules["torch"]
    names: dict[type, list[str]] = {}
    with torch._C.DisableTorchFunction():
        own = dict(filter(None, map(_storage_of, tensors)))
        saved: dict[int, int] = {}
        for node in _reachable_nodes(list(map(node_of, tensors)), limit).values():
            kind = type(node)
            if kind not in names:
                names[kind] = _saved_names(kind)
            for name in names[kind]:
                saved.update(filter(None, map(_storage_of, _saved_tensors(node, name))))
    return own, saved


def _saved_names(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]


def _saved_tensors(node: Any, name: str) -> list[Any]:
    """Return what a node has saved, without unpacking it, so no hook runs."""
    try:
        saved = getattr(node, name)
    except (RuntimeError, AttributeError):  # raised by a list whose graph was freed
        return []
    items = saved if isinstance(saved, tuple | list) else (saved,)
    return [getattr(item, "data", None) for item in items]


def _storage_of(tensor: Any) -> tuple[int, int] | None:
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.nbytes()
    # freed, packed, sparse, or opaque
    except (RuntimeError, NotImplementedError, AttributeError, ValueError, TypeError):
        return None


def _metadata_bytes(metadata: Any) -> int:
    size = int(metadata.dtype.itemsize)
    for length in metadata.shape:
        size *= int(length)
    return size


def _sequence_number(node: Any) -> int:
    """Return the place of a node in the order in which its thread made nodes."""
    number = getattr(node, "_sequence_nr", None)
    return int(number()) if number is not None else 0


def _reachable_nodes(nodes: Sequence[Any], limit: int) -> dict[int, Any]:
    """Return these nodes and all that they lead to, by id, up to `limit`."""
    todo = list(nodes)
    visited: dict[int, Any] = {}
    while todo and len(visited) < limit:
        node = todo.pop()
        if node is None or id(node) in visited:
            continue
        visited[id(node)] = node  # a reference, so that its id isn't reused
        todo.extend([following for following, _ in node.next_functions])
    return visited
