"""Lists of live objects, made so that no other thread runs while all objects are listed.

`gc.get_objects` returns a tuple that another thread is still building, too. `tuple(generator)`
raises SystemError if something else refers to its result then. So from the listing until everything
but the wanted objects is forgotten, the interpreter must not switch threads. It switches between
calls of functions, hence there is none in between: iterators that were made before do the work, and
statements without a call drive them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Hashable
from itertools import chain, compress, islice
from typing import Any

OLD_GENERATION = 2 if sys.version_info < (3, 14) else 1
"""Where the garbage collector moves what survives a collection of the generation before it."""


def live_tensors() -> list[Any]:
    """Return every tensor that Python knows, except for those frozen by `gc.freeze`.

    One pass over all objects, which can't be cut. Tensors of autograd's C++ graph are included only
    if Python has seen them.
    """
    torch = sys.modules.get("torch")
    # not the referrers of the class: a tensor that C++ refers to as well may hide what it refers to
    # see THPVariable_subclass_traverse, torch/csrc/autograd/python_variable.cpp
    return [] if torch is None else select(type, with_subclasses(torch.Tensor))


def live_objects(base: type) -> list[Any]:
    """Return the tracked instances of a Python class, except for those frozen by `gc.freeze`.

    Instances refer to their class: to ask for its referrers takes half as long as to list all
    objects.
    """
    kinds = with_subclasses(base)
    return [item for item in gc.get_referrers(*kinds) if type(item) in kinds]


def young_tensors() -> list[Any]:
    """Return the tensors that have survived at most one collection of garbage: a few objects."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    kinds = with_subclasses(torch.Tensor)
    return [item for age in range(OLD_GENERATION) for item in select(type, kinds, age)]


def young_ids() -> set[int]:
    """Return the ids of the objects that have survived at most one collection of garbage.

    An old dict may be among the young ones: the collector leaves it alone for some time.
    """
    return set().union(*map(_ids_without_dicts, range(OLD_GENERATION)))


def with_subclasses(*bases: type) -> set[type]:
    """Return classes with everything that is derived from them."""
    kinds: set[type] = set(bases)
    todo = list(bases)
    while todo:
        # from type: a metaclass may have a method of this name
        new: set[type] = set(type.__subclasses__(todo.pop())) - kinds
        kinds |= new
        todo += new
    return kinds


def select(
    key: Callable[[Any], Hashable], wanted: Collection[Any], generation: int | None = None
) -> list[Any]:
    """Return the live objects whose key is one of the wanted: `type` or `id`, nothing in Python.

    generation: that of the garbage collector, None for all.
    """
    instances: list[Any] = []
    lists: list[list[Any]] = []
    listing = _listing(generation)
    objects, same = chain.from_iterable(iter(lists)), chain.from_iterable(iter(lists))
    selected = compress(objects, map(wanted.__contains__, map(key, same)))
    lists += listing  # no call from here
    instances += selected
    del lists[0][:], lists  # to here; the list contains itself and these iterators
    return instances


def _ids_without_dicts(generation: int) -> set[int]:
    ids: list[int] = []
    kinds: list[type] = []
    lists: list[list[Any]] = []
    listing = _listing(generation)
    objects, same = chain.from_iterable(iter(lists)), chain.from_iterable(iter(lists))
    numbers, types = map(id, objects), map(type, same)
    lists += listing  # no call from here
    ids += numbers
    kinds += types
    del lists[0][:], lists  # to here
    return {number for number, kind in zip(ids, kinds, strict=True) if kind is not dict}


def _listing(generation: int | None) -> Any:
    """Return an iterator that lists all objects once it's asked for its only item."""
    return islice(map(gc.get_objects, (generation,)), 1)
