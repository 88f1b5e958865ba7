"""What a person calls an object, seen from something that refers to it.

A *way* is a list of objects from the one to be named up to the last one climbed to, each held by the next.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType
from typing import Any

from memagent.leaks.user_code import (
    Scopes,
    is_script,
    is_script_class,
    local_values,
    main_file,
    namespace,
)

_LONG = 1_000_000
_MODULE_PART = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
_REGISTRIES = ("_buffers", "_parameters", "_modules")


@dataclass(frozen=True)
class Name:
    """A readable expression. `identifiers` are the names in it, nearest to the object first: each may be what a line of code mentions.
    Those of attributes and keys begin with a dot.

    owner: the class whose attribute it is. code: the function whose variable it is. Neither for a module's global."""

    expression: str
    identifiers: tuple[str, ...]
    file: str
    function: str
    owner: type | None = None
    code: CodeType | None = None

    @property
    def is_good(self) -> bool:
        return is_script(self.file)


def is_better(one: Name, other: Name) -> bool:
    return _rank(one) < _rank(other)


def _rank(name: Name) -> int:
    """The script's before a library's; attributes and globals, which last, before the variables of a function."""
    return 3 * (not name.is_good) + (0 if name.owner else 2 if name.code else 1)


def variable_names(scopes: Scopes, way: Sequence[Any]) -> list[Name]:
    """As variables of running functions."""
    labels, names = _labels(way), _identifiers(way)
    return [
        Name(
            variable.name + labels,
            (*names, variable.name),
            variable.file,
            variable.function,
            code=variable.code,
        )
        for variable in scopes.variables(way[-1])
    ]


def name_at(scopes: Scopes, holder: Any, way: Sequence[Any]) -> Name | None:
    """As `holder` calls it, which refers to the last of `way` (or is itself what is to be named, the way being empty)."""
    if isinstance(holder, dict) and id(holder) in scopes.modules:
        return _global(*scopes.modules[id(holder)], holder, way)
    if isinstance(holder, functools._lru_cache_wrapper):
        return _cached(holder)
    return _held_name(holder, way) if way else None


def _held_name(holder: Any, way: Sequence[Any]) -> Name | None:
    if isinstance(holder, FunctionType):
        return _in_function(holder, way)
    if isinstance(holder, type):
        return _in_class(holder, way)
    if isinstance(holder, GeneratorType):
        return _in_frame(holder.gi_frame, holder.__qualname__, way)
    return _in_object(holder, way) if is_script_class(type(holder)) else None


def _global(module: str, file: str, space: dict[Any, Any], way: Sequence[Any]) -> Name | None:
    if not way:
        return Name(f"globals of {module}", (), file, "<module>")
    key = _key_of(space, way[-1])
    if not isinstance(key, str) or key.startswith("__"):
        return None
    return Name(f"{key}{_labels(way)}", (*_identifiers(way), key, f".{key}"), file, "<module>")


