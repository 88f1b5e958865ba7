"""Suspension: a diagnosis that waits for the next step keeps no object of the script alive.

1. `pause` empties all lists that the diagnosis works on. It notes identities only: a weak
   reference where one is allowed, else the id, the type, and the storage of a tensor.
2. When it continues, objects without a weak reference are looked up by their ids in one pass over
   all objects. The pass is skipped if there are none.
3. What was freed meanwhile, or whose id belongs to another object now, is replaced by `GONE`. A
   container's id may be reused by one of the same type, so its user must check what it refers to.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from itertools import compress
from typing import Any, NamedTuple

from memagent.leaks.detectors.base import Work

GONE = object()
"""Stands for an object that was freed during a pause."""


class _Identity(NamedTuple):
    reference: weakref.ref[Any] | None
    id: int
    type: type
    storage: int | None


class Suspension:
    """The lists of one diagnosis."""

    def __init__(self) -> None:
        self._lists: list[list[Any]] = []

    def add(self, items: list[Any]) -> list[Any]:
        """Empty this list during pauses, too. Return it."""
        if not any(items is other for other in self._lists):
            self._lists.append(items)
        return items

    def remove_after(self, count: int) -> None:
        """Forget all lists but the first `count`."""
        del self._lists[count:]

    def __len__(self) -> int:
        return len(self._lists)

    def pause(self) -> Work[None]:
        """Let training go on, and find the objects again afterwards."""
        identities = [list(map(_identity_of, items)) for items in self._lists]
        for items in self._lists:
            items.clear()
        yield
        alive = _alive({item.id for row in identities for item in row if item.reference is None})
        for items, row in zip(self._lists, identities, strict=True):
            items.extend(_find(item, alive) for item in row)


def present(items: Iterable[Any]) -> list[Any]:
    """Return the items that still exist."""
    return [item for item in items if item is not GONE]


def _identity_of(item: Any) -> _Identity:
    # swap_tensors refuses a parameter with weak references
    torch = sys.modules.get("torch")
    is_plain = torch is not None and type(item) is torch.Tensor
    reference = weakref.ref(item) if is_plain else None
    return _Identity(reference, id(item), type(item), _storage_of(item))


def _storage_of(item: Any) -> int | None:
    """Return the identity of a parameter's storage."""
    torch = sys.modules.get("torch")
    if torch is None or type(item) is not torch.nn.Parameter:
        return None
    with torch._C.DisableTorchFunction():
        return int(item.untyped_storage()._cdata)


def _alive(ids: set[int]) -> dict[int, Any]:
    ids -= {id(None), id(GONE)}
    if not ids:
        return {}
    objects = gc.get_objects()
    return {id(item): item for item in compress(objects, map(ids.__contains__, map(id, objects)))}


def _find(identity: _Identity, alive: dict[int, Any]) -> Any:
    if identity.reference is not None:
        item = identity.reference()
        return GONE if item is None else item
    if identity.id == id(None):
        return None
    item = alive.get(identity.id, GONE)
    is_same = type(item) is identity.type and _storage_of(item) == identity.storage
    return item if is_same else GONE
