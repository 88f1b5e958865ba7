"""Containers of libraries that the script names by their module: `linecache.cache[key] = lines`.

A walk goes through no module, since each leads to all others. So it begins also at these:

1. Collect the names in the script's code objects, without reading a source.
2. Look for containers of such a name among the globals of modules: those that the script has in
   its globals, and all whose own name is one of these.
3. Read the instructions of code that has one of these names, since `self.cache` isn't
   `linecache.cache`.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

from memagent.components import safe_reads
from memagent.leaks.object_labels import identifiers_of, labels_of
from memagent.leaks.object_names import ObjectName
from memagent.leaks.user_code import (
    UserScopes,
    functions_among,
    is_script,
    is_script_class,
    namespace,
    script_code,
)

_KINDS = (list, dict, set, deque)
_NEUTRAL = ("EXTENDED_ARG", "SWAP", "ROT_TWO", "POP_TOP")
"""Instructions that `import a.b as c` has between the module and its name."""
_Mention = tuple[str, str, str]
"""A module, its global, and the file whose code has both."""
_mentions_of: weakref.WeakKeyDictionary[UserScopes, list[_Mention]] = weakref.WeakKeyDictionary()
"""The mentions that each search has read, since it asks for them often. It keeps nothing alive."""


@dataclass(frozen=True)
class _Code:
    """A code object of the script, with those in it, and the globals that it has."""

    codes: tuple[CodeType, ...]
    space: dict[str, Any] = field(repr=False)

    @property
    def names(self) -> set[str]:
        return {name for code in self.codes for name in code.co_names}


def library_containers(scopes: UserScopes) -> Iterator[tuple[ObjectName, Any]]:
    """Yield name and container. The name's file is one whose code has it."""
    if scopes not in _mentions_of:
        _mentions_of[scopes] = list(dict.fromkeys(_mentions(scopes)))
    for module, key, file in _mentions_of[scopes]:
        container = (namespace(sys.modules.get(module)) or {}).get(key)
        if issubclass(type(container), _KINDS):
            yield ObjectName(f"{module}.{key}", (f".{key}",), file, "<module>"), container


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


def _mentions(scopes: UserScopes) -> Iterator[_Mention]:
    spaces = [namespace(sys.modules.get(name)) or {} for name in scopes.script_modules]
    trees = list(_trees(spaces))
    names = {name for tree in trees for name in tree.names if not name.startswith("__")}
    modules = _modules(spaces, names)
    keys = {key for module in modules for key in _containers_in(module, names)}
    libraries = {id(module) for module in modules}
    for tree in trees:
        if keys.isdisjoint(tree.names):
            continue
        bindings = dict[str, Any]()
        for code in tree.codes:
            for module, key in _attributes_of_modules(code, tree.space, bindings):
                if id(module) in libraries and key in keys:
                    yield module.__name__, key, code.co_filename


def _containers_in(module: ModuleType, names: Collection[str]) -> Iterator[str]:
    space = namespace(module) or {}
    for key in space.keys() & names:
        if issubclass(type(space[key]), _KINDS):
            yield key


def _modules(spaces: Iterable[dict[str, Any]], names: Collection[str]) -> list[ModuleType]:
    """Return the modules of libraries that the script's code can name (2)."""
    modules: dict[int, ModuleType] = {}
    for space in spaces:
        values = safe_reads.items_of(space.values()).others
        modules.update((id(item), item) for item in values if type(item) is ModuleType)
    for name, item in sys.modules.copy().items():
        if name.rpartition(".")[2] in names and type(item) is ModuleType:
            modules[id(item)] = item
    return list(filter(_is_library, modules.values()))


def _is_library(module: ModuleType) -> bool:
    # tables of `sys` are the interpreter's, and its `modules` lead everywhere
    is_own = module.__name__.partition(".")[0] in ("memagent", "sys")
    return not is_own and not is_script(str((namespace(module) or {}).get("__file__") or ""))


def _trees(spaces: Iterable[dict[str, Any]]) -> Iterator[_Code]:
    """Yield the code of what runs, and of the functions and methods of the script's modules."""
    known = set[int]()
    for code, space in _outermost(spaces):
        codes = tuple(_codes_in(code))
        if codes and id(code) not in known:
            known.update(map(id, codes))
            yield _Code(codes, space)


def _outermost(spaces: Iterable[dict[str, Any]]) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    yield from ((reading.code, reading.globals) for reading in script_code())
    for space in spaces:
        values = safe_reads.items_of(space.values()).others
        kinds = [item for item in values if issubclass(type(item), type) and is_script_class(item)]
        for kind in kinds:
            values += safe_reads.items_of(type.__getattribute__(kind, "__dict__").values()).others
        for function in functions_among(values):
            yield function.__code__, function.__globals__


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object of the script and those in it, outer ones first."""
    todo = deque([code])
    while todo:
        if is_script((code := todo.popleft()).co_filename):
            yield code
            todo += [item for item in code.co_consts if type(item) is CodeType]


def _attributes_of_modules(
    code: CodeType, space: dict[str, Any], bindings: dict[str, Any]
) -> Iterator[tuple[ModuleType, str]]:
    """Yield the attributes that code takes of modules, and note the modules that it imports.

    bindings: local variables that are modules, also those of functions around this one.
    """
    current: Any = None
    constant: Any = None
    for step in dis.get_instructions(code):
        # Python 3.13 joins two instructions on local variables, as STORE_FAST_LOAD_FAST
        first, name = step.argval if step.opname.count("_FAST") > 1 else (step.argval, step.argval)
        if step.opname.startswith("STORE_") and type(current) is ModuleType:
            bindings[first] = current
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            owner, current = current, None
            if type(owner) is ModuleType:
                yield owner, name
                current = (namespace(owner) or {}).get(name)
        elif step.opname == "IMPORT_NAME":  # the constant before it is what is imported from there
            current = sys.modules.get(name if constant else name.partition(".")[0])
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            current = bindings.get(name, space.get(name))
        elif "LOAD_FAST" in step.opname or step.opname == "LOAD_DEREF":
            current = bindings.get(name)
        elif step.opname not in _NEUTRAL:
            current = None
        constant = step.argval