def _cached(wrapper: Any) -> Name | None:
    function: Any = getattr(wrapper, "__wrapped__", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    return Name(
        function.__qualname__,
        (function.__name__,),
        code.co_filename,
        function.__qualname__,
        code=code,
    )


def _in_object(owner: Any, way: Sequence[Any]) -> Name | None:
    attribute = _attribute(owner, way[-1])
    inner = way
    if (
        attribute is None
        and len(way) > 1
        and isinstance(way[-1], dict)
        and way[-1] is namespace(owner)
    ):
        attribute, inner = (
            _key_of(way[-1], way[-2]),
            way[:-1],
        )  # the object's own namespace lies between
    if attribute is None:
        return None
    if (
        attribute in _REGISTRIES and len(inner) > 1
    ):  # a module's: what it holds is an attribute as well
        attribute, inner = _key_of(inner[-1], inner[-2]), inner[:-1]
    kind = type(owner)
    text = f"{kind.__name__}.{attribute}{_labels(inner)}"
    return Name(
        text, (*_identifiers(inner), f".{attribute}"), file_of(kind), kind.__name__, owner=kind
    )


def _in_class(kind: type, way: Sequence[Any]) -> Name | None:
    if not is_script_class(kind):
        return None
    space: dict[Any, Any] = dict(kind.__dict__)
    key, inner = _key_of(space, way[-1]), way
    if (
        key is None and isinstance(way[-1], dict) and len(way) > 1
    ):  # the class' own namespace lies between
        key, inner = _key_of(space, way[-2]), way[:-1]
    if not isinstance(key, str) or key.startswith("__"):
        return None
    text = f"{kind.__name__}.{key}{_labels(inner)}"
    return Name(text, (*_identifiers(inner), f".{key}"), file_of(kind), kind.__name__, owner=kind)


def _in_function(function: FunctionType, way: Sequence[Any]) -> Name | None:
    """What a closure has in a cell, a default argument, or an attribute of the function."""
    code = function.__code__
    if not is_script(code.co_filename) or way[-1] is function.__globals__:
        return None
    cell = next((item for item in way if isinstance(item, CellType)), None)
    inner = way if cell is None else way[: _position(way, cell)]
    if cell is not None:
        names = dict(zip(map(id, function.__closure__ or ()), code.co_freevars, strict=False))
        name = names.get(id(cell))
    else:
        name = _default(function, way) or _attribute(function, way[-1])
    if name is None or not inner:
        return None
    return Name(
        name + _labels(inner),
        (*_identifiers(inner), name),
        code.co_filename,
        function.__qualname__,
        code=code,
    )


def _default(function: FunctionType, way: Sequence[Any]) -> str | None:
    """The parameter whose default value lies on the way: `def f(x, kept=[])`."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    pairs = [
        *zip(names[len(names) - len(values) :], values, strict=False),
        *(function.__kwdefaults__ or {}).items(),
    ]
    return next((name for name, value in pairs if any(value is item for item in way)), None)


def _in_frame(frame: FrameType | None, function: str, way: Sequence[Any]) -> Name | None:
    """A variable of a generator that waits."""
    if frame is None or not is_script(frame.f_code.co_filename):
        return None
    name = _key_of(local_values(frame), way[-1])
    if name is None:
        return None
    code = frame.f_code
    return Name(
        f"{name}{_labels(way)}", (*_identifiers(way), name), code.co_filename, function, code=code
    )


# -- labels -------------------------------------------------------------------------------------------------------------------


def _labels(way: Sequence[Any]) -> str:
    """How the first of the way is reached from the last: `.attribute['key']`."""
    further = [*way[2:], None]
    links = zip(way, way[1:], further, strict=False)
    if len(way) > 12:  # a chain
        return "..."
    text = "".join(_label(outer, inner, owner) for inner, outer, owner in reversed(list(links)))
    return _MODULE_PART.sub(
        lambda part: f"[{part[1]}]" if part[1].isdigit() else f".{part[1]}", text
    )


def _label(outer: Any, inner: Any, owner: Any) -> str:
    if isinstance(outer, dict):
        key = _key_of(outer, inner)
        if namespace(owner) is outer:
            return f".{key}"
        return f"[{key!r}]" if isinstance(key, str | int) else "[...]"
    if isinstance(outer, list | tuple | deque):
        index = next((index for index, item in enumerate(outer) if item is inner), None)
        return f"[{index}]" if index is not None and len(outer) <= 8 else "[...]"
    attribute = None if isinstance(outer, CellType) else _attribute(outer, inner)
    return f".{attribute}" if attribute else ""


def _identifiers(way: Sequence[Any]) -> tuple[str, ...]:
    """The attributes and keys on the way, nearest to the object first."""
    names = []
    for inner, outer in pairwise(way):
        name = _key_of(outer, inner) if isinstance(outer, dict) else _attribute(outer, inner)
        if isinstance(name, str) and name.isidentifier():
            names.append(f".{name}")
    return tuple(names)


def _attribute(owner: Any, item: Any) -> str | None:
    space = namespace(owner)
    if space is not None and (key := _key_of(space, item)) is not None:
        return str(key)
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else tuple(slots):
            try:
                if object.__getattribute__(owner, slot) is item:
                    return str(slot)
            except (AttributeError, TypeError):
                continue
    return None


def _key_of(space: dict[Any, Any], item: Any) -> Any:
    if len(space) > _LONG:
        return None
    return next((key for key, value in list(space.items()) if value is item), None)


def _position(way: Sequence[Any], item: Any) -> int:
    return next(index for index, other in enumerate(way) if other is item)


def file_of(kind: type) -> str:
    """Where a class is defined: as its own functions say, since a module's file is not told of scripts run by name."""
    for value in list(kind.__dict__.values()):
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and is_script(function.__code__.co_filename):
            return function.__code__.co_filename
    if kind.__module__ == "__main__":
        return main_file() or ""
    return str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")
