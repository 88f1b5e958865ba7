"""Lists of live objects, and of what refers to some, that endanger no tuple.

`gc.get_objects` and `gc.get_referrers` return a tuple that C code is still building, too:
`tuple(generator)` raises SystemError if anything else refers to its result then, in another thread
or further down on this thread's stack.

1. A list that may contain such a tuple is made, sifted and cleared within one call of a C function,
   in which the interpreter neither switches threads nor runs Python code. The call drives iterators
   that were made before. The garbage collector is off meanwhile: its callbacks are Python code.
2. Tuples are never in a result. Whoever needs one gets it from a finished object that refers to it:
   then it's finished as well.
"""

from __future__ import annotations

import gc
import operator
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import chain, compress, count, islice, repeat, starmap
from types import FunctionType
from typing import Any, NamedTuple
from weakref import ref

OLD_GENERATION = 2 if sys.version_info < (3, 14) else 1
"""Where the garbage collector moves what survives a collection of the generation before it."""
MAX_NESTED_TUPLES = 2
"""Tuples around an object that a search for referrers passes."""
_ONCE = ((),)
"""Arguments of one call without arguments."""
_NO_GENERATION = (None,)
_globals_of: Any = operator.attrgetter("__globals__")


def instances(*bases: type, generation: int | None = None) -> list[Any]:
    """Return the live objects of these classes and of those derived from them.

    One pass over all objects that the garbage collector tracks, which can't be cut. Those frozen by
    `gc.freeze` aren't among them.

    generation: that of the garbage collector, None for all.
    """
    lists: list[list[Any]] = []
    return _select(lists, _are_instances(lists, bases), generation)


def of_types(kinds: Iterable[type]) -> list[Any]:
    """Return the live objects of exactly these classes: faster than `instances`. No tuples."""
    lists: list[list[Any]] = []
    matches: list[Any] = []
    steps = (
        map(lists.append, map(gc.get_objects, _NO_GENERATION)),
        map(matches.extend, [compress(contents(lists, 0), _are_exactly(lists, kinds))]),
    )
    exhaust(steps, lists)
    others = [item for item in matches if item is not matches]
    matches.clear()  # it has itself, and would wait for the collector with all of them
    return others


class LengthReading(NamedTuple):
    """Lengths of containers of exactly some classes by id, and objects of other classes."""

    ids: list[int]
    lengths: list[int]
    longer: list[Any]
    """The containers that are longer than before. The others aren't kept alive."""
    others: list[Any]


class TensorReading(NamedTuple):
    """Live tensors. Only those of derived classes, such as parameters, are kept alive.

    An activation that is kept for a moment longer than the script does may be one too many.
    """

    ids: list[int]
    references: list[ref[Any]]
    """One for each id."""
    derived: list[Any]


def read_tensors(generation: int | None = None) -> TensorReading:
    """Return every tensor that Python knows, as `live_tensors`, and keep none of torch.Tensor."""
    lists: list[list[Any]] = []
    reading = TensorReading([], [], [])
    kinds = _tensor_kinds()
    steps = (
        map(lists.append, map(gc.get_objects, (generation,))),
        map(lists.append, map(list, [compress(contents(lists, 0), _are_exactly(lists, kinds))])),
        *_tensor_steps(lists, kinds, reading),
    )
    exhaust(steps, lists)
    return reading


def _tensor_kinds() -> list[type]:
    torch = sys.modules.get("torch")
    return [] if torch is None else with_subclasses((torch.Tensor,))


def _tensor_steps(
    lists: list[list[Any]], kinds: Sequence[type], reading: TensorReading
) -> Iterator[Iterator[Any]]:
    """Yield the steps that read tensors of these classes from the second of the lists."""
    plain, derived = kinds[:1], kinds[1:]
    items = [contents(lists, 1) for _ in range(3)]
    are_plain = (_are_exactly(lists, plain, 1) for _ in range(2))
    yield map(reading.ids.extend, [map(id, compress(items[0], next(are_plain)))])
    yield map(reading.references.extend, [map(ref, compress(items[1], next(are_plain)))])
    yield map(reading.derived.extend, [compress(items[2], _are_exactly(lists, derived, 1))])


