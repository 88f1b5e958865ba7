"""Labels of the way from an object to its parts: `.attribute['key'][0]`.

A *path* is a list of objects, each of which refers to the one before it.
"""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import CellType
from typing import Any

from memagent.components import safe_reads
from memagent.leaks.user_code import namespace

_MAX_KEYS = 1_000_000
"""Dicts with more keys aren't searched."""
_MAX_LABELS = 12
_MIN_LINKS = 3
"""References by one attribute that make objects of one class a chain."""
_MAX_INDEX = 8
_MAX_THREADS = 1_000
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_MODULE_PART = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")


def labels_of(path: Sequence[Any]) -> str:
    """Return how the path's first object is reached from its last: `.attribute['key']`."""
    links = zip(path, path[1:], [*path[2:], None], strict=False)
    labels = [_label(outer, inner, owner) for inner, outer, owner in reversed(list(links))]
    if len(path) > _MAX_LABELS:  # a chain of links
        return next(filter(None, labels), "") + "..."
    text = "".join(labels)
    # `._modules['0']` reads as `[0]`, `._modules['head']` as `.head`.
    return _MODULE_PART.sub(
        lambda part: f"[{part[1]}]" if part[1].isdigit() else f".{part[1]}", text
    )


def _label(outer: Any, inner: Any, owner: Any) -> str:
    if isinstance(outer, dict):
        key = key_of(outer, inner)
        if isinstance(owner, threading.local):
            return ""
        if isinstance(owner, type) or namespace(owner) is outer or _is_dict_by_thread(owner):
            return f".{key}"
        return f"[{key!r}]" if isinstance(key, str | int) else "[...]"
    if isinstance(outer, list | tuple | deque):
        ids = list(map(id, outer)) if len(outer) <= _MAX_INDEX else []
        return f"[{ids.index(id(inner))}]" if id(inner) in ids else "[...]"
    attribute = None if isinstance(outer, CellType) else attribute_of(outer, inner)
    return f".{attribute}" if attribute else ""


def _is_dict_by_thread(item: Any) -> bool:
    """Return True for what a `threading.local` keeps its namespaces in."""
    key = next(iter(item), None) if type(item) is dict and len(item) < _MAX_THREADS else None
    return isinstance(key, weakref.ref) and type(key()).__name__ == "_localdummy"


def identifiers_of(path: Sequence[Any]) -> tuple[str, ...]:
    """Return the attributes and keys on the path, nearest to the first object first."""
    names = []
    for inner, outer in pairwise(path):
        name = key_of(outer, inner) if isinstance(outer, dict) else attribute_of(outer, inner)
        if isinstance(name, str) and name.isidentifier():
            names.append(f".{name}")
    return tuple(names)


def link_of(path: Sequence[Any]) -> str | None:
    """Return the attribute by which objects of the class of the path's end refer to each other.

    None if they aren't a chain: `node.parent.parent.parent`.
    """
    kind = type(path[-1])
    places = [place for place, item in enumerate(path) if type(item) is kind]
    links = Counter(
        str(link)
        for inner, outer in pairwise(places)
        if (link := _link_between(path[inner : outer + 1])) is not None
    )
    attribute, count = next(iter(links.most_common(1)), (None, 0))
    return attribute if count >= _MIN_LINKS else None


def _link_between(way: Sequence[Any]) -> Any:
    """Return the attribute of a way's end that is its first object itself, None if it's further."""
    owner = way[-1]
    is_direct = len(way) == 2 or (len(way) == 3 and way[1] is namespace(owner))
    return attribute_of(owner, way[0]) if is_direct else None


def is_namespace_of(item: Any, owner: Any) -> bool:
    return isinstance(item, dict) and item is namespace(owner)


def attribute_of(owner: Any, item: Any) -> str | None:
    """Return the attribute or slot of `owner` that holds `item`, without running its code."""
    space = namespace(owner)
    if space is not None and (key := key_of(space, item)) is not None:
        return str(key)
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else tuple(slots):
            try:
                # not getattr, which would run a __getattr__ or a property of the script
                if safe_reads.value_id(object.__getattribute__, owner, slot) == id(item):
                    return str(slot)
            except (AttributeError, TypeError):
                continue
    return _hooks_attribute(owner, item)


def _hooks_attribute(owner: Any, item: Any) -> str | None:
    """Return the attribute of a tensor that holds its hooks, which C++ keeps."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(item, dict) or not issubclass(type(owner), torch.Tensor):
        return None
    with torch._C.DisableTorchFunction():
        names = (name for name in _TENSOR_HOOKS if getattr(owner, name, None) is item)
        return next(names, None)


def key_of(space: Mapping[Any, Any], item: Any) -> Any:
    if len(space) > _MAX_KEYS:
        return None
    # by identity: == runs the script's code
    return safe_reads.key_of(space, item)
