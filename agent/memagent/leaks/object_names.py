"""Readable names for objects, such as `Trainer.history[0]`, as seen from their referrers.

A *path* is a list of objects: it begins with the object to be named, and each one refers to the one
before it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType
from typing import Any

from memagent.components import safe_reads
from memagent.leaks.object_labels import (
    attribute_of,
    identifiers_of,
    is_namespace_of,
    key_of,
    labels_of,
)
from memagent.leaks.user_code import (
    UserScopes,
    functions_among,
    is_script,
    is_script_class,
    main_file,
)

_MODULE_ATTRIBUTES = frozenset(name for name in globals() if name.startswith("__"))
"""Names that every module has."""
_GENERATED = "<string>"
"""File of functions that a library makes by `exec`, as `dataclass` does."""
MODULE_REGISTRIES = ("_buffers", "_parameters", "_modules")


@dataclass(frozen=True)
class ObjectName:
    """A readable expression.

    identifiers: the names in it, nearest to the object first; a line of code may mention any of
    them. Those of attributes and keys begin with a dot. owner: the class whose attribute it is.
    code: the function whose variable it is. A module's global has neither.
    """

    expression: str
    identifiers: tuple[str, ...]
    file: str
    function: str
    owner: type | None = None
    code: CodeType | None = None

    @property
    def is_in_script(self) -> bool:
        return is_script(self.file)

    @property
    def rank(self) -> int:
        """Return a lower number for a better name.

        The script's names come before a library's, and lasting ones (attributes, globals) before
        the variables of a function.
        """
        return 3 * (not self.is_in_script) + (0 if self.owner else 2 if self.code else 1)


def variable_names(scopes: UserScopes, path: Sequence[Any]) -> list[ObjectName]:
    """Return the names through variables of running functions that hold the path's end."""
    labels, identifiers = labels_of(path), identifiers_of(path)
    return [
        ObjectName(
            variable.name + labels,
            (*identifiers, variable.name),
            variable.file,
            variable.function,
            code=variable.code,
        )
        for variable in scopes.variables_of(path[-1])
    ]


def name_from(scopes: UserScopes, holder: Any, path: Sequence[Any]) -> ObjectName | None:
    """Return the name of the path's first object as seen from `holder`, or None.

    `holder` refers to the last object of the path. With an empty path, name `holder` itself.
    """
    if isinstance(holder, dict) and id(holder) in scopes.modules:
        return _in_module(*scopes.modules[id(holder)], holder, path)
    if isinstance(holder, functools._lru_cache_wrapper):
        return _cached_function(holder)
    name = None
    if path and isinstance(holder, FunctionType):
        name = _in_function(holder, path)
    elif len(path) > 1 and isinstance(holder, functools.partial):
        name = _in_partial(holder, path)
    elif path and isinstance(holder, type):
        name = _in_class(holder, path)
    elif path and isinstance(holder, GeneratorType):
        name = _in_generator(holder.gi_frame, holder.__qualname__, path)
    elif path and is_script_class(type(holder)):
        name = _in_object(holder, path)
    return name


def file_of(kind: type) -> str:
    """Return the file that defines a class.

    Its functions know best: a module that was started by name may have no file. What `dataclass`
    makes has none, either.
    """
    for function in functions_among(safe_reads.items_of(kind.__dict__.values()).others):
        file = function.__code__.co_filename
        if file != _GENERATED and is_script(file):
            return file
    if kind.__module__ == "__main__":
        return main_file() or ""
    return str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


# -- names by kind of holder --------------------------------------------------------------------


def _in_module(
    module: str, file: str, space: dict[Any, Any], path: Sequence[Any]
) -> ObjectName | None:
    if not path:
        return ObjectName(f"globals of {module}", (), file, "<module>")
    key = key_of(space, path[-1])
    if not isinstance(key, str) or key in _MODULE_ATTRIBUTES:
        return None
    identifiers = (*identifiers_of(path), key, f".{key}")
    return ObjectName(f"{key}{labels_of(path)}", identifiers, file, "<module>")


