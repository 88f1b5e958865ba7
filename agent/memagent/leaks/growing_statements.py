"""How surely a statement makes something with given names grow; `growth` has the rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memagent.leaks.aliases import ADDING_METHODS, is_adding_method
from memagent.leaks.source_lines import GROWS, PASSES, SETS, SourceLine, is_in_loop
from memagent.leaks.syntax import (
    ASSIGNMENTS,
    FUNCTIONS,
    Parents,
    assignment_targets,
    function_name,
    is_key,
    is_mention,
    mention_of,
    uses,
)

_ADDING_FUNCTIONS = frozenset(
    (
        *("heappush", "insort", "insort_left", "insort_right", "heappushpop"),
        *("iadd", "iconcat", "ior", "setitem"),
    )
)
_BUILTIN_CONTAINERS = frozenset(("list", "dict", "set", "deque", "bytearray"))


def changes_in_place(node: ast.stmt, aliases: set[str]) -> bool:
    """Return True for `name += x`, and `item[rows] = x` where `item` is a part of what is named."""
    if isinstance(node, ast.AugAssign):
        return True
    targets = assignment_targets(node) if isinstance(node, ast.Assign) else []
    items = [part.value for part in targets if isinstance(part, ast.Subscript)]
    return any(isinstance(item, ast.Name) and item.id in aliases for item in items)


def growth_strength(node: ast.stmt, names: set[str], parents: Parents, name: str) -> int:
    """Return how surely a statement makes the names grow, 0 if it doesn't."""
    strength = 0
    if isinstance(node, ast.AugAssign):
        strength = GROWS * any(is_mention(part, names) for part in assignment_targets(node))
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        strength = _assignment_strength(node, node.value, names, parents, name)
    elif isinstance(node, ast.Raise):
        strength = _raise_strength(node, names, name)
    return strength or GROWS * any(_adds(call, names) for call in _own_calls(node))


def adds_items(node: ast.stmt, names: set[str]) -> bool:
    """Return True if a statement that makes the names grow calls something, or sets an item."""
    targets = assignment_targets(node) if isinstance(node, ASSIGNMENTS) else []
    sets_item = not isinstance(node, ast.AugAssign) and any(
        isinstance(part, ast.Subscript) for part in targets
    )
    return sets_item or any(_adds(call, names) for call in _own_calls(node))


def runs_once(line: SourceLine) -> bool:
    """Return True for a statement of a module, outside of loops."""
    return line.function == "<module>" and not line.in_loop and not line.file.startswith("<")


def fills_new_object(node: ast.stmt, parents: Parents, name: str) -> bool:
    """Return True for `self.rows.append(x)` in the constructor that makes `self.rows`.

    It runs once for each object, so it's over when one is there already.
    """
    function = next((item for item in reversed(parents) if isinstance(item, FUNCTIONS)), None)
    if function is None or function.name != "__init__" or not _has_own(node, name):
        return False
    others = (part for part in ast.walk(function) if isinstance(part, ast.Assign | ast.AnnAssign))
    return any(
        _is_own(target, name)
        for part in others
        if not isinstance(part.value, ast.Name | ast.Attribute | None)
        for target in assignment_targets(part)
    )


def _has_own(node: ast.stmt, name: str) -> bool:
    return any(_is_own(part, name) for part in ast.walk(node))


def _is_own(node: ast.AST, name: str) -> bool:
    """Return True for `self.rows`, if `.rows` is the name."""
    is_attribute = isinstance(node, ast.Attribute) and f".{node.attr}" == name
    return is_attribute and isinstance(node.value, ast.Name) and node.value.id == "self"  # type: ignore[attr-defined]


def _own_calls(node: ast.stmt) -> Iterator[ast.Call]:
    """Yield the calls of a statement, without those of the statements in it."""
    parts = [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt)]
    if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Match, ast.Try)):
        for part in parts:
            yield from (call for call in ast.walk(part) if isinstance(call, ast.Call))


