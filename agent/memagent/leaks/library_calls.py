"""The script's calls of a library that owns a container: one of them fills it.

1. The functions of a library are those in the files of its class that owns the container, and of
   that class' bases; less surely, any function of the same package.
2. What a call means is looked up in the variables of running functions, the globals of its file,
   and the class that it's in, without running code of the script.
3. A call that can't be looked up counts if its name is defined in those files. Names that builtin
   containers have, too, count only for methods of the named object. It's read only if it's called
   on what has the owner's name: any `timer.record(x)` may be another class'.
4. A suspended generator of the script has variables, too: what it reads from may be one of them.
5. A loop over the owner itself calls a method of it: `for member in archive`.
6. The surest call is one of a function whose own source adds to the container.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from io import IOBase
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

from memagent.components import safe_reads
from memagent.leaks import source_lines
from memagent.leaks.growing_statements import runs_often
from memagent.leaks.growth import growing_lines
from memagent.leaks.object_names import ObjectName, file_of
from memagent.leaks.referrers import HolderPath
from memagent.leaks.source_lines import GROWS, PASSES, SETS, SourceLine, SourceScope
from memagent.leaks.syntax import (
    FUNCTIONS,
    Parents,
    assignment_targets,
    function_name,
    is_mention,
    mention_of,
    read_once,
    syntax_tree,
    walk,
)
from memagent.leaks.user_code import (
    is_script,
    is_script_class,
    namespace,
    script_code,
    script_modules,
)

_BUILTINS = (list, dict, set, str, deque, IOBase, threading.Event)
_BUILTIN_NAMES = frozenset(name for kind in _BUILTINS for name in dir(kind))
UNKNOWN = object()
_CallOrder = tuple[bool, bool, bool, bool, int, bool, bool]
"""What sorts the calls: the first ones are the likeliest."""


def library_calls(
    name: ObjectName, holder: HolderPath, files: Sequence[str]
) -> Iterator[SourceLine]:
    """Yield the script's calls of the library that owns a container, most likely first.

    Functions whose code uses the attribute come first, then methods of the named object, then calls
    of what the class itself defines, then calls in a loop. What makes the owner is last.
    """
    yield from (line for _, line in _ordered_calls(name, holder, files))


def filling_call(name: ObjectName, holder: HolderPath, files: Sequence[str]) -> SourceLine | None:
    """Return the script's call of a library's function that adds to its own object (6)."""
    owner = next((kind for kind in map(_class_of, holder.above) if not _is_builtin(kind)), None)
    if owner is None or is_script_class(owner):
        return None
    attribute = name.identifiers[:1]
    for function, line in _ordered_calls(name, holder, files):
        if _fills(function, attribute):
            return replace(line, strength=PASSES)
    return None


def _ordered_calls(
    name: ObjectName, holder: HolderPath, files: Sequence[str]
) -> list[tuple[Any, SourceLine]]:
    """Return what is called, with the line. What can't be looked up comes after its like (3)."""
    kinds = [kind for kind in map(_class_of, holder.above) if not is_script_class(kind)]
    kinds = [kind for kind in kinds if kind.__module__ != "builtins"]
    libraries = [file_of(base) for kind in kinds[:1] for base in kind.__mro__[:-1]]
    libraries = [library for library in libraries if library]
    if not kinds and not name.is_in_script:
        libraries = [name.file]
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    meanings = Meanings()
    defined = [_defined_names(library) for library in libraries]
    owners = (item for item in holder.above if _class_of(item) in kinds[:1])
    calls = [
        (order, None, line)
        for order, line in _iterations(next(owners, None), name, meanings, files)
    ]
    for file in files:
        for node, parents in walk(syntax_tree(file)):
            if not isinstance(node, ast.Call) or not _takes_values(node):
                continue
            function = meanings.of(node.func, file, parents)
            is_method = _is_method_of(node, set(name.identifiers))
            is_unknown = function is UNKNOWN
            if is_unknown:
                place = _place_by_name(function_name(node), defined, is_method)
                function = _method_of_owner(node, kinds, name.identifiers[1:])
            else:
                place = _place(function, libraries, packages)
            if place is not None:
                line = source_lines.source_line(file, node, SETS, parents)
                is_once = not runs_often(parents)
                is_rarer = place < len(libraries) and not line.in_loop
                is_maker = any(function is kind for kind in kinds)
                is_other = not _uses_attribute(function, name.identifiers[:1])
                order = (is_maker, is_other, not is_method, is_unknown, place, is_once, is_rarer)
                calls.append((order, function, line))
    calls.sort(key=lambda call: call[0])
    return [(function, line) for _, function, line in calls]


