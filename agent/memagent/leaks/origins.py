"""The line behind a holder: what fills it, else weaker evidence.

If no statement of the script visibly fills it:

1. An object of the script gets attributes with computed names: `setattr(self, f"x{step}", value)`.
2. What lies between the container and the tensors knows its origin: a log record its line, a
   function its definition, a coroutine's function the calls of it.
3. The container belongs to a library: the script's calls of functions of that library's file.
4. The statement that first sets the name.
"""

from __future__ import annotations

import ast
import functools
import itertools
import logging
import types
import warnings
from collections import UserDict, UserList
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from memagent.components import safe_reads
from memagent.leaks import source_lines
from memagent.leaks.aliases import ADDING_METHODS
from memagent.leaks.detectors.base import CodePosition
from memagent.leaks.growth import growing_lines, lines_adding_to_self
from memagent.leaks.library_calls import filling_call, library_calls
from memagent.leaks.object_labels import link_of
from memagent.leaks.object_names import MODULE_REGISTRIES, ObjectName, file_of
from memagent.leaks.referrers import HolderPath
from memagent.leaks.source_lines import GROWS, PASSES, SourceLine, SourceScope
from memagent.leaks.suspect import WAITING, Kind
from memagent.leaks.syntax import (
    DYNAMIC,
    assignment_targets,
    function_name,
    is_namespace,
    syntax_tree,
    walk,
)
from memagent.leaks.user_code import UserScopes, is_script, is_script_class, namespace

_MAX_SCOPES = 12
_NAMED = (types.FunctionType, types.MethodType)
_SETTERS = frozenset(
    ("setattr", "__setattr__", "register_buffer", "register_parameter", "add_module")
)


def line_of_holder(scopes: UserScopes, holder: HolderPath, kind: Kind) -> SourceLine | None:
    """Return the line that fills a named holder, else its origin."""
    if holder.name is None:
        return None
    if type(holder.container) is itertools._tee_dataobject:  # type: ignore[attr-defined]
        calls = (source_lines.method_calls(file, "tee") for file in scopes.files)
        return next((lines[0] for lines in calls if lines), None)
    line = _line_that_fills(scopes, holder, holder.name, kind)
    if line is None or line.strength < GROWS or _overrides_adding(type(holder.container)):
        line = _line_in_collection(holder) or line
    line = _line_of_link(holder, line) or line
    if line is None or line.strength < PASSES:
        line = origin_line(holder, scopes.files) or line
    if line is None or line.strength < PASSES:
        line = filling_call(holder.name, holder, scopes.files) or line
    return line


def _line_of_link(holder: HolderPath, line: SourceLine | None) -> SourceLine | None:
    """Return the line that links an object to the one before it, if the holder ends a chain.

    line: what fills the holder. If that makes a link itself, it's the line: `top = Node(top)`.
    """
    link, kind = link_of((*holder.below[::-1], holder.container)), type(holder.container)
    if link is None or (line is not None and source_lines.calls(line, kind.__name__)):
        return None
    file = file_of(kind)
    lines = source_lines.attribute_assignments(file, kind.__name__, link)
    lines = lines or source_lines.attribute_assignments(file, "", link)
    set_lines = [item for item in lines if not item.text.endswith(" None")]
    return next(iter([*set_lines, *_calls_of(kind.__name__, [file])]), None)


def _overrides_adding(kind: type) -> bool:
    """Return True if a class of the script has its own `append`, or the like."""
    methods = ADDING_METHODS | {"__iadd__", "__ior__"}
    bases = filter(is_script_class, kind.__mro__)
    return any(not methods.isdisjoint(base.__dict__) for base in bases)


def _line_in_collection(holder: HolderPath) -> SourceLine | None:
    """Return the line of a collection's own class that adds to it, if the script derived one."""
    for item in (holder.container, *holder.above):
        kind = type(item)
        space = namespace(item) if issubclass(kind, UserDict | UserList) else None
        is_data = space is not None and space.get("data") is holder.container
        if (item is holder.container or is_data) and is_script_class(kind):
            bases = filter(is_script_class, kind.__mro__)
            scopes = (SourceScope(file_of(base), None, base.__name__) for base in bases)
            return next((line for scope in scopes for line in lines_adding_to_self(scope)), None)
    return None


