"""Reads of the script's objects that hold no array which the script may resize meanwhile.

numpy resizes an array in place only if nothing else refers to it, strongly or weakly. A reference
of ours would make `resize` in another thread of the script raise ValueError.

1. As in `live_objects`, objects are read and sifted within one call of a C function, in which no
   other thread runs. Of arrays that own their memory, only numbers are in the result. All others
   can't be resized anyway, except those of objects: the walk needs them.
2. The same holds for frames: one that has returned keeps its variables as long as anything refers
   to it. So only its code and a copy of its variables are in the result.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from gc import get_referents
from itertools import chain, compress, count, repeat, starmap
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import ref

from memagent.components.live_objects import contents, exhaust

_FUNCTION_FLAGS = 0x1 | 0x2
"""CO_OPTIMIZED and CO_NEWLOCALS: set for functions, not for modules and class bodies."""
_HAS_PROXIES = sys.version_info >= (3, 13)
"""Before, `f_locals` leaves a dict in the frame that keeps the values alive."""
_OWN_REFERENCES = 4
"""References to that dict: of its frame, our list, the iterator over it and the count."""


class Parts(NamedTuple):
    """What something refers to. Of arrays that own their memory, only ids and sizes."""

    others: list[Any]
    array_ids: list[int]
    array_bytes: list[int]


def parts_of(*objects: Any) -> Parts:
    """Return what objects refer to, as far as the garbage collector sees it."""
    return _read(starmap(get_referents, (objects,)))


def notes_of_arrays(function: Callable[[Any], Any], *objects: Any) -> list[Any]:
    """Return what a function in C says about each array that owns its memory and is a part."""
    lists: list[list[Any]] = []
    notes: list[Any] = []
    steps = (
        map(lists.append, map(list, starmap(get_referents, (objects,)))),
        *_array_steps(lists, []),
        map(notes.extend, [map(function, contents(lists, 2))]),
    )
    exhaust(steps, lists)
    return notes


def common_ids(item: Any, ids: KeysView[int]) -> set[int]:
    """Return those of the ids that parts of an object have: a fast way to few of them."""
    return ids & map(id, chain.from_iterable(map(get_referents, (item,))))


def items_of(items: Iterable[Any]) -> Parts:
    """Return the items of an iterable whose iterator is written in C, such as a dict's values."""
    return _read((items,))


def keys_by_id(space: Mapping[Any, Any]) -> dict[int, Any]:
    """Return the first key of each value, by the value's id."""
    return dict(reversed(list(zip(map(id, space.values()), space, strict=False))))


def key_of(space: Mapping[Any, Any], item: Any) -> Any:
    """Return the first key whose value is this very object, or None."""
    # one call in C: other threads go on after it
    keys = list(compress(space, map(id(item).__eq__, map(id, space.values()))))
    return next(iter(keys), None)


def references_to(items: Callable[[], Iterable[Any]], ids: Collection[int]) -> list[ref[Any]]:
    """Return weak references to the objects with these ids.

    An array with one can't be resized. `items` returns an iterable as `items_of` takes.
    """
    are_wanted = map(set(ids).__contains__, map(id, items()))
    return list(map(ref, compress(items(), are_wanted)))


def value_id(read: Callable[..., Any], *arguments: Any) -> int:
    """Return the id of what a function in C returns."""
    return next(map(id, starmap(read, (arguments,))))


def _read(produced: Iterable[Iterable[Any]]) -> Parts:
    lists: list[list[Any]] = []
    result = Parts([], [], [])
    steps = (
        map(lists.append, map(list, produced)),
        *_array_steps(lists, result.array_ids),
        map(result.array_bytes.extend, [map(sys.getsizeof, contents(lists, 2))]),
        map(result.others.extend, [compress(contents(lists, 0), _are_others(lists, result[1]))]),
    )
    exhaust(steps, lists)
    return result


def _array_steps(lists: list[list[Any]], ids: list[int]) -> Iterator[Iterable[Any]]:
    """Yield steps that list the arrays in the first list, and those that own their memory."""
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is None:
        return
    # in C: its metaclass is `type`
    are_arrays = map(issubclass, map(type, contents(lists, 0)), repeat(array))
    yield map(lists.append, map(list, [compress(contents(lists, 0), are_arrays)]))
    own_memory = map(operator.is_, map(array.base.__get__, contents(lists, 1)), repeat(None))
    dtypes = map(array.dtype.__get__, contents(lists, 1))
    are_plain = map(operator.not_, map(operator.attrgetter("hasobject"), dtypes))
    are_own = map(operator.and_, own_memory, are_plain)
    yield map(lists.append, map(list, [compress(contents(lists, 1), are_own)]))
    yield map(ids.extend, [map(id, contents(lists, 2))])


