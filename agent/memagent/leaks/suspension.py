"""What a diagnosis knows from one step to the next, without keeping the script's objects alive."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Collection, Iterable
from threading import get_ident
from typing import Any, NamedTuple

from memagent.components import live_objects, safe_reads
from memagent.components.live_objects import TensorReading
from memagent.leaks.background_pass import BackgroundPass
from memagent.leaks.detectors.base import Work
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes
from memagent.leaks.variable_walk import VariableWalk

GONE = object()
"""Stands for an object that was freed during a pause."""
_MAX_PASSES = 3
_ONLY_HERE = 2
"""References to an object in a dictionary when they're counted: that, and the call's argument."""


class Survey:
    """One list of tensors, begun in one step and read at a later boundary, or at two in a row.

    The pass over all objects takes place before that:

    1. During the step, another thread makes the pass. It holds the interpreter's lock for one call.
    2. Tensors that are made after the pass are young: the boundary lists these alone, and so does a
       callback before each collection that makes them old. If another thread collects, the script
       may go on between the two; the pass is then repeated.
    3. Tensors that were freed meanwhile have dead weak references. Parameters have none, and those
       that only the survey keeps are dropped at the first boundary.

    read_tensors: makes the first pass, and may read other things by it.
    """

    def __init__(
        self, read_tensors: Callable[[], TensorReading] = live_objects.read_tensors
    ) -> None:
        self._read_tensors = read_tensors
        self._is_incomplete = True
        self._owner = get_ident()
        self._references: dict[int, weakref.ref[Any]] = {}
        self._parameters: dict[int, Any] = {}
        self._pass = BackgroundPass(self._note_all)
        gc.callbacks.append(self._on_collection)
        self._pass.start()

    def read(self) -> list[Any]:
        """Return the tensors that are alive now. Waits for the other thread if it isn't done."""
        self._pass.wait()
        if self.must_repeat:
            return live_objects.live_tensors()
        self._drop_parameters()
        self._note_young()
        tensors = [tensor for find in self._references.values() if (tensor := find()) is not None]
        return tensors + list(self._parameters.values())

    def end(self) -> list[Any]:
        """Return the same, and end the survey."""
        tensors = self.read()
        self.close()
        return tensors

    @property
    def must_repeat(self) -> bool:
        """Return True if another reading needs another pass."""
        return self._pass.has_failed or self._is_incomplete

    @property
    def thread_s(self) -> float:
        """Return the processor time of the other thread."""
        return self._pass.thread_s

    def close(self) -> None:
        """Wait for the other thread, and stop watching collections."""
        self._pass.wait()
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        self._references.clear()
        self._parameters.clear()

    def _drop_parameters(self) -> None:
        """Release parameters that nothing else refers to, neither in Python nor in C++."""
        parameters = self._parameters
        for key in [key for key in parameters if sys.getrefcount(parameters[key]) <= _ONLY_HERE]:
            # a mode of the script must not see this call
            with sys.modules["torch"]._C.DisableTorchFunction():
                is_kept = parameters[key]._use_count() > 1
            if not is_kept:
                del parameters[key]

    def _note_all(self) -> None:
        for _ in range(_MAX_PASSES):
            if self._is_incomplete:
                self._is_incomplete = False
                self._note(self._read_tensors())
                self._read_tensors = live_objects.read_tensors

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < live_objects.OLD_GENERATION - 1:
            return  # those that it leaves are still young
        if phase == "start":
            self._note_young()
        elif get_ident() != self._owner:
            # the script may have made tensors between that and the collection
            self._is_incomplete = True

    def _note_young(self) -> None:
        """Note the tensors that have survived at most one collection of garbage: a few objects."""
        for age in range(live_objects.OLD_GENERATION):
            self._note(live_objects.read_tensors(age))

    def _note(self, reading: TensorReading) -> None:
        torch = sys.modules.get("torch")
        self._references.update(zip(reading.ids, reading.references, strict=True))
        for tensor in reading.derived:
            # swap_tensors refuses a parameter with weak references
            if torch is not None and isinstance(tensor, torch.nn.Parameter):
                self._parameters[id(tensor)] = tensor
            else:
                self._references[id(tensor)] = weakref.ref(tensor)


class _Identity(NamedTuple):
    reference: weakref.ref[Any] | None
    id: int
    type: type
    storage: int | None


class Suspension:
    """The lists of one diagnosis, emptied while training goes on.

    1. `pause` empties all lists that the diagnosis works on. It notes identities only: a weak
       reference where one is allowed, else the id, the type, and the storage of a tensor.
    2. When it continues, parameters are looked up by their ids in a walk from the script's
       variables: 3 to 25 ms. Other objects without a weak reference take a pass over all objects,
       70 ms per 300,000, and so do parameters that the walk misses. Tuples are looked up by what
       refers to them.
    3. What was freed meanwhile, or whose id belongs to another object now, is replaced by `GONE`. A
       container's id may be reused by one of the same type, so its user must check what it refers
       to.
    """

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
        alive = _alive([item for row in identities for item in row if item.reference is None])
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


def _alive(identities: Iterable[_Identity]) -> dict[int, Any]:
    kinds = {item.id: item.type for item in identities if item.id not in (id(None), id(GONE))}
    if kinds and set(map(id, kinds.values())) == {id(_parameter_type())}:
        parameters = _reached(kinds.keys())
        if len(parameters) == len(kinds):
            return parameters
    alive = {id(item): item for item in live_objects.with_ids(kinds)} if kinds else {}
    tuples = {key for key, kind in kinds.items() if kind is tuple}
    # not by the id alone: that may be the id of one that another thread is building now
    for _ in range(live_objects.MAX_NESTED_TUPLES if tuples else 0):
        parts = safe_reads.parts_of(*alive.values()).others
        alive.update((id(part), part) for part in parts if id(part) in tuples)
    return alive


def _parameter_type() -> type | None:
    torch = sys.modules.get("torch")
    return None if torch is None else torch.nn.Parameter


def _reached(ids: Collection[int]) -> dict[int, Any]:
    """Return by their ids the objects that the script's variables lead to."""
    wanted = set(ids)
    walk = VariableWalk(lambda items: wanted.intersection(map(id, items)), len(wanted))
    walk.run(UserScopes(), TimeBudget())
    return walk.reached


def _find(identity: _Identity, alive: dict[int, Any]) -> Any:
    if identity.reference is not None:
        item = identity.reference()
        return GONE if item is None else item
    if identity.id == id(None):
        return None
    item = alive.get(identity.id, GONE)
    is_same = type(item) is identity.type and _storage_of(item) == identity.storage
    return item if is_same else GONE