def tensors_and_lengths(
    plain: Iterable[type],
    others: Iterable[type],
    earlier: Mapping[int, int] | None = None,
    least: int = 0,
) -> tuple[TensorReading, LengthReading]:
    """Return the live tensors, and how long containers are, by one pass. No tuples.

    plain: classes with `len` in C. earlier: lengths by id, so that those that are longer are
    returned; None for none of them. least: the length of those that aren't in it.
    """
    plain, others, kinds = list(plain), list(others), _tensor_kinds()
    lists: list[list[Any]] = []
    tensors = TensorReading([], [], [])
    reading = LengthReading([], [], [], [])
    numbers = [reading.ids, reading.lengths]
    earlier_lengths = map((earlier or {}).get, contents(numbers, 0), repeat(least))
    are_longer = map(operator.gt, contents(numbers, 1), earlier_lengths)
    are_wanted = _are_exactly(lists, (*kinds, *plain, *others))
    # most objects are of none of these classes: one look at all, and three at a tenth of them
    are_plain, are_others = (_are_exactly(lists, each, 1) for each in (plain, others))
    steps = (
        map(lists.append, map(gc.get_objects, _NO_GENERATION)),
        map(lists.append, map(list, [compress(contents(lists, 0), are_wanted)])),
        *_tensor_steps(lists, kinds, tensors),
        map(lists.append, map(list, [compress(contents(lists, 1), are_plain)])),
        map(reading.ids.extend, [map(id, contents(lists, 2))]),
        map(reading.lengths.extend, [map(len, contents(lists, 2))]),
        map(
            reading.longer.extend,
            [() if earlier is None else compress(contents(lists, 2), are_longer)],
        ),
        map(reading.others.extend, [compress(contents(lists, 1), are_others)]),
    )
    exhaust(steps, lists)
    own = set(map(id, (*reading, *tensors, lists, numbers, kinds, plain, others)))
    reading.longer[:] = [item for item in reading.longer if id(item) not in own]
    return tensors, reading


def with_ids(ids: Collection[int]) -> list[Any]:
    """Return the live objects that have one of these ids, except for tuples."""
    lists: list[list[Any]] = []
    return _select(lists, map(ids.__contains__, map(id, contents(lists, 0))), None)


class OwnerReading(NamedTuple):
    """Weak references to objects of exactly some classes, and to functions of some modules."""

    objects: list[ref[Any]]
    functions: list[ref[Any]]


def references_to_owners(kinds: Iterable[type], spaces: Collection[int], most: int) -> OwnerReading:
    """Return weak references to the live objects of these classes, and to functions of modules.

    kinds: classes that allow weak references. spaces: ids of the modules' namespaces. most: how
    many of either are returned.
    """
    lists: list[list[Any]] = []
    reading = OwnerReading([], [])
    are_owners, are_functions = (_are_exactly(lists, each) for each in (kinds, (FunctionType,)))
    are_in_spaces = map(spaces.__contains__, map(id, map(_globals_of, contents(lists, 1))))
    functions = islice(compress(contents(lists, 1), are_in_spaces), most)
    owners = islice(compress(contents(lists, 0), are_owners), most)
    steps = (
        map(lists.append, map(gc.get_objects, _NO_GENERATION)),
        map(lists.append, map(list, [compress(contents(lists, 0), are_functions)])),
        map(reading.functions.extend, [map(ref, functions)]),
        map(reading.objects.extend, [map(ref, owners)]),
    )
    exhaust(steps, lists)
    return reading


def referrers(objects: Iterable[Any]) -> list[list[Any]]:
    """Return what refers to any of the objects: directly, through a tuple, through nested ones.

    One pass over all objects, and another one for the tuples of each depth. Lists of the caller
    that contain the objects are among the results.
    """
    lists: list[list[Any]] = []
    first = [tuple(objects)]
    results: list[list[Any]] = [[] for _ in range(1 + MAX_NESTED_TUPLES)]
    # each pass asks for the tuples that the one before has found
    tuples = [
        map(tuple, [_sifted(lists, depth, tuples=True)]) for depth in range(MAX_NESTED_TUPLES)
    ]
    passes = starmap(gc.get_referrers, filter(None, chain(first, *tuples)))
    others = (_sifted(lists, depth, tuples=False) for depth in range(len(results)))
    copies = [map(result.extend, [items]) for result, items in zip(results, others, strict=True)]
    exhaust((map(lists.append, passes), *copies), lists)
    own = {id(first), *map(id, lists)}
    return [[item for item in result if id(item) not in own] for result in results]


def live_tensors(generation: int | None = None) -> list[Any]:
    """Return every tensor that Python knows, except for those frozen by `gc.freeze`.

    Tensors of autograd's C++ graph are included only if Python has seen them.
    """
    torch = sys.modules.get("torch")
    # not the referrers of the class: a tensor that C++ refers to as well may hide what it refers to
    # see THPVariable_subclass_traverse, torch/csrc/autograd/python_variable.cpp
    return [] if torch is None else instances(torch.Tensor, generation=generation)