def _iterations(
    owner: Any, name: ObjectName, meanings: Meanings, files: Sequence[str]
) -> Iterator[tuple[_CallOrder, SourceLine]]:
    """Yield the loops over the owner of a container: each calls a method of it (5)."""
    steps = [getattr(_class_of(owner), method, None) for method in ("__iter__", "__next__")]
    if owner is None or not any(steps):
        return
    is_other = not any(_uses_attribute(step, name.identifiers[:1]) for step in steps)
    for file in files:
        for node, parents in walk(syntax_tree(file)):
            if (
                isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)
                and meanings.of(node.iter, file, parents) is owner
            ):
                line = source_lines.source_line(file, node.iter, SETS, parents)
                yield (False, is_other, False, False, 0, False, False), line


def lengthening_calls(
    name: ObjectName, holder: HolderPath, files: Sequence[str]
) -> list[SourceLine]:
    """Return the script's calls of a library whose class makes its own attribute longer.

    Those that get the object, or are methods of it, come first; among these, what runs often.
    """
    owner = next((kind for kind in map(_class_of, holder.above) if not _is_builtin(kind)), None)
    if owner is None or is_script_class(owner) or not _lengthens(owner, name.identifiers[0]):
        return []
    last = name.identifiers[-1].lstrip(".")
    names = {item for item in name.identifiers if item.lstrip(".") == last}
    calls = [
        (not runs_often(parents), source_lines.source_line(file, node, PASSES, parents))
        for file in files
        for node, parents in walk(syntax_tree(file))
        if isinstance(node, ast.Call) and _gets(node, names)
    ]
    calls.sort(key=lambda call: call[0])
    lines = [line for _, line in calls] or library_calls(name, holder, files)
    return [replace(line, strength=PASSES, uses_itself=True) for line in lines]


def _is_builtin(kind: type) -> bool:
    return kind.__module__ == "builtins"


def _lengthens(kind: type, attribute: str) -> bool:
    """Return True if a class computes an attribute from itself, and cuts nothing off before it."""
    scopes = [SourceScope(file_of(base), None, base.__name__) for base in kind.__mro__[:-1]]
    lines = growing_lines([scope for scope in scopes if scope.file], [attribute])
    return any(line.uses_itself and line.strength == GROWS for line in lines) and not any(
        isinstance(part, ast.Slice) and part.lower is not None
        for scope in scopes
        for node, _ in walk(source_lines.root_of(scope))
        if isinstance(node, ast.Assign)
        and any(is_mention(target, {attribute}) for target in assignment_targets(node))
        for part in ast.walk(node.value)
    )


def _gets(call: ast.Call, names: set[str]) -> bool:
    """Return True if a call gets a named object, or is a method of it."""
    arguments = [*call.args, *(item.value for item in call.keywords)]
    is_argument = any(is_mention(value, names) for value in arguments)
    return is_argument or (_is_method_of(call, names) and _takes_values(call))


def _class_of(item: Any) -> type:
    return item if isinstance(item, type) else type(item)


def _place(function: Any, libraries: Sequence[str], packages: set[str]) -> int | None:
    """Return a lower number for a function of the library's nearer to the container."""
    file = _file_of_function(function)
    if file in libraries:
        return libraries.index(file)
    owner = _code_owner(function)
    module = owner.__module__ if isinstance(owner, FunctionType) else None
    is_near = module is not None and module.partition(".")[0] in packages - {"torch"}
    return len(libraries) if is_near else None


def _place_by_name(called: str, defined: Sequence[set[str]], is_method: bool) -> int | None:
    if called in _BUILTIN_NAMES and not is_method:
        return None
    return next((place for place, names in enumerate(defined) if called in names), None)


def _code_owner(function: Any) -> Any:
    """Return the function of a method or decorator, and the class of another object."""
    function = getattr(function, "__func__", function)
    if isinstance(function, FunctionType):
        function = inspect.unwrap(function)  # it may wrap a built-in
    if isinstance(function, FunctionType):
        return function
    return function if isinstance(function, type) else type(function)


def _file_of_function(function: Any) -> str:
    owner = _code_owner(function)
    return owner.__code__.co_filename if isinstance(owner, FunctionType) else file_of(owner)