def _are_others(lists: list[list[Any]], array_ids: list[int]) -> Iterator[bool]:
    ids: set[int] = set()
    # filled when the first one is asked for
    fill = map(ids.update, repeat(array_ids, 1))
    others = map(operator.not_, map(ids.__contains__, map(id, contents(lists, 0))))
    return chain(filter(None, fill), others)


# -- frames -------------------------------------------------------------------------------------


class FrameReading(NamedTuple):
    """A running function or module, without its frame."""

    code: CodeType
    globals: dict[str, Any]
    is_module: bool
    """True if its variables are the module's globals. Then `variables` is empty."""
    variables: dict[str, Any]
    """A copy."""
    id: int
    """The frame's id."""
    line: int | None
    """Number of the line that is running."""


def running_code(without: str, except_file: str | None) -> list[FrameReading]:
    """Return what runs in all threads, innermost first.

    without: folder whose files are left out, but for `except_file`.
    """
    readings = []
    for thread in thread_ids():
        first = filter(None, map(dict.get, starmap(sys._current_frames, ((),)), (thread,)))
        readings += _read_frames(first, without, except_file)
    return readings


def thread_ids() -> list[int]:
    """Return the threads that run code. A collection meanwhile could let one of them return."""
    ids: list[int] = []
    exhaust((map(ids.extend, starmap(sys._current_frames, ((),))),), [])
    return ids


def read_frame(frame: FrameType) -> FrameReading:
    """Return what a frame runs. It may have ended, or be suspended."""
    return _read_frames(iter([frame]), has_callers=False)[0]


_code_of: Any = operator.attrgetter("f_code")
_line_of: Any = operator.attrgetter("f_lineno")
_globals_of: Any = operator.attrgetter("f_globals")
_locals_of: Any = operator.attrgetter("f_locals")
_caller_of: Any = operator.attrgetter("f_back")
_file_of: Any = operator.attrgetter("f_code.co_filename")
_flags_of: Any = operator.attrgetter("co_flags")
_values_of: Any = operator.methodcaller("values")


def _read_frames(
    first: Iterator[FrameType],
    without: str = "\n",
    except_file: str | None = None,
    *,
    has_callers: bool = True,
) -> list[FrameReading]:
    everything: list[Any] = []
    frames: list[Any] = []
    spaces: list[Any] = []
    codes: list[CodeType] = []
    global_dicts: list[dict[str, Any]] = []
    are_modules: list[bool] = []
    ids: list[int] = []
    lines: list[int | None] = []
    names: list[list[str]] = []
    values: list[Any] = []
    lists: list[list[Any]] = []
    array_ids: list[int] = []
    rows: list[tuple[int, str, Any]] = []
    callers = filter(None, map(_caller_of, everything))
    are_in = map(str.startswith, map(_file_of, everything), repeat(without))
    are_kept = map(operator.eq, map(_file_of, everything), repeat(except_file))
    selected = map(operator.le, are_in, are_kept)
    places = chain.from_iterable(map(repeat, count(), map(len, names)))
    items = zip(places, chain.from_iterable(names), contents(lists, 0), strict=False)
    flags = map(operator.and_, map(_flags_of, codes), repeat(_FUNCTION_FLAGS))
    are_functions = map(operator.eq, flags, repeat(_FUNCTION_FLAGS))
    are_ours = map(operator.le, map(sys.getrefcount, spaces), repeat(_OWN_REFERENCES))
    left_behind = compress(spaces, map(operator.and_, are_functions, are_ours))
    steps: Sequence[Iterable[Any]] = (
        map(everything.append, first),
        # the iterator goes on to the frames that it adds
        map(everything.append, callers) if has_callers else (),
        map(frames.extend, [compress(everything, selected)]),
        map(ids.extend, [map(id, frames)]),
        map(lines.extend, [map(_line_of, frames)]),
        map(codes.extend, [map(_code_of, frames)]),
        map(global_dicts.extend, [map(_globals_of, frames)]),
        map(spaces.extend, [map(_locals_of, frames)]),
        map(are_modules.extend, [map(operator.is_, spaces, global_dicts)]),
        map(names.extend, [map(list, spaces)]),
        map(values.extend, [map(_values_of, spaces)]),
        map(lists.append, map(list, [chain.from_iterable(values)])),
        *_array_steps(lists, array_ids),
        map(rows.extend, [compress(items, _are_others(lists, array_ids))]),
        map(list.clear, [values]),
        () if _HAS_PROXIES else map(dict.clear, left_behind),
        map(list.clear, [spaces, frames, everything]),
    )
    exhaust(steps, lists)
    variables: list[dict[str, Any]] = [{} for _ in codes]
    for place, name, value in rows:
        if not are_modules[place]:
            variables[place][name] = value
    return [
        FrameReading(*row)
        for row in zip(codes, global_dicts, are_modules, variables, ids, lines, strict=True)
    ]
