"""Census of containers: lists, dicts, sets, queues and buffers that grow, whatever they hold.

1. Note the length of every container at the beginning and in the middle of the window.
2. At its end, those that grew steadily in both parts are candidates, if they aren't young and the
   items that they had in the middle are still there. Otherwise a list that is cleared now and then
   may look longer by chance, and so may the input of each step.
3. Estimate the size of an item from the newest ones: arrays, bytes, numbers, objects. The census of
   tensors counts those.
"""

from __future__ import annotations

import builtins
import gc
import sys
import weakref
from array import array
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from itertools import islice
from mmap import mmap
from types import FunctionType, ModuleType
from typing import Any

from msgspec.structs import replace

from memagent.components.live_objects import instances
from memagent.leaks.census import MIN_SHARE
from memagent.leaks.detectors.base import CodePosition, TimeBudget
from memagent.leaks.library_calls import library_calls
from memagent.leaks.origins import creating_line, line_of_holder, site_line
from memagent.leaks.reachability import nearest_name
from memagent.leaks.referrers import ReferrerSearch
from memagent.leaks.suspect import (
    CERTAINTIES,
    can_grow,
    describe_container,
    rank_suspects,
    suspect_at,
)
from memagent.leaks.user_code import UserScopes, is_script, loaded_modules, namespace, script_frames
from memagent.wire.messages import Suspect

MIN_BYTES_PER_STEP = 1024
_KINDS = (list, dict, set, deque)
_BUFFERS = (bytearray, array, BytesIO, StringIO)
_NUMBERS = (int, bool, type(None))
_HAVE_GC = 1 << 14
"""`Py_TPFLAGS_HAVE_GC`: instances of the type are tracked."""
_KNOWN_MODULES = frozenset(("numpy", "torch", "datetime", "decimal", "uuid"))
_MAX_PARTS = 64
_NOT_FOLLOWED = (ModuleType, type, FunctionType)
_SAMPLE_SIZE = 8
_MAX_DEPTH = 5
_MAX_OBJECTS = 400
_ROOT_LEVELS = 3
_MAX_CONTAINERS = 8
_HOST_CONFIDENCE = 0.8


@dataclass(frozen=True)
class GrowingContainer:
    """A container with more items each step. `bytes_per_step`: 0 if what they keep is unknown."""

    container: Any
    items_per_step: float
    bytes_per_step: int


@dataclass(frozen=True)
class _MiddleLength:
    """Length of a container in the middle, with some of its items."""

    length: int
    identities: list[weakref.ref[Any] | int]
    """Weak references, or ids of items that allow none."""
    numbers: dict[int, Any]
    """Numbers by place: equal ones are often one object, so their ids tell nothing."""

    def is_kept_by(self, container: Any, young: Collection[int]) -> bool:
        """Return True if the items are still there: none is young."""
        if not self.identities and not self.numbers:
            return True
        items = _items(container)
        ids, added = set(map(id, items)).difference(young), len(items) - self.length
        places = (
            items[place] is number or items[place + added] is number
            for place, number in self.numbers.items()
            if added >= 0 and place < len(items)
        )
        return 2 * sum(places) >= len(self.numbers) and all(
            item in ids if isinstance(item, int) else item() is not None for item in self.identities
        )


