"""Walk over what the script's variables lead to, nearest first.

Start at the globals of the script's modules, the variables of its running functions, the context
variables, the finalizers of weak references, and containers of libraries that the script's code
names. Visit what they refer to, and note what each object was reached from.
"""

from __future__ import annotations

import contextvars
import operator
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView
from itertools import compress, islice
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from memagent.components import safe_reads
from memagent.leaks.library_containers import finalizers, library_containers
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import (
    UserScopes,
    is_own,
    is_own_frame,
    is_script_class,
    namespace,
    script_code,
)

CONTAINERS = frozenset((list, dict, tuple, set, deque))
_MUTABLE = CONTAINERS - {tuple}
MAX_OBJECTS = 100_000
_CHUNK_SIZE = 64
_MAX_LENGTH = 2_000
"""Items from which a container is visited after the others."""
_MAX_CHECKED = 50_000
"""Items up to which it's looked at with the others for what it holds itself."""
_NEWEST = 2**15
"""Newest items of a longer one that are looked at with the others: the walk may end there. Not each
step is traced."""
_OBJECTS_PER_CHECK = 10_000


class VariableWalk:
    """Visits what the script's variables lead to, nearest first, in chunks.

    A chunk's parts are listed in one call. They know the chunk that they were reached from, whose
    few objects tell the parent.
    """

    def __init__(
        self,
        find: Callable[[list[Any]], set[int]],
        count: int,
        without: Collection[int] = (),
        find_owners: Callable[[list[Any]], set[int]] | None = None,
    ) -> None:
        """`find` returns the ids of wanted objects among some; the walk ends after `count`."""
        self._without = without
        self._find = find
        self._find_owners = find_owners
        self._count = count
        self.reached: dict[int, Any] = {}
        """The wanted objects by id."""
        self._chunk_of: dict[int, int] = {}
        """Number of the chunk that each object was reached from, -1 for variables."""
        self._chunks: list[list[Any]] = []
        self._large: list[Any] = []
        """Containers to visit last."""
        self._class_passes: dict[int, bool] = {}
        """By id of a class: whether the walk goes through it."""
        self._plain_ids = set(map(id, _PLAIN))
        self._passing_ids: set[int] = set()
        """Ids of the classes whose instances it doesn't go through, and of those that it does."""

    def run(
        self, scopes: UserScopes, budget: TimeBudget, owners: Iterable[Any] | None = None
    ) -> bool:
        """Walk from the script's variables, or else from these owners.

        Return False if it ended before all that they lead to was visited.
        """
        beginning = _roots_of(scopes) if owners is None else owners
        roots = [item for item in beginning if id(item) not in self._without]
        self._chunk_of = dict.fromkeys(map(id, roots), -1)
        wanted = self._find(roots)
        self.reached = {id(item): item for item in roots if id(item) in wanted}
        self._walk(roots, budget)
        while self._large and not self._is_over(budget):
            container = self._large.pop(0)
            self._walk(self._visit([container], _newest_of(container, MAX_OBJECTS)), budget)
        return not self._large and not self._is_over(budget)

    def _walk(self, level: list[Any], budget: TimeBudget) -> None:
        next_check = _OBJECTS_PER_CHECK
        while level and len(self.reached) < self._count:
            following: list[Any] = []
            for start in range(0, len(level), _CHUNK_SIZE):
                chunk = self._without_large(level[start : start + _CHUNK_SIZE])
                following += self._visit(chunk, parts_with_arrays(chunk))
                if len(self._chunk_of) >= next_check:
                    next_check = len(self._chunk_of) + _OBJECTS_PER_CHECK
                    if self._is_over(budget):
                        return
            level = following

    def _is_over(self, budget: TimeBudget) -> bool:
        is_full = len(self._chunk_of) >= MAX_OBJECTS or len(self.reached) >= self._count
        return is_full or budget.is_over()

    def _without_large(self, chunk: list[Any]) -> list[Any]:
        """Put long containers off, but look for wanted objects that they hold themselves.

        Those of numbers and texts lead nowhere else.
        """
        large = [item for item in chunk if type(item) in CONTAINERS and len(item) > _MAX_LENGTH]
        if not large:
            return chunk
        for item in large:
            is_short = len(item) <= _MAX_CHECKED
            contents = _contents_of(item) if is_short else _newest_of(item, _NEWEST)
            if wanted := self._find(contents):
                are_wanted = map(wanted.__contains__, map(id, contents))
                self._visit([item], list(compress(contents, are_wanted)))
            if not all(map(self._plain_ids.__contains__, map(id, map(type, contents)))):
                self._large.append(item)
        return [item for item in chunk if not any(item is other for other in large)]

    def ways_up(self, targets: Iterable[Any]) -> list[list[Any]]:
        """Return for each reached object those from it up to the variable that leads to it."""
        parents: dict[int, Any] = {}
        ways = [[target] for target in targets if id(target) in self.reached]
        todo = {id(way[0]) for way in ways}
        while todo:
            by_chunk: dict[int, set[int]] = {}
            for key in todo:
                by_chunk.setdefault(self._chunk_of[key], set()).add(key)
            by_chunk.pop(-1, None)
            for number, keys in by_chunk.items():
                wanted = dict.fromkeys(keys).keys()
                for item in self._chunks[number]:
                    for key in _common_ids(item, wanted):
                        parents.setdefault(key, item)
            # another thread may have changed what led there
            keys_up = {key for keys in by_chunk.values() for key in keys} & parents.keys()
            todo = {id(parents[key]) for key in keys_up} - parents.keys()
        for way in ways:
            while (parent := parents.get(id(way[-1]))) is not None:
                way.append(parent)
        return ways

    def _visit(self, chunk: list[Any], parts: list[Any]) -> list[Any]:
        """Note the parts of a chunk that are new. Return those to go on from."""
        number, known = len(self._chunks), self._chunk_of
        wanted = self._find(parts).difference(self._without)
        # in C: most parts are numbers and texts, and a walk lists hundreds of thousands
        are_plain = map(self._plain_ids.__contains__, map(id, map(type, parts)))
        are_wanted = map(wanted.__contains__, map(id, parts))
        parts = list(compress(parts, map(operator.le, are_plain, are_wanted)))
        if self._find_owners is not None and len(self.reached) < self._count:
            owners = self._find_owners(chunk)
            self.reached.update((id(item), item) for item in chunk if id(item) in owners)
        new = dict(zip(map(id, parts), parts, strict=True))
        for key in (new.keys() & known.keys()) | new.keys() & self._without:
            del new[key]
        following = self._passing(new) | new.keys() & wanted
        known.update(dict.fromkeys(following, number))
        # a wanted one, too: the next link of a chain may be an attribute
        self.reached.update((key, new[key]) for key in new if key in wanted)
        self._chunks.append(chunk)
        return list(compress(new.values(), map(following.__contains__, new)))

    def _passing(self, parts: dict[int, Any]) -> set[int]:
        """Return the ids of those parts that the walk goes through."""
        are_sure = map(self._passing_ids.__contains__, map(id, map(type, parts.values())))
        sure = set(compress(parts, are_sure))
        return sure.union(key for key in parts.keys() - sure if self._does_pass(parts[key]))

    def _does_pass(self, item: Any) -> bool:
        """Return False for plain values, modules, their globals, and what is memagent's."""
        kind = type(item)
        if issubclass(kind, type):
            return self._does_pass_class(item)
        if issubclass(kind, dict):
            return "__builtins__" not in item
        if kind is FrameType:
            return not is_own_frame(item)
        if kind is FunctionType:  # a hook of the agent leads to its rows
            return not is_own(item.__code__.co_filename)
        passes = not issubclass(kind, _PLAIN) and not kind.__module__.startswith("memagent.")
        (self._passing_ids if passes else self._plain_ids).add(id(kind))
        return passes

    def _does_pass_class(self, kind: type) -> bool:
        """Return True for the script's classes, and those of libraries that keep a container.

        All instances share it, and each leads to it by its class.
        """
        passes = self._class_passes.get(id(kind))
        if passes is None:
            is_own = kind.__module__.startswith("memagent.")
            keeps = not is_own and any(map(_keeps_container, kind.__mro__))
            passes = self._class_passes[id(kind)] = is_script_class(kind) or keeps
        return passes