def _assignment_strength(
    node: ast.Assign | ast.AnnAssign, value: ast.expr, names: set[str], parents: Parents, name: str
) -> int:
    targets = assignment_targets(node)
    if _adds(value, names):
        # `items = name.setdefault(key, [])` gets an alias, which another line may add to
        is_alias = isinstance(value, ast.Call) and function_name(value) == "setdefault"
        return PASSES if is_alias else GROWS
    items = [part for part in targets if isinstance(part, ast.Subscript)]
    items = [part for part in items if is_mention(part.value, names)]
    if items:
        # `state["step"] = state["step"] + 1` makes no mapping grow
        return PASSES if all(_is_other_key(item, names) for item in items) else GROWS
    if not any(is_mention(part, {name}) for part in targets):
        return 0
    is_computed = uses(value, names) and not is_reference(value, names)
    is_computed |= any(_copies_self(part) for part in ast.walk(value))
    return GROWS if is_computed else SETS * runs_often(parents)


def _raise_strength(node: ast.Raise, names: set[str], name: str) -> int:
    """Return GROWS for a kept error that is raised again: each time adds to its traceback.

    One of a list is less sure: what appends to the list makes that grow.
    """
    error = node.exc
    if error is None or isinstance(error, ast.Call) or not is_mention(error, names):
        return 0
    return GROWS if mention_of(error) == name and not isinstance(error, ast.Subscript) else PASSES


def _copies_self(value: ast.AST) -> bool:
    """Return True for `copy.deepcopy(self)`, which has all attributes."""
    if not isinstance(value, ast.Call) or function_name(value) not in ("copy", "deepcopy"):
        return False
    return any(isinstance(item, ast.Name) and item.id == "self" for item in value.args)


def is_reference(value: ast.expr, names: set[str]) -> bool:
    """Return True for what is there already: `self.rows = rows`, `node = node.parent`."""
    return isinstance(value, ast.Name | ast.Attribute) and is_mention(value, names)


def _is_other_key(item: ast.Subscript, names: set[str]) -> bool:
    """Return True for a constant key that is none of the names."""
    return isinstance(item.slice, ast.Constant) and not is_key(item.slice, names)


def _adds(call: ast.expr, names: set[str]) -> bool:
    """Return True if a call adds something to one of the names."""
    if isinstance(call, ast.Await):
        return _adds(call.value, names)
    if not isinstance(call, ast.Call):
        return False
    function, arguments, called = call.func, call.args, function_name(call)
    if called in ("register_buffer", "setattr"):
        return _sets_attribute(call, names)
    if any(is_adding_method(item, names) for item in arguments) or _sets_value(call, names):
        return True
    is_method = isinstance(function, ast.Attribute) and called in ADDING_METHODS
    if is_method and is_mention(function.value, names):  # type: ignore[attr-defined]
        return True
    # also `list.append(name, x)`
    is_function = called in _ADDING_FUNCTIONS or (is_method and _is_builtin(function.value))  # type: ignore[attr-defined]
    return (is_function and any(is_mention(item, names) for item in arguments[:1])) or (
        isinstance(function, ast.Name) and f"{called}!" in names  # an alias: add = name.append
    )


def _sets_attribute(call: ast.Call, names: set[str]) -> bool:
    """Return True for `setattr(x, "name", f(x.name))`, and `setattr(name, key, x)`."""
    place = 0 if function_name(call) == "register_buffer" else 1
    owner, key, value = [*call.args[:place], None][0], *[*call.args[place:], None, None][:2]
    if key is None or value is None:
        return False
    if is_key(key, names):
        return uses(value, names)
    return owner is not None and is_mention(owner, names) and not isinstance(key, ast.Constant)


def _is_builtin(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in _BUILTIN_CONTAINERS


def _sets_value(call: ast.Call, names: set[str]) -> bool:
    """Return True for a context variable that is set from itself: `var.set((*var.get(), x))`."""
    function = call.func
    is_setter = isinstance(function, ast.Attribute) and function.attr == "set"
    return (
        is_setter
        and is_mention(function.value, names)  # type: ignore[attr-defined]
        and any(uses(item, names) for item in call.args)
    )


def runs_often(parents: Parents) -> bool:
    """Return True in a loop, or in a function other than `__init__` and `main`."""
    functions = [item.name for item in parents if isinstance(item, FUNCTIONS)]
    return is_in_loop(parents) or bool(functions and functions[-1] not in ("__init__", "main"))