class ContainerCensus:
    """Lengths of all containers at the beginning, then of those that grow. Holds ids only."""

    def __init__(self) -> None:
        self._first_step = 0
        self._first: dict[int, int] = {}
        self._middle_step = 0
        self._middle: dict[int, _MiddleLength] = {}

    def begin(self, step: int) -> None:
        self._first_step = step
        self._first = {id(item): _length(item) for item in _containers()}

    def middle(self, step: int) -> None:
        self._middle_step = step
        before = self._first
        self._middle = {
            id(item): _MiddleLength(_length(item), *_identities(item))
            for item in _containers()
            if _length(item) > before.get(id(item), 0)
        }

    def end(self, step: int, young: Collection[int] = ()) -> list[GrowingContainer]:
        """Return what grew by at least `MIN_BYTES_PER_STEP`, most bytes first.

        young: ids of objects that are newer than the middle. A container that is made anew each
        step often has the id of the one before it.
        """
        steps = max(1, step - self._first_step)
        late_share = (step - self._middle_step) / steps
        growing = []
        for item in _containers():
            middle = self._middle.get(id(item))
            if middle is None or id(item) in young:
                continue
            first = self._first.get(id(item), 0)
            growth, late = _length(item) - first, _length(item) - middle.length
            early = growth - late
            is_steady = late >= MIN_SHARE * late_share * growth
            is_steady &= early >= MIN_SHARE * (1 - late_share) * growth
            if growth > 1 and is_steady and middle.is_kept_by(item, young):
                rate = round(_item_bytes(item, growth) * growth / steps)
                if rate >= MIN_BYTES_PER_STEP or _is_opaque(newest_item(item)):
                    known = rate if rate >= MIN_BYTES_PER_STEP else 0
                    growing.append(GrowingContainer(item, growth / steps, known))
        return sorted(growing, key=lambda item: -item.bytes_per_step)


def _containers() -> Iterator[Any]:
    """Yield the containers that the garbage collector tracks, and others of the script's.

    It doesn't track a dict of numbers, bytes or arrays, nor a `bytearray`.
    """
    yield from instances(*_KINDS, *_BUFFERS)
    level: list[Any] = [space for _, file, space in loaded_modules() if is_script(file)]
    level += [variables for variables, _ in script_frames()]
    for _ in range(_ROOT_LEVELS):
        level = gc.get_referents(*level)
        yield from (item for item in level if type(item) in _BUFFERS[:2])
        level = [item for item in level if type(item) is dict or namespace(item) is not None]
        level = [item for item in level if not issubclass(type(item), _NOT_FOLLOWED)]
        yield from (item for item in level if type(item) is dict and not gc.is_tracked(item))


def _length(container: Any) -> int:
    if type(container) in (BytesIO, StringIO):
        return 0 if container.closed else int(container.tell())
    return len(container)


def _items(container: Any) -> list[Any]:
    return list(container.values()) if isinstance(container, dict) else list(container)