_PLAIN = (str, bytes, int, float, complex, ModuleType, CodeType, type(None))


def _keeps_container(kind: type) -> bool:
    """Return True if a class itself has a container for an attribute. Annotations are none."""
    # in C: few classes have any, and other attributes may be arrays
    are_mutable = list(map(_MUTABLE.__contains__, map(type, kind.__dict__.values())))
    return any(
        not name.startswith("__") and len(kind.__dict__.get(name, ())) > 1
        for name in compress(list(kind.__dict__), are_mutable)
    )


def _roots_of(scopes: UserScopes) -> Iterator[Any]:
    for name in scopes.script_modules:
        if (space := namespace(sys.modules.get(name))) is not None:
            yield space
    for reading in script_code():
        yield from (reading.globals,) if reading.is_module else reading.variables.values()
    yield from contextvars.copy_context().values()
    yield finalizers()
    yield from (container for _, container in library_containers(scopes))


def _contents_of(container: Any) -> list[Any]:
    return safe_reads.items_of(container.values() if type(container) is dict else container).others


def _newest_of(container: Any, count: int) -> list[Any]:
    """Return the last items of a container, arbitrary ones of a set."""
    items = container.values() if type(container) is dict else container
    newest = items if type(container) is set else reversed(items)
    return safe_reads.items_of(islice(newest, count)).others[::-1]


def _common_ids(item: Any, ids: KeysView[int]) -> set[int]:
    """Return those of the ids that parts of an object have, with what an array shows a part of."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(item) is numpy.ndarray:
        return ids & map(id, parts_with_arrays([item]))
    return safe_reads.common_ids(item, ids)


def parts_with_arrays(items: list[Any]) -> list[Any]:
    parts = safe_reads.parts_of(*items).others
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # the collector doesn't see what an array shows a part of, nor its objects
        for array in [item for item in items if type(item) is numpy.ndarray]:
            if array.base is not None:
                parts.append(array.base)
            elif array.dtype.hasobject and array.dtype.names is None:
                parts += array.ravel().tolist()
    return parts
