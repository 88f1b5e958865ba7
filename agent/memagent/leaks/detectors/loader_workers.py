"""DataLoader workers whose memory grows: each is a process with its own copy of the dataset.

1. Private memory (pages that no other process shares) of each worker, at both ends of the window. Resident memory would not tell: a forked
   worker has its parent's pages resident from the beginning.
2. Growth with a line in the dataset (or the collate function) that keeps something: that is the suspect.
3. Growth without: copy on write. Reading a Python object writes its reference count, so a long list or dict of the dataset is copied page
   by page into each worker. The largest of the dataset's containers is named, and the line that made it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

from memagent.leaks import source_lines
from memagent.leaks.census import living
from memagent.leaks.detectors.base import Detector, TimeBudget
from memagent.leaks.object_names import file_of
from memagent.leaks.suspect import build_suspect
from memagent.leaks.user_code import is_script_class, namespace
from memagent.probe.process_tree import shares_of
from memagent.wire.messages import Suspect

LEAST_BYTES_PER_STEP = 16 * 2**10
_LONG = 1_000
_DEPTH = 4


class LoaderWorkerDetector(Detector):
    """Looks at the workers at both ends."""

    def __init__(self) -> None:
        self._began_at, self._first = 0, dict[int, int]()

    def begin(self, step: int) -> None:
        self._began_at, self._first = step, private_bytes_by_worker()

    def end(self, step: int, deadline: TimeBudget) -> list[Suspect]:
        if deadline.is_over():
            return []
        rate = (
            bytes_per_step(self._first, private_bytes_by_worker(), step - self._began_at)
            if self._first
            else 0
        )
        return holders(rate) if rate >= LEAST_BYTES_PER_STEP else []


def private_bytes_by_worker() -> dict[int, int]:
    """Of the DataLoader workers that run now, by pid. Read from /proc: where there is none, there are none to see."""
    pids = [worker.pid for iterator in _iterators() for worker in iterator._workers if worker.pid]
    return {pid: shares.private_bytes for pid in pids if (shares := shares_of(pid)) is not None}


def bytes_per_step(first: Mapping[int, int], last: Mapping[int, int], steps: int) -> int:
    """By how much the workers grow together that were there both times."""
    return sum(last[pid] - first[pid] for pid in first.keys() & last.keys()) // max(1, steps)


def holders(more: int) -> list[Suspect]:
    """What the workers of running DataLoaders keep, given that they grow by `more` bytes a step; empty where nothing looks like it."""
    for iterator in _iterators():
        parts = list(_parts(iterator))
        found = [suspect for part in parts for suspect in _keeping(part, more)]
        found = found or [suspect for part in parts for suspect in _copied(part, more)]
        if found:
            return found[:1]
    return []


def _iterators() -> list[Any]:
    """The loops over DataLoaders with workers that are under way."""
    processes = sys.modules.get("multiprocessing.process")
    if not getattr(processes, "_children", None):  # `active_children()` would reap some
        return []
    module = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(module, "_MultiProcessingDataLoaderIter", None)
    return living(lambda one: one is kind) if kind is not None else []


def _parts(iterator: Any) -> Iterator[Any]:
    """The script's own objects and functions that the workers run: dataset, what it wraps, collate function."""
    todo = [
        (getattr(iterator, name, None), 0)
        for name in ("_dataset", "_collate_fn", "_worker_init_fn")
    ]
    met: set[int] = set()
    while todo:
        item, depth = todo.pop(0)
        if item is None or id(item) in met or depth > _DEPTH:
            continue
        met.add(id(item))
        if isinstance(item, MethodType):
            todo.append((item.__self__, depth + 1))
        elif isinstance(item, FunctionType) or is_script_class(type(item)):
            yield item
        space = namespace(item) if not isinstance(item, FunctionType | type) else None
        todo += [
            (value, depth + 1)
            for value in list((space or {}).values())
            if not isinstance(value, int | str | float)
        ]


def _keeping(part: Any, size: int) -> list[Suspect]:
    """The line in a method that the workers call which keeps something in an attribute."""
    kind = type(part)
    if isinstance(part, FunctionType):
        scopes, name = (
            [source_lines.Scope(part.__code__.co_filename, part.__code__.co_firstlineno)],
            part.__qualname__,
        )
        names = [
            key
            for key, value in list(part.__globals__.items())
            if isinstance(value, list | dict | set)
        ]
    else:
        scopes = [
            source_lines.Scope(file_of(base), None, base.__name__)
            for base in kind.__mro__
            if is_script_class(base)
        ]
        name, names = (
            kind.__name__,
            [key for key, value in list((namespace(part) or {}).items()) if _can_grow(value)],
        )
    dot = "" if isinstance(part, FunctionType) else "."
    found = [
        (line, attribute)
        for attribute in names
        for line in source_lines.growing(scopes, [dot + attribute])
    ]
    return [
        build_suspect(
            line.file,
            line.line,
            line.function,
            f"{name}.{attribute}: grows in each worker",
            "worker",
            size,
            0.9,
        )
        for line, attribute in found
        if line.strength == source_lines.GROWS and not line.function.endswith("__init__")
    ]


def _copied(part: Any, size: int) -> list[Suspect]:
    space = {} if isinstance(part, FunctionType) else namespace(part) or {}
    long = [
        (len(value), key)
        for key, value in list(space.items())
        if isinstance(value, list | dict | set) and len(value) >= _LONG
    ]
    if not long:
        return []
    length, key = max(long)
    kind = type(part)
    made = source_lines.attribute_sets(file_of(kind), kind.__name__, key)
    file, number, function = (
        (made[0].file, made[0].line, made[0].function)
        if made
        else (file_of(kind), 0, kind.__name__)
    )
    holder = (
        f"{kind.__name__}.{key}: {type(space[key]).__name__} of {length}, copied into each worker"
    )
    return [build_suspect(file, number, function, holder, "copy_on_write", size, 0.6)]


def _can_grow(value: Any) -> bool:
    return not isinstance(value, int | float | str | bytes | tuple | type(None))
