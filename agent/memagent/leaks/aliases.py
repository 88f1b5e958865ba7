"""Other names of what grows: variables, functions that return it, methods that add to it."""

from __future__ import annotations

import ast
from collections.abc import Callable

from memagent.leaks.syntax import (
    FUNCTIONS,
    assignment_targets,
    function_name,
    is_key,
    is_mention,
    mention_of,
    syntax_tree,
    uses,
    walk,
)

ADDING_METHODS = frozenset(
    (
        *("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault"),
        *("put", "put_nowait", "push", "heappush", "insort", "insort_left", "insort_right"),
        *(
            "frombytes",
            "fromlist",
            "register_buffer",
            "__setitem__",
            "add_param_group",
            "add_",
            "cat_",
            "index_add_",
            "resize_",
        ),
    )
)
"""Methods that make their object grow."""
_COPYING = frozenset(("list", "dict", "set", "tuple", "deque", "copy", "deepcopy"))


def accessors(file: str, name: str) -> set[str]:
    """Return functions of the file that return a mention, `f()`, and such properties, `.f`."""
    accessors = set()
    for node, parents in walk(syntax_tree(file)):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        function = next((item for item in reversed(parents) if isinstance(item, FUNCTIONS)), None)
        if function is None or not is_mention(node.value, {name}) or _has_local(function, name):
            continue
        if any(getattr(item, "id", "") == "property" for item in function.decorator_list):
            accessors.add(f".{function.name}")
        elif not isinstance(node.value, ast.Call):
            accessors.add(f"{function.name}()")
    return accessors


def _has_local(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Return True if a function has a parameter or variable of that name: another object."""
    names = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
    stored = (part for part in ast.walk(function) if isinstance(part, ast.Name))
    return name in names | {part.id for part in stored if isinstance(part.ctx, ast.Store)}


def aliases_of(root: ast.AST, names: set[str]) -> set[str]:
    """Return variables set from a mention, loop variables, and "add!" for `add = name.append`."""
    aliases = set()
    for node, _ in walk(root):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Name) and is_adding_method(value, names):
                aliases.add(f"{target.id}!")
            elif _refers(value, names) or _gets_item(value, names):
                # also `count, rows = name`
                parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                aliases.update(part.id for part in parts if isinstance(part, ast.Name))
        elif isinstance(node, ast.For) and _is_looped(node.iter, names):
            aliases.update(part.id for part in ast.walk(node.target) if isinstance(part, ast.Name))
    return aliases


def _refers(value: ast.expr, names: set[str]) -> bool:
    """Return True for a mention of what is there, `name if x else y` and `name or x` too."""
    if isinstance(value, ast.IfExp):
        return any(_refers(part, names) for part in (value.body, value.orelse))
    if isinstance(value, ast.BoolOp):
        return any(_refers(part, names) for part in value.values)
    is_reference = isinstance(value, ast.Name | ast.Attribute | ast.Subscript) or (
        isinstance(value, ast.Call) and f"{function_name(value)}()" in names
    )
    return is_reference and is_mention(value, names)


def copies_of(root: ast.AST, names: set[str]) -> set[str]:
    """Return variables that begin as a copy: `merged = dict(name)`, `rows = [*name]`."""
    return _assigned(root, lambda value: _copies(value, names))


def _copies(value: ast.expr, names: set[str]) -> bool:
    if isinstance(value, ast.Call):
        is_method = isinstance(value.func, ast.Attribute) and value.func.attr == "copy"
        parts = [value.func.value] if is_method else value.args[:1]  # type: ignore[attr-defined]
        known = is_method or function_name(value) in _COPYING
        return known and any(is_mention(part, names) for part in parts)
    if isinstance(value, ast.List | ast.Tuple):
        return any(isinstance(part, ast.Starred) and is_mention(part, names) for part in value.elts)
    is_union = isinstance(value, ast.Dict) and None in value.keys
    return is_union and any(is_mention(part, names) for part in value.values)  # type: ignore[attr-defined]


def _gets_item(value: ast.expr, names: set[str]) -> bool:
    """Return True for `name.setdefault(key, [])`, and `x.get("name")` for the name `.name`."""
    getters = ("setdefault", "get", "getattr")
    if not isinstance(value, ast.Call) or function_name(value) not in getters:
        return False
    return is_mention(value, names) or any(is_key(item, names) for item in value.args[:1])


def derived_variables(root: ast.AST, names: set[str]) -> set[str]:
    """Return variables computed from a mention: `y, state = cell(x, self.state)`."""
    return _assigned(root, lambda value: uses(value, names))


def _assigned(root: ast.AST, is_source: Callable[[ast.expr], bool]) -> set[str]:
    """Return variables that are assigned such a value."""
    return {
        target.id
        for node, _ in walk(root)
        if isinstance(node, ast.Assign) and is_source(node.value)
        for target in assignment_targets(node)
        if isinstance(target, ast.Name)
    }


def writers_of(root: ast.AST, names: set[str]) -> set[str]:
    """Return what a mention was given to: `self.writer = csv.writer(self.stream)`."""
    return {
        mention_of(target)
        for node, _ in walk(root)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if any(is_mention(item, names) for item in node.value.args)
        for target in node.targets
    } - {"", *names}


def functions_with(root: ast.AST, names: set[str]) -> set[str]:
    """Return nested functions that use a variable from outside: `def wrapped(x): forward(x)`."""
    return {
        node.name
        for node, parents in walk(root)
        if isinstance(node, FUNCTIONS)
        and any(isinstance(item, FUNCTIONS) for item in parents)
        and any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))
    }


def _is_looped(value: ast.expr, names: set[str]) -> bool:
    """Return True for `name`, `name.values()`, `enumerate(name)`, `zip(a, name)`."""
    if isinstance(value, ast.Tuple | ast.List):  # of several that are added to in turn
        return any(_is_looped(part, names) for part in value.elts)
    wrappers = ("enumerate", "zip", "reversed", "list")
    if isinstance(value, ast.Call) and function_name(value) in wrappers:
        return any(_is_looped(argument, names) for argument in value.args)
    return is_mention(value, names)


def is_adding_method(value: ast.expr, names: set[str]) -> bool:
    """Return True for a method that is passed as a callback: `name.append`."""
    is_method = isinstance(value, ast.Attribute) and value.attr in ADDING_METHODS
    return is_method and is_mention(value.value, names)  # type: ignore[attr-defined]
