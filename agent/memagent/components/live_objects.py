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
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, compress, islice
from typing import Any

OLD_GENERATION = 2 if sys.version_info < (3, 14) else 1
"""Where the garbage collector moves what survives a collection of the generation before it."""


def instances(*bases: type, generation: int | None = None) -> list[Any]:
    """Return the live objects of these classes and of those derived from them.

    One pass over all objects that the garbage collector tracks, which can't be cut. Those frozen by
    `gc.freeze` aren't among them.

    generation: that of the garbage collector, None for all.
    """
    # by id: a metaclass may define __eq__ without __hash__, or a __hash__ in Python
    return _select((type, id), set(map(id, _with_subclasses(bases))), generation)


def with_ids(ids: Collection[int]) -> list[Any]:
    """Return the live objects that have one of these ids."""
    return _select((id,), ids, None)


def live_tensors(generation: int | None = None) -> list[Any]:
    """Return every tensor that Python knows, except for those frozen by `gc.freeze`.

    Tensors of autograd's C++ graph are included only if Python has seen them.
    """
    torch = sys.modules.get("torch")
    # not the referrers of the class: a tensor that C++ refers to as well may hide what it refers to
    # see THPVariable_subclass_traverse, torch/csrc/autograd/python_variable.cpp
    return [] if torch is None else instances(torch.Tensor, generation=generation)


def young_tensors() -> list[Any]:
    """Return the tensors that have survived at most one collection of garbage: a few objects."""
    return [item for age in range(OLD_GENERATION) for item in live_tensors(age)]


def young_ids() -> set[int]:
    """Return the ids of the objects that have survived at most one collection of garbage.

    An old dict may be among the young ones: the collector leaves it alone for some time.
    """
    return set().union(*map(_ids_without_dicts, range(OLD_GENERATION)))


def _with_subclasses(bases: Sequence[type]) -> list[type]:
    kinds: dict[int, type] = {}
    todo = list(bases)
    while todo:
        kind = todo.pop()
        if id(kind) not in kinds:
            kinds[id(kind)] = kind
            # from type: a metaclass may have a method of this name
            todo += type.__subclasses__(kind)
    return list(kinds.values())


def _select(
    keys: Sequence[Callable[[Any], Any]], wanted: Collection[int], generation: int | None
) -> list[Any]:
    """Return the live objects whose last key is wanted.

    keys: functions in C; the first gets the object, each further one the key before.
    """
    matches: list[Any] = []
    lists: list[list[Any]] = []
    listing = _listing(generation)
    objects: Iterator[Any] = chain.from_iterable(iter(lists))
    values: Iterator[Any] = chain.from_iterable(iter(lists))
    for key in keys:
        values = map(key, values)
    selected = compress(objects, map(wanted.__contains__, values))
    lists += listing  # no call from here
    matches += selected
    lists[0].clear()  # to here, and no slice, whose allocation may start the garbage collector
    return matches


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
    lists[0].clear()  # to here
    return {number for number, kind in zip(ids, kinds, strict=True) if kind is not dict}


def _listing(generation: int | None) -> Any:
    """Return an iterator that lists all objects once it's asked for its only item."""
    return islice(map(gc.get_objects, (generation,)), 1)