def _cached_function(wrapper: Any) -> ObjectName | None:
    """Return the name of a function that `lru_cache` decorates."""
    function: Any = getattr(wrapper, "__wrapped__", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    name, identifiers = function.__qualname__, (function.__name__,)
    return ObjectName(name, identifiers, code.co_filename, name, code=code)


def _in_object(owner: Any, path: Sequence[Any]) -> ObjectName | None:
    attribute, inner = attribute_of(owner, path[-1]), path
    if attribute is None and len(path) > 1 and is_namespace_of(path[-1], owner):
        attribute, inner = key_of(path[-1], path[-2]), path[:-1]
    if attribute is None and len(path) > 2 and isinstance(owner, threading.local):
        # a namespace per thread, in a dict by thread
        attribute, inner = key_of(path[-2], path[-3]), path[:-2]
    if attribute is None:
        return None
    if attribute in MODULE_REGISTRIES and len(inner) > 1:
        # An entry of an nn.Module's registry reads as an attribute of the module.
        attribute, inner = key_of(inner[-1], inner[-2]), inner[:-1]
    return _attribute_name(type(owner), attribute, inner)


def _in_class(kind: type, path: Sequence[Any]) -> ObjectName | None:
    if not is_script_class(kind):
        return None
    space = kind.__dict__
    key, inner = key_of(space, path[-1]), path
    if key is None and isinstance(path[-1], dict) and len(path) > 1:
        key, inner = key_of(space, path[-2]), path[:-1]  # through the class's own namespace
    if not isinstance(key, str) or key.startswith("__"):
        return None
    return _attribute_name(kind, key, inner)


def _attribute_name(kind: type, attribute: Any, inner: Sequence[Any]) -> ObjectName:
    text = f"{kind.__name__}.{attribute}{labels_of(inner)}"
    identifiers = (*identifiers_of(inner), f".{attribute}")
    return ObjectName(text, identifiers, file_of(kind), kind.__name__, owner=kind)


def _in_function(function: FunctionType, path: Sequence[Any]) -> ObjectName | None:
    """Return the name of a closure's cell, a default argument, or a function's attribute."""
    code = function.__code__
    if not is_script(code.co_filename) or path[-1] is function.__globals__:
        return None
    inner = path
    name: str | None
    cell = next((item for item in path if isinstance(item, CellType)), None)
    if cell is None:
        name = _default_argument(function, path) or attribute_of(function, path[-1])
    else:
        inner = path[: next(index for index, item in enumerate(path) if item is cell)]
        names = dict(zip(map(id, function.__closure__ or ()), code.co_freevars, strict=False))
        name = names.get(id(cell))
    if name is None or not inner:
        return None
    identifiers = (*identifiers_of(inner), name)
    return ObjectName(
        name + labels_of(inner), identifiers, code.co_filename, function.__qualname__, code=code
    )


def _default_argument(function: FunctionType, path: Sequence[Any]) -> str | None:
    """Return the parameter whose default value is on the path: `def f(x, cache=[])`."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    pairs = [
        *zip(names[len(names) - len(values) :], values, strict=False),
        *(function.__kwdefaults__ or {}).items(),
    ]
    return next((name for name, value in pairs if any(value is item for item in path)), None)


def _in_partial(holder: functools.partial[Any], path: Sequence[Any]) -> ObjectName | None:
    """Return the parameter that an argument of `functools.partial` stands for."""
    code = getattr(getattr(holder.func, "__func__", holder.func), "__code__", None)
    if code is None or not is_script(code.co_filename):
        return None
    names = code.co_varnames[hasattr(holder.func, "__func__") : code.co_argcount]
    values = dict(zip(map(id, holder.args), names, strict=False))
    name = values.get(id(path[-2])) or key_of(holder.keywords, path[-2])
    if name is None:
        return None
    inner = path[:-1]
    text, identifiers = f"{name}{labels_of(inner)}", (*identifiers_of(inner), name)
    return ObjectName(text, identifiers, code.co_filename, code.co_name, code=code)


def _in_generator(frame: FrameType | None, function: str, path: Sequence[Any]) -> ObjectName | None:
    """Return the name of a variable of a suspended generator."""
    if frame is None or not is_script(frame.f_code.co_filename):
        return None
    name = key_of(safe_reads.read_frame(frame).variables, path[-1])
    if name is None:
        return None
    code = frame.f_code
    identifiers = (*identifiers_of(path), name)
    return ObjectName(
        f"{name}{labels_of(path)}", identifiers, code.co_filename, function, code=code
    )