def _uses_attribute(function: Any, identifiers: Sequence[str]) -> bool:
    """Return True if a function, or the constructor of a class, mentions one of the attributes."""
    owner = _code_owner(function)
    owner = owner if isinstance(owner, FunctionType) else getattr(owner, "__init__", None)
    names = owner.__code__.co_names if isinstance(owner, FunctionType) else ()
    return any(item.removeprefix(".") in names for item in identifiers)


def _fills(function: Any, attributes: Sequence[str]) -> bool:
    """Return True if the source of a library's function adds to one of the attributes."""
    owner = _code_owner(function)
    if not isinstance(owner, FunctionType) or not _uses_attribute(owner, attributes):
        return False
    scope = SourceScope(owner.__code__.co_filename, owner.__code__.co_firstlineno)
    return any(line.strength == GROWS for line in growing_lines([scope], attributes))


def _is_method_of(call: ast.Call, names: set[str]) -> bool:
    return isinstance(call.func, ast.Attribute) and is_mention(call.func.value, names)


def _method_of_owner(call: ast.Call, kinds: Sequence[type], names: Sequence[str]) -> Any:
    """Return the method that is called on what has the owner's name, else `UNKNOWN`."""
    is_named = isinstance(call.func, ast.Attribute) and mention_of(call.func.value) in names
    return _attribute(kinds[0], function_name(call)) if kinds and is_named else UNKNOWN


def _takes_values(call: ast.Call) -> bool:
    values = [*call.args, *(item.value for item in call.keywords)]
    return any(not isinstance(value, ast.Constant) for value in values)


@read_once
def _defined_names(file: str) -> set[str]:
    """Return functions, classes and methods without an underscore."""
    nodes = (node for node, _ in walk(syntax_tree(file)))
    names = {node.name for node in nodes if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
    return {name for name in names if not name.startswith("_")}


class Meanings:
    """What expressions of the script mean now, as far as that's known without running it."""

    def __init__(self) -> None:
        self._globals = {file: space for _, file, space in script_modules()}
        self._locals: dict[tuple[str, int], dict[str, Any]] = {}
        for reading in script_code():
            code = reading.code
            self._globals[code.co_filename] = reading.globals
            if not reading.is_module:
                self._locals[code.co_filename, code.co_firstlineno] = reading.variables
                self._add_generators(reading.variables.values())
        for space in self._globals.values():
            self._add_generators(space.values())

    def _add_generators(self, values: Iterable[Any]) -> None:
        """Add the variables of the script's generators that are suspended (4)."""
        todo = [item for item in safe_reads.items_of(values).others if type(item) is GeneratorType]
        for generator in todo:
            frame = generator.gi_frame
            code = generator.gi_code
            place = code.co_filename, code.co_firstlineno
            if frame is None or place in self._locals or not is_script(code.co_filename):
                continue
            variables = self._locals[place] = safe_reads.read_frame(frame).variables
            todo += [item for item in variables.values() if type(item) is GeneratorType]

    def of(self, value: ast.expr, file: str, parents: Parents) -> Any:
        """Return the object that an expression stands for, else `UNKNOWN`."""
        if isinstance(value, ast.Attribute):
            return _attribute(self.of(value.value, file, parents), value.attr)
        if not isinstance(value, ast.Name):
            return UNKNOWN
        space = self._globals.get(file, {})
        functions = [item for item in parents if isinstance(item, FUNCTIONS)]
        for function in reversed(functions):
            first = min([function.lineno, *(item.lineno for item in function.decorator_list)])
            variables = self._locals.get((file, first), {})
            if value.id in variables:
                return variables[value.id]
            if value.id in _variables(function):
                owner = parents[parents.index(function) - 1]
                is_own = value.id == "self" and isinstance(owner, ast.ClassDef)
                return space.get(owner.name, UNKNOWN) if is_own else UNKNOWN  # type: ignore[attr-defined]
        return space.get(value.id, getattr(builtins, value.id, UNKNOWN))


def _variables(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
    names = (part for part in ast.walk(function) if isinstance(part, ast.Name))
    return arguments | {part.id for part in names if isinstance(part.ctx, ast.Store)}


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute without running a property or `__getattr__` of the script."""
    if owner is UNKNOWN:
        return UNKNOWN
    space = namespace(owner) or {}
    for values in (space, *(space.get(key) or {} for key in ("_modules", "_parameters"))):
        if isinstance(values, dict) and name in values:
            return values[name]
    if isinstance(owner, ModuleType):
        return UNKNOWN
    kind = owner if isinstance(owner, type) else type(owner)
    values = (base.__dict__[name] for base in kind.__mro__ if name in base.__dict__)
    value = next(values, UNKNOWN)
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value if callable(value) else UNKNOWN