def _identities(container: Any) -> tuple[list[weakref.ref[Any] | int], dict[int, Any]]:
    items = [] if type(container) in _BUFFERS else _items(container)
    is_ordered = isinstance(container, list | deque)
    identities: list[weakref.ref[Any] | int] = []
    numbers: dict[int, Any] = {}
    for place in range(0, len(items), max(1, len(items) // _SAMPLE_SIZE)):
        item = items[place]
        if is_ordered and type(item) in _NUMBERS:
            numbers[place] = item
            continue
        try:
            # swap_tensors refuses a parameter with weak references
            is_parameter = hasattr(type(item), "_is_param") or "Parameter" in type(item).__name__
            identities.append(id(item) if is_parameter else weakref.ref(item))
        except TypeError:
            identities.append(id(item))
    return identities, numbers


# -- suspects -----------------------------------------------------------------------------------


def suspects_of_containers(
    growing: Sequence[GrowingContainer],
    sites: Sequence[CodePosition | None],
    lines: Sequence[Suspect],
    budget: TimeBudget,
) -> list[Suspect]:
    """Return the containers that have a name and a line in the script, most bytes first.

    sites: the line that made the newest item of each, for those that no line visibly fills.
    lines: those that hold more and more, by a trace.
    """
    traced = {(item.file, item.line) for item in lines}
    scopes = UserScopes()
    search = ReferrerSearch(scopes, {id(growing)}, budget)
    suspects = []
    try:
        for item, site in list(zip(growing, sites, strict=True))[:_MAX_CONTAINERS]:
            if budget.is_over():
                break
            holder = nearest_name(search, item.container, budget)
            if holder.name is None or not can_grow(holder):
                continue
            # a library's registry is filled by many: only a trace tells which call did
            line = line_of_holder(scopes, holder, "host") if holder.name.is_in_script else None
            line = line or site_line(site)
            if line is None and holder.name.is_in_script:
                line = creating_line(holder, scopes.files)
            elif line is None:
                calls = library_calls(holder.name, holder, scopes.files)
                # what makes an item comes before what fills it
                fitting = (call for call in calls if (call.file, call.line) in traced)
                line = min(fitting, key=lambda call: call.line, default=None)
            if line is not None:
                container = describe_container(item.container, "host")
                text = f"{holder.name.expression}: {container}"
                certainty = _HOST_CONFIDENCE * CERTAINTIES[line.strength]
                rate = item.bytes_per_step
                suspects.append(suspect_at(holder.name, line, text, "host", rate, certainty))
    finally:
        search.close()
    return rank_suspects(_with_sums(suspects))


def _with_sums(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return the suspects with the bytes of all that the same line fills: `d[key].append(x)`."""
    sums: defaultdict[tuple[str, int], float] = defaultdict(float)
    for item in suspects:
        sums[item.file, item.line] += item.bytes_per_step or 0
    return [replace(item, bytes_per_step=sums[item.file, item.line]) for item in suspects]


# -- sizes --------------------------------------------------------------------------------------


def newest_item(container: Any) -> Any:
    """Return the newest value of a container, an arbitrary one of a set, None if it's empty."""
    if type(container) in _BUFFERS:
        return None
    if isinstance(container, dict):
        key = next(reversed(list(container)), None)
        value = container.get(key)
        # a key is often what's large where values are flags
        return key if isinstance(value, bool | int | None) else value
    return next(iter(container) if isinstance(container, set) else reversed(container), None)


def _item_bytes(container: Any, growth: int) -> float:
    """Return the mean size of the newest items."""
    if type(container) in _BUFFERS:
        return float(getattr(container, "itemsize", 1))
    items: Iterable[Any]
    if isinstance(container, dict):
        items = islice(reversed(list(container.items())), growth)
    elif isinstance(container, set):
        items = iter(list(container))
    else:
        items = islice(reversed(container), growth)
    sample = list(islice(items, _SAMPLE_SIZE))
    return sum(size_of(item) for item in sample) / max(1, len(sample))


def size_of(item: Any) -> float:
    """Return an estimate of what an object keeps: with its parts, except for tensors."""
    return _size_of(item, set(), 0)


def _size_of(item: Any, visited: set[int], depth: int) -> float:
    is_known = id(item) in visited or len(visited) > _MAX_OBJECTS or depth > _MAX_DEPTH
    if is_known or issubclass(type(item), type | ModuleType | FunctionType):
        return 0.0
    visited.add(id(item))
    size = float(_own_size(item))
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(type(item), numpy.ndarray):
        return size + (_size_of(item.base, visited, depth + 1) if item.base is not None else 0)
    if type(item) is memoryview:
        return size + _size_of(item.obj, visited, depth + 1)
    parts = _parts(item)
    sample = parts[:: max(1, len(parts) // _SAMPLE_SIZE)]
    total = sum(_size_of(part, visited, depth + 1) for part in sample)
    return size + (total * len(parts) / len(sample) if sample else 0.0)


def _is_opaque(item: Any) -> bool:
    """Return True if an object has a part of a library's type that shows nothing of what it keeps.

    The garbage collector can't look into such a part: the pixels of an image, a database.
    """
    parts = [item, *_parts(item)]
    return any(
        not type(part).__flags__ & _HAVE_GC
        and not hasattr(builtins, type(part).__name__)
        and type(part).__module__.partition(".")[0] not in _KNOWN_MODULES
        for part in parts[:_MAX_PARTS]
    )


def _own_size(item: Any) -> int:
    try:
        return len(item) if type(item) is mmap else sys.getsizeof(item)
    except (TypeError, AttributeError, ValueError):  # a __sizeof__ of the script; a closed map
        return 0


def _parts(item: Any) -> list[Any]:
    if issubclass(type(item), dict):
        return [*item.keys(), *item.values()]
    if issubclass(type(item), list | tuple | set | frozenset | deque):
        return list(item)
    space = namespace(item)
    return [] if space is None else list(space.values())
