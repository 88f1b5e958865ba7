"""Containers of libraries that the script names by their module: `linecache.cache[key] = lines`.

A walk goes through no module, since each leads to all others. So it begins also at these:

1. Collect the names in the script's code objects, without reading a source.
2. Look at the modules among the globals of the script, at those that its functions import, and at
   their own modules of such a name.
3. A global of such a module that has one of the names, and is a container, is named by both.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from memagent.components import safe_reads
from memagent.leaks.object_labels import identifiers_of, labels_of
from memagent.leaks.object_names import ObjectName
from memagent.leaks.user_code import UserScopes, is_script, is_script_class, namespace, script_code

_KINDS = (list, dict, set, deque)
_MAX_DEPTH = 3
"""Packages in packages: `a.b.c.registry`."""


def library_containers(scopes: UserScopes) -> Iterator[tuple[ObjectName, Any]]:
    """Yield name and container. The name's file is one whose code has it."""
    spaces = [namespace(sys.modules.get(name)) or {} for name in scopes.script_modules]
    names = _names_in(_code_of(spaces))
    for module in _modules(spaces, names):
        space = namespace(module) or {}
        for key in names.keys() & space:
            if issubclass(type(space[key]), _KINDS):
                text = f"{module.__name__}.{key}"
                yield ObjectName(text, (f".{key}",), names[key], "<module>"), space[key]


def name_of_root(scopes: UserScopes, path: Sequence[Any]) -> ObjectName | None:
    """Return the name of a path's first object if its last is one at which walks begin so."""
    if path[-1] is finalizers():
        text = "weakref.finalize._registry"
        return ObjectName(text, (), str(weakref.__file__), "<module>", owner=weakref.finalize)
    names = (name for name, other in library_containers(scopes) if other is path[-1])
    if (name := next(names, None)) is None:
        return None
    identifiers = (*identifiers_of(path), *name.identifiers)
    text = name.expression + labels_of(path)
    return ObjectName(text, identifiers, name.file, name.function)


def finalizers() -> Any:
    """Return the registry of `weakref.finalize`, which keeps the arguments of the callbacks."""
    return getattr(weakref.finalize, "_registry", None)


def _modules(spaces: Iterable[dict[str, Any]], names: Iterable[str]) -> list[ModuleType]:
    """Return the modules of libraries that the script's code can name (2)."""
    level = [item for space in spaces for item in _modules_in(space, space)]
    level += [module for name in names if type(module := sys.modules.get(name)) is ModuleType]
    modules: dict[int, ModuleType] = {}
    for _ in range(_MAX_DEPTH):
        level = [item for item in level if id(item) not in modules and _is_library(item)]
        modules.update((id(item), item) for item in level)
        level = [part for item in level for part in _modules_in(namespace(item) or {}, names)]
    return list(modules.values())


def _modules_in(space: dict[str, Any], names: Iterable[str]) -> list[ModuleType]:
    values = safe_reads.items_of(map(space.get, names)).others
    return [item for item in values if type(item) is ModuleType]


def _is_library(module: ModuleType) -> bool:
    is_own = module.__name__.partition(".")[0] == "memagent"
    return not is_own and not is_script(str((namespace(module) or {}).get("__file__") or ""))


def _code_of(spaces: Iterable[dict[str, Any]]) -> Iterator[CodeType]:
    """Yield the code of what runs, and of the functions and methods of the script's modules."""
    yield from (reading.code for reading in script_code())
    for space in spaces:
        values = safe_reads.items_of(space.values()).others
        classes = [item for item in values if isinstance(item, type) and is_script_class(item)]
        for kind in classes:
            values += safe_reads.items_of(kind.__dict__.values()).others
        functions = (getattr(item, "__func__", item) for item in values)
        yield from (item.__code__ for item in functions if type(item) is FunctionType)


def _names_in(codes: Iterable[CodeType]) -> dict[str, str]:
    """Return globals and attributes that code mentions, with a file of each."""
    names: dict[str, str] = {}
    todo, known = list(codes), set[int]()
    while todo:
        code = todo.pop()
        if id(code) not in known and is_script(code.co_filename):
            known.add(id(code))
            own = (name for name in code.co_names if not name.startswith("__"))
            names.update(dict.fromkeys(own, code.co_filename))
            todo += [item for item in code.co_consts if type(item) is CodeType]
    return names
