"""Growth of DataLoader workers: each is a process with a copy of the dataset.

1. Read the private memory of each worker (pages that no other process shares) at both ends of the
   window. Resident memory wouldn't do: a forked worker has its parent's pages resident at once.
2. If they grow and a line in the dataset or the collate function stores something, suspect it.
3. If they grow without such a line, suspect copy on write. Reading a Python object writes its
   reference count, so a long list or dict is copied page by page into each worker. Name the
   dataset's largest container and the line that creates it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

from memagent.components import safe_reads
from memagent.components.live_objects import instances
from memagent.leaks.detectors.base import Detector
from memagent.leaks.growth import growing_lines
from memagent.leaks.object_names import file_of
from memagent.leaks.source_lines import GROWS, SourceScope, attribute_assignments
from memagent.leaks.suspect import build_suspect
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import is_script_class, namespace
from memagent.probe.process_tree import read_shared_memory
from memagent.wire.messages import Suspect

MIN_BYTES_PER_STEP = 16 * 2**10
_MIN_ITEMS = 1_000
"""Items from which a container is long enough for copy on write to show."""
_MAX_DEPTH = 4


class LoaderWorkerDetector(Detector):
    """Compares the workers' private memory at both ends of the window."""

    def __init__(self) -> None:
        self._first_step = 0
        self._first: dict[int, int] = {}

    def begin(self, step: int) -> None:
        self._first_step = step
        self._first = private_bytes_by_worker()

    def end(self, step: int, budget: TimeBudget) -> list[Suspect]:
        if budget.is_over() or not self._first:
            return []
        rate = bytes_per_step(self._first, private_bytes_by_worker(), step - self._first_step)
        return suspects_in_workers(rate) if rate >= MIN_BYTES_PER_STEP else []


def private_bytes_by_worker() -> dict[int, int]:
    """Return private bytes of the running DataLoader workers by pid. Empty without /proc."""
    pids = [
        worker.pid for iterator in _loader_iterators() for worker in iterator._workers if worker.pid
    ]
    sizes = {pid: read_shared_memory(pid) for pid in pids}
    return {pid: size.private_bytes for pid, size in sizes.items() if size is not None}


def bytes_per_step(first: Mapping[int, int], last: Mapping[int, int], steps: int) -> int:
    """Return the total growth of the workers that are in both readings."""
    return sum(last[pid] - first[pid] for pid in first.keys() & last.keys()) // max(1, steps)


def suspects_in_workers(growth_bytes_per_step: int) -> list[Suspect]:
    """Return what holds the workers' growth, or an empty list if no code looks like it."""
    for iterator in _loader_iterators():
        parts = list(_user_objects(iterator))
        for find in (_storing_lines, _copied_container):
            for part in parts:
                if suspects := find(part, growth_bytes_per_step):
                    return suspects[:1]
    return []


def _loader_iterators() -> list[Any]:
    """Return the iterators of DataLoaders with workers that are in use."""
    processes = sys.modules.get("multiprocessing.process")
    if not getattr(processes, "_children", None):  # `active_children()` would reap some
        return []
    module = sys.modules.get("torch.utils.data.dataloader")
    iterator_type = getattr(module, "_MultiProcessingDataLoaderIter", None)
    return instances(iterator_type) if iterator_type is not None else []


def _user_objects(iterator: Any) -> Iterator[Any]:
    """Yield the script's objects and functions that the workers run.

    These are the dataset, the datasets it wraps, and the collate and worker init functions.
    """
    names = ("_dataset", "_collate_fn", "_worker_init_fn")
    todo = [(getattr(iterator, name, None), 0) for name in names]
    visited: set[int] = set()
    while todo:
        item, depth = todo.pop(0)
        if item is None or id(item) in visited or depth > _MAX_DEPTH:
            continue
        visited.add(id(item))
        if isinstance(item, MethodType):
            todo.append((item.__self__, depth + 1))
        elif isinstance(item, FunctionType) or is_script_class(type(item)):
            yield item
        space = namespace(item) if not isinstance(item, FunctionType | type) else None
        for value in safe_reads.items_of((space or {}).values()).others:
            if not isinstance(value, int | str | float):
                todo.append((value, depth + 1))


def _storing_lines(part: Any, size: int) -> list[Suspect]:
    """Return lines that store something in an attribute or a global, in code the workers call."""
    if isinstance(part, FunctionType):
        code = part.__code__
        scopes = [SourceScope(code.co_filename, code.co_firstlineno)]
        owner, prefix = part.__qualname__, ""
        values = {
            name: value
            for name, value in list(part.__globals__.items())
            if isinstance(value, list | dict | set)
        }
    else:
        kind = type(part)
        bases = filter(is_script_class, kind.__mro__)
        scopes = [SourceScope(file_of(base), None, base.__name__) for base in bases]
        owner, prefix = kind.__name__, "."
        values = {
            name: value
            for name, value in list((namespace(part) or {}).items())
            if not isinstance(value, int | float | str | bytes | tuple | type(None))
        }
    return [
        build_suspect(
            line.file,
            line.line,
            line.function,
            f"{owner}.{name}: grows in each worker",
            "worker",
            size,
            0.9,
        )
        for name in values
        for line in growing_lines(scopes, [prefix + name])
        if line.strength == GROWS and not line.function.endswith("__init__")
    ]


def _copied_container(part: Any, size: int) -> list[Suspect]:
    """Return the largest container of an object, whose pages the workers copy."""
    space = {} if isinstance(part, FunctionType) else namespace(part) or {}
    lengths = {
        name: len(value)
        for name, value in list(space.items())
        if isinstance(value, list | dict | set) and len(value) >= _MIN_ITEMS
    }
    if not lengths:
        return []
    # the name decides between equal lengths, so that the result is stable
    name = max(lengths, key=lambda key: (lengths[key], key))
    kind = type(part)
    file, line, function = file_of(kind), 0, kind.__name__
    if assignments := attribute_assignments(file, kind.__name__, name):
        first = assignments[0]
        file, line, function = first.file, first.line, first.function
    container = f"{type(space[name]).__name__} of {lengths[name]}"
    holder = f"{kind.__name__}.{name}: {container}, copied into each worker"
    return [build_suspect(file, line, function, holder, "copy_on_write", size, 0.6)]
