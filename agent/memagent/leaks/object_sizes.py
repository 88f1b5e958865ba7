"""Sizes of host objects: estimates of what an object keeps, with its parts, except for tensors."""

from __future__ import annotations

import builtins
import operator
import sys
from array import array
from collections import deque
from collections.abc import Iterable
from functools import partial
from io import BytesIO, StringIO
from itertools import chain, compress, islice
from mmap import mmap
from types import CodeType, FunctionType, ModuleType
from typing import Any

from memagent.components import safe_reads
from memagent.components.safe_reads import Parts
from memagent.leaks.user_code import is_script_class, namespace

BUFFERS = (bytearray, array, BytesIO, StringIO)
_HAVE_GC = 1 << 14
"""`Py_TPFLAGS_HAVE_GC`: instances of the type are tracked."""
_KNOWN_MODULES = frozenset(("numpy", "datetime", "decimal", "uuid"))
_PLAIN_TORCH_TYPES = frozenset(
    ("dtype", "device", "layout", "memory_format", "qscheme", "Generator", "finfo", "iinfo")
)
_FLAGS = frozenset((bool, int, type(None)))
_PLAIN = frozenset((type(None), type(...), CodeType))
_ATOMS = frozenset((bool, int, float, complex, str, bytes, type(None)))
"""Types whose objects have no parts."""
_PLAIN_CONTAINERS = frozenset((list, tuple, set, frozenset, deque, dict))
_MAX_PARTS = 64
_SAMPLE_SIZE = 8
_MAX_DEPTH = 5
_MAX_OBJECTS = 400


def is_buffer(item: Any) -> bool:
    return issubclass(type(item), BUFFERS)


def newest_item(container: Any) -> Iterable[Any]:
    """Return the newest value of a container, an arbitrary one of a set, nothing if it's empty.

    It's to be read by a function in C: the value may be an array (`safe_reads`).
    """
    if is_buffer(container):
        return ()
    if isinstance(container, dict):
        # a key is often what's large where values are flags
        is_flag = any(map(_FLAGS.__contains__, map(type, islice(reversed(container.values()), 1))))
        return islice(reversed(container if is_flag else container.values()), 1)
    return islice(container if isinstance(container, set) else reversed(container), 1)


def item_bytes(container: Any, growth: int) -> float:
    """Return the mean size of the newest items."""
    if is_buffer(container):
        return float(getattr(container, "itemsize", 1))
    count = max(1, min(growth, _SAMPLE_SIZE, len(container)))
    if isinstance(container, dict):
        keys, values = (reversed(items) for items in (container.keys(), container.values()))
        sample = safe_reads.items_of(chain(islice(keys, count), islice(values, count)))
    else:
        items = container if isinstance(container, set) else reversed(container)
        sample = safe_reads.items_of(islice(items, count))
    return (sum(sample.array_bytes) + sum(map(size_of, sample.others))) / count


def size_of(item: Any) -> float:
    """Return an estimate of what an object keeps: with its parts, except for tensors."""
    return _size_of(item, set(), 0)


def _size_of(item: Any, visited: set[int], depth: int) -> float:
    is_known = id(item) in visited or len(visited) > _MAX_OBJECTS or depth > _MAX_DEPTH
    if is_known or issubclass(type(item), type | ModuleType):
        return 0.0
    visited.add(id(item))
    size = float(_own_size(item))
    if type(item) in _ATOMS:  # most items are numbers and texts
        return size
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(type(item), numpy.ndarray):
        return size + (_size_of(item.base, visited, depth + 1) if item.base is not None else 0)
    if type(item) is memoryview:
        return size + _size_of(item.obj, visited, depth + 1)
    parts = _parts(item)
    size += sum(parts.array_bytes)
    sample = parts.others[:: max(1, len(parts.others) // _SAMPLE_SIZE)]
    total = sum(_size_of(part, visited, depth + 1) for part in sample)
    return size + (total * len(parts.others) / len(sample) if sample else 0.0)


def is_opaque(newest: Iterable[Any]) -> bool:
    """Return True if a newest item has a part of a library's type that shows nothing of its own.

    The garbage collector can't look into such a part: the pixels of an image, a database.
    """
    parts = safe_reads.items_of(newest).others
    parts += [part for item in parts for part in _parts(item).others]
    return any(map(_is_opaque_type, map(type, parts[:_MAX_PARTS])))


def _is_opaque_type(kind: type) -> bool:
    if kind.__flags__ & _HAVE_GC or kind in _PLAIN or hasattr(builtins, kind.__name__):
        return False
    package = kind.__module__.partition(".")[0]
    if package == "torch":  # work handles and futures keep tensors of C++
        return kind.__name__ not in _PLAIN_TORCH_TYPES
    return package not in _KNOWN_MODULES


def _own_size(item: Any) -> int:
    try:
        if issubclass(type(item), StringIO):  # its size doesn't include the text
            return sys.getsizeof(item) + StringIO.tell(item)
        return len(item) if type(item) is mmap else sys.getsizeof(item)
    except (TypeError, AttributeError, ValueError):  # a __sizeof__ of the script; a closed map
        return 0


def _parts(item: Any) -> Parts:
    kind = type(item)
    if issubclass(kind, dict | list | tuple | set | frozenset | deque):
        return _contents_of(item)
    if issubclass(kind, FunctionType):
        return safe_reads.parts_of(*(item.__closure__ or ()))
    if _is_future(kind):  # a task of C also refers to its loop, which leads everywhere
        return safe_reads.items_of(map(operator.attrgetter("_result"), (item,)))
    space = namespace(item)
    if kind is partial or (space is None and is_script_class(kind)):
        return safe_reads.parts_of(item)  # of slots
    return safe_reads.items_of((space or {}).values())


def _contents_of(container: Any) -> Parts:
    """Return the items of a container, and the keys of a dict, too."""
    is_dict = isinstance(container, dict)
    views = [container.keys(), container.values()] if is_dict else [container]
    if type(container) in _PLAIN_CONTAINERS:
        # most have only numbers and texts: one call in C, which leaves out all else
        are_atoms = map(_ATOMS.__contains__, map(type, chain(*views)))
        atoms = list(compress(chain(*views), are_atoms))
        if len(atoms) == sum(map(len, views)):
            return Parts(atoms, [], [])
    return safe_reads.items_of(chain(*views))


def _is_future(kind: type) -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and issubclass(kind, asyncio.Future)