def _line_that_fills(
    scopes: UserScopes, holder: HolderPath, name: ObjectName, kind: Kind
) -> SourceLine | None:
    if kind == "cache" and name.code is not None:
        first = name.code.co_firstlineno
        return SourceLine(name.file, first, name.function, GROWS, in_loop=False, text="")
    if kind == "hook":
        registry = next((item for item in name.identifiers if item.endswith("_hooks")), "")
        functions = {item.__name__ for item in holder.below if isinstance(item, _NAMED)}
        calls = (source_lines.hook_calls(file, registry, functions) for file in scopes.files)
        return next((lines[0] for lines in calls if lines), None)
    line = next(iter(lines_of(scopes, name)), None)
    if (line is None or line.strength < PASSES) and name.owner is not None:
        dynamic = growing_lines(_class_scopes(name), [DYNAMIC])
        line = next((item for item in dynamic if item.strength == GROWS), line)
    return line


def lines_of(scopes: UserScopes, name: ObjectName) -> list[SourceLine]:
    """Return the lines that make a named object grow, surest first.

    Looks in its owner first, then in the rest of its file, then in the script's other files.
    """
    where: list[SourceScope] = []
    if name.owner is not None:
        where += _class_scopes(name)
    elif name.code is not None and is_script(name.file):
        where.append(SourceScope(name.file, name.code.co_firstlineno))
    files = dict.fromkeys([name.file, *scopes.files])
    where += [SourceScope(file) for file in files if is_script(file)]
    lines = growing_lines(where[:1], name.identifiers[:1]) if where else []
    if not any(line.strength == GROWS for line in lines):
        lines = growing_lines(where[:_MAX_SCOPES], name.identifiers)
    return lines


def _class_scopes(name: ObjectName) -> list[SourceScope]:
    """Return the classes of the script that define the owner of an attribute."""
    bases = filter(is_script_class, name.owner.__mro__ if name.owner is not None else ())
    return [SourceScope(file_of(base) or name.file, None, base.__name__) for base in bases]


def origin_line(holder: HolderPath, files: Sequence[str]) -> SourceLine | None:
    """Return the line that the holder itself, or what it leads to, has for its origin (1, 2)."""
    if (scope := _namespace_scope(holder)) is not None:
        for line in _computed_attributes(scope):
            return line
    for item in (*holder.below[::-1], holder.container):
        for line in _origins(item, files):
            return line
    return None


def creating_line(holder: HolderPath, files: Sequence[str]) -> SourceLine | None:
    """Return a line that calls the holder's library, else the one that sets its name (3, 4)."""
    name = holder.name
    if name is None:
        return None
    for line in library_calls(name, holder, files):
        return line
    if not name.is_in_script or not name.identifiers:
        return None
    scope = SourceScope(name.file, name.code.co_firstlineno if name.code else None)
    lines = (source_lines.first_assignment(scope, item) for item in reversed(name.identifiers))
    return next(filter(None, lines), None)


def attribute_below(holder: HolderPath) -> tuple[ObjectName, SourceLine] | None:
    """Return the attribute that the container's items keep tensors in, with its line.

    Then each item grows, and not their number: a cached property, or an attribute that is set late.
    """
    for kind, attribute, _ in _attributes_below(holder):
        if (line := _late_line(kind, attribute)) is not None:
            text = f"{kind.__name__}.{attribute}"
            return ObjectName(text, (), line.file, kind.__name__, owner=kind), line
    return None


def holders_below(holder: HolderPath) -> Iterator[HolderPath]:
    """Yield the attributes of the container's items that lead to a tensor.

    Each item may grow, and not their number: `item.history.append(x)`.
    """
    for kind, attribute, value in _attributes_below(holder):
        text, file = f"{kind.__name__}.{attribute}", file_of(kind)
        name = ObjectName(text, (f".{attribute}",), file, kind.__name__, owner=kind)
        below = holder.below[[id(item) for item in holder.below].index(id(value)) + 1 :]
        yield replace(holder, container=value, name=name, below=below, above=())