def young_ids() -> set[int]:
    """Return the ids of the objects that have survived at most one collection of garbage.

    An old dict may be among the young ones: the collector leaves it alone for some time.
    """
    return set().union(*map(_ids_without_dicts, range(OLD_GENERATION)))


def with_subclasses(bases: Sequence[type]) -> list[type]:
    kinds: dict[int, type] = {}
    todo = list(bases)
    while todo:
        kind = todo.pop()
        if id(kind) not in kinds:
            kinds[id(kind)] = kind
            # from type: a metaclass may have a method of this name
            todo += type.__subclasses__(kind)
    return list(kinds.values())


def _are_instances(lists: list[list[Any]], bases: Sequence[type]) -> Iterator[bool]:
    """Yield True or False for each object of the first list: whether a class has it as instance.

    It makes no objects, which tracemalloc may trace: each takes twenty times as long then.
    """
    plain = tuple(base for base in bases if type(base) is type)
    checks: list[Iterator[bool]] = [map(issubclass, _types(lists), repeat(plain))] if plain else []
    # a metaclass may define this method in Python
    is_subclass = type.__subclasscheck__
    others = (base for base in bases if type(base) is not type)
    checks += [map(is_subclass, repeat(base), _types(lists)) for base in others]
    return reduce(partial(map, operator.or_), checks)


def _are_exactly(lists: list[list[Any]], kinds: Iterable[type], place: int = 0) -> Iterator[bool]:
    # by id: a metaclass may have a hash in Python
    wanted = frozenset(id(kind) for kind in kinds if not issubclass(kind, tuple))
    return map(wanted.__contains__, map(id, map(type, contents(lists, place))))


def _types(lists: list[list[Any]]) -> Iterator[type]:
    return map(type, contents(lists, 0))


def _select(
    lists: list[list[Any]], are_wanted: Iterator[bool], generation: int | None
) -> list[Any]:
    """Return the live objects that are wanted, except for tuples.

    are_wanted: reads the first of the lists, which isn't there yet: all live objects.
    """
    matches: list[Any] = []
    steps = (
        map(lists.append, map(gc.get_objects, (generation,))),
        map(lists.append, map(list, [compress(contents(lists, 0), are_wanted)])),
        map(matches.extend, [_sifted(lists, 1, tuples=False)]),
    )
    exhaust(steps, lists)
    # the list of all lists is one of them
    for place in list(compress(count(), map(operator.is_, matches, repeat(matches)))):
        del matches[place]
    return matches


def _ids_without_dicts(generation: int) -> set[int]:
    ids: list[int] = []
    kinds: list[type] = []
    lists: list[list[Any]] = []
    steps = (
        map(lists.append, map(gc.get_objects, (generation,))),
        map(ids.append, map(id, contents(lists, 0))),
        map(kinds.append, map(type, contents(lists, 0))),
    )
    exhaust(steps, lists)
    return {number for number, kind in zip(ids, kinds, strict=True) if kind is not dict}


# -- within one call ----------------------------------------------------------------------------


def exhaust(steps: Iterable[Iterable[Any]], lists: list[list[Any]]) -> None:
    """Exhaust iterators in C one after the other, and clear the lists, within one call."""
    was_enabled: list[bool] = []
    is_done: list[None] = []
    everything = chain(
        map(was_enabled.append, starmap(gc.isenabled, _ONCE)),
        starmap(gc.disable, _ONCE),
        *steps,
        map(list.clear, lists),
        starmap(gc.enable, compress(_ONCE, was_enabled)),
        map(is_done.append, (None,)),
    )
    try:
        deque(everything, maxlen=0)
    finally:
        if not is_done:  # no memory
            for items in lists:
                items.clear()
            if True in was_enabled:
                gc.enable()


def contents(lists: list[list[Any]], place: int) -> Iterator[Any]:
    """Return an iterator over a list that isn't there yet."""
    return chain.from_iterable(islice(lists, place, place + 1))


def _sifted(lists: list[list[Any]], place: int, *, tuples: bool) -> Iterator[Any]:
    """Return an iterator over the tuples in such a list, or over all else."""
    # type, not isinstance: that asks proxies for their __class__
    are_tuples = map(operator.is_, map(type, contents(lists, place)), repeat(tuple))
    return compress(
        contents(lists, place), are_tuples if tuples else map(operator.not_, are_tuples)
    )