def _attributes_below(holder: HolderPath) -> Iterator[tuple[type, str, Any]]:
    """Yield the attributes of the script's objects on the way to a tensor: class, name, value."""
    for place, owner in enumerate(holder.below):
        kind = type(owner)
        space = namespace(owner) if is_script_class(kind) else None
        inner = {id(item): item for item in holder.below[place + 1 :]}
        for key, attribute in safe_reads.keys_by_id(space or {}).items():
            if key in inner:
                yield kind, attribute, inner[key]


def site_line(site: CodePosition | None) -> SourceLine | None:
    """Return the line that made something which was traced, as far as the script's own."""
    if site is None:
        return None
    file, number = site
    for node, parents in walk(syntax_tree(file)):
        is_simple = isinstance(node, ast.stmt) and not hasattr(node, "body")
        if is_simple and node.lineno <= number <= (node.end_lineno or 0):  # type: ignore[attr-defined]
            return source_lines.source_line(file, node, PASSES, parents)
    return None


def _late_line(kind: type, attribute: str) -> SourceLine | None:
    """Return the line that sets an attribute after the object was made."""
    cached = getattr(kind, attribute, None)
    if isinstance(cached, functools.cached_property):
        code = cached.func.__code__
        name = cached.func.__qualname__
        return SourceLine(code.co_filename, code.co_firstlineno, name, GROWS, False, "")
    lines = source_lines.attribute_assignments(file_of(kind), kind.__name__, attribute)
    constructor = [line for line in lines if line.function.endswith("__init__")]
    if any(not line.text.endswith(("None", "{}", "[]")) for line in constructor):
        return None  # the constructor gets it
    return next((line for line in lines if line not in constructor), None)


def _namespace_scope(holder: HolderPath) -> SourceScope | None:
    """Return the class or the module whose namespace the container is, if it is one."""
    container, name = holder.container, holder.name
    if is_script_class(type(container)):
        return SourceScope(file_of(type(container)), None, type(container).__name__)
    if name is None or type(container) is not dict:
        return None
    if name.owner is None:
        return SourceScope(name.file) if "__builtins__" in container else None
    is_registry = name.identifiers[:1] in [(f".{item}",) for item in MODULE_REGISTRIES]
    if is_registry or any(container is namespace(item) for item in holder.above):
        return SourceScope(name.file, None, name.owner.__name__)
    return None


def _computed_attributes(scope: SourceScope) -> list[SourceLine]:
    """Return statements that set attributes or globals whose names are computed."""
    return [
        source_lines.source_line(scope.file, node, GROWS, parents)
        for node, parents in walk(source_lines.root_of(scope))
        if isinstance(node, ast.Expr | ast.Assign) and _sets_computed_attribute(node)
    ]


def _sets_computed_attribute(node: ast.Expr | ast.Assign) -> bool:
    if isinstance(node, ast.Assign):
        return any(
            isinstance(target, ast.Subscript) and is_namespace(target.value)
            for target in assignment_targets(node)
        )
    call = node.value
    if not isinstance(call, ast.Call):
        return False
    if function_name(call) in _SETTERS:
        return not any(isinstance(item, ast.Constant) for item in call.args[:2])
    is_update = isinstance(call.func, ast.Attribute) and call.func.attr == "update"
    return is_update and is_namespace(call.func.value)  # type: ignore[attr-defined]


def _origins(item: Any, files: Sequence[str]) -> Iterator[SourceLine]:
    if isinstance(item, logging.LogRecord) and is_script(item.pathname):
        yield SourceLine(item.pathname, item.lineno, item.funcName or "", PASSES, False, "")
    elif isinstance(item, warnings.WarningMessage) and is_script(item.filename):
        yield SourceLine(item.filename, item.lineno, "", PASSES, False, "")
    elif isinstance(item, WAITING):
        code = getattr(item, "cr_code", None) or getattr(item, "gi_code", None)
        if code is not None and is_script(code.co_filename):
            yield from _calls_of(code.co_name, files)
    elif isinstance(item, types.FunctionType) and is_script(item.__code__.co_filename):
        code = item.__code__
        yield SourceLine(
            code.co_filename, code.co_firstlineno, item.__qualname__, PASSES, False, ""
        )


def _calls_of(name: str, files: Sequence[str]) -> Iterator[SourceLine]:
    for file in files:
        for node, parents in walk(syntax_tree(file)):
            if isinstance(node, ast.Call) and function_name(node) == name:
                yield source_lines.source_line(file, node, PASSES, parents)
