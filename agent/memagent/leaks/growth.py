"""The line that makes something grow, found in the script's source.

`syntax` defines names and mentions. A variable assigned from a mention (`items = self.cache`, `for
item in cache`) counts as one, too. Statements rank by how surely they make the named object grow:

1. GROWS: a method that adds (`name.append(x)`, `name[key].append(x)`, `name.setdefault(key,
   []).add(x)`), `name[key] = x`, `name += ...`, `heappush(name, x)`; `name = name + x`, `name =
   torch.cat([name, x])`, `a, name = cell(x, name)`, `register_buffer("name", ...)`.
2. PASSES: `name` is passed to a function that makes its parameter grow (that function's line), or
   is asked to take something in (`metric.update(x)`).
3. SETS: `name = x` inside a loop or a function other than `__init__`.

Among equals, a statement in a loop comes first, then one in the function that owns the name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memagent.leaks.source_lines import (
    GROWS,
    PASSES,
    SETS,
    SourceLine,
    SourceScope,
    is_in_loop,
    root_of,
    source_line,
)
from memagent.leaks.syntax import (
    FUNCTIONS,
    Parents,
    assignment_targets,
    function_name,
    is_key,
    is_mention,
    syntax_tree,
    uses,
    walk,
)

_ADDING_METHODS = frozenset(
    (
        *("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault"),
        *("put", "put_nowait", "push", "heappush", "insort", "insort_left", "insort_right"),
        *("register_buffer", "__setitem__", "add_param_group", "add_", "cat_", "index_add_"),
    )
)
_STORING_METHODS = frozenset(
    (
        *("update", "add", "log", "record", "store", "write", "append", "push", "put", "collect"),
        *("save", "remember", "observe", "track", "compute", "forward", "__call__"),
    )
)
_ADDING_FUNCTIONS = frozenset(("heappush", "insort", "insort_left", "insort_right", "heappushpop"))


def growing_lines(scopes: Sequence[SourceScope], names: Sequence[str]) -> list[SourceLine]:
    """Return lines that make a name grow, surest first.

    Among equally sure ones, earlier names go before later ones, then earlier scopes.
    """
    ranked = [
        ((line.strength, -name_rank, -scope_rank, line.in_loop, -position), line)
        for scope_rank, scope in enumerate(scopes)
        for name_rank, name in enumerate(dict.fromkeys(names))
        for position, line in enumerate(_lines_of_name(scope, name))
    ]
    ranked.sort(key=lambda item: item[0], reverse=True)
    lines: dict[tuple[str, int], SourceLine] = {}
    for _, line in ranked:
        lines.setdefault((line.file, line.line), line)
    return list(lines.values())


def _lines_of_name(scope: SourceScope, name: str) -> Iterator[SourceLine]:
    root = root_of(scope)
    names = {name, *_aliases(root, name)}
    derived = names | _derived_variables(root, names)
    for node, parents in walk(root):
        if isinstance(node, ast.stmt):
            strength = _strength(node, names, parents, name)
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if strength == SETS and value is not None and uses(value, derived):
                strength = GROWS  # set to something computed from itself
            if strength:
                yield source_line(scope.file, node, strength, parents)
            elif isinstance(node, ast.Expr | ast.Assign | ast.Return | ast.AugAssign):
                yield from _passing_lines(scope.file, node, names, parents)
        elif isinstance(node, ast.NamedExpr) and node.target.id in names:
            yield source_line(scope.file, node, SETS, parents)


def _strength(node: ast.stmt, names: set[str], parents: Parents, name: str) -> int:
    """Return how surely a statement makes the names grow, 0 if it doesn't."""
    if isinstance(node, ast.Expr):
        return GROWS * _adds(node.value, names)
    if isinstance(node, ast.AugAssign):
        return GROWS * any(is_mention(part, names) for part in assignment_targets(node))
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return 0
    targets = assignment_targets(node)
    items = [part.value for part in targets if isinstance(part, ast.Subscript)]
    if _adds(node.value, names) or any(is_mention(item, names) for item in items):
        return GROWS
    if not any(is_mention(part, {name}) for part in targets):
        return 0
    return GROWS if uses(node.value, names) else SETS * _runs_often(parents)


def _adds(call: ast.expr, names: set[str]) -> bool:
    """Return True if a call adds something to one of the names."""
    if isinstance(call, ast.Await):
        return _adds(call.value, names)
    if not isinstance(call, ast.Call):
        return False
    function, arguments, called = call.func, call.args, function_name(call)
    if called in ("register_buffer", "setattr"):
        # The attribute's name is a string: `setattr(module, "name", value)`.
        place = 0 if called == "register_buffer" else 1
        return (
            len(arguments) > place + 1
            and is_key(arguments[place], names)
            and uses(arguments[place + 1], names)
        )
    is_method = isinstance(function, ast.Attribute) and called in _ADDING_METHODS
    if is_method and is_mention(function.value, names):  # type: ignore[attr-defined]
        return True
    if called in _ADDING_FUNCTIONS:
        return any(is_mention(item, names) for item in arguments[:1])
    return isinstance(function, ast.Name) and called in names  # an alias: add = name.append


def _passing_lines(
    file: str, node: ast.stmt, names: set[str], parents: Parents
) -> Iterator[SourceLine]:
    """Yield lines of functions that make an argument grow, and calls of storing methods."""
    for call in [part for part in ast.walk(node) if isinstance(part, ast.Call)]:
        function, called = call.func, function_name(call)
        is_method = isinstance(function, ast.Attribute)
        is_storing = is_method and called in _STORING_METHODS
        if is_storing and is_mention(function.value, names):  # type: ignore[attr-defined]
            yield source_line(file, node, PASSES, parents)
        keywords = ((item.arg, item.value) for item in call.keywords)
        for place, argument in [*enumerate(call.args), *keywords]:
            if called and is_mention(argument, names):
                yield from _lines_in_function(file, called, place, is_method=is_method)


def _lines_in_function(
    file: str, called: str, place: int | str | None, *, is_method: bool
) -> Iterator[SourceLine]:
    """Yield the lines in a function of the file that make the parameter at `place` grow."""
    for node, _ in walk(syntax_tree(file)):
        if not isinstance(node, FUNCTIONS) or node.name != called:
            continue
        name = place
        if isinstance(place, int):
            parameters = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
            if is_method and parameters and parameters[0] in ("self", "cls"):
                parameters = parameters[1:]
            name = parameters[place] if place < len(parameters) else None
        if not isinstance(name, str) or not name:
            continue
        for inner, parents in walk(node):
            if isinstance(inner, ast.stmt) and _strength(inner, {name}, parents, name) == GROWS:
                yield source_line(file, inner, PASSES, parents)


def _aliases(root: ast.AST, name: str) -> set[str]:
    """Return variables set from a mention, loop variables, and `add` in `add = name.append`."""
    aliases = set()
    for node, _ in walk(root):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(value, ast.Attribute) and value.attr in _ADDING_METHODS:
                value = value.value
            is_reference = isinstance(value, ast.Name | ast.Attribute | ast.Subscript)
            if isinstance(target, ast.Name) and is_reference and is_mention(value, {name}):
                aliases.add(target.id)
        elif isinstance(node, ast.For) and _is_looped(node.iter, name):
            aliases.update(part.id for part in ast.walk(node.target) if isinstance(part, ast.Name))
    return aliases - {name}


def _derived_variables(root: ast.AST, names: set[str]) -> set[str]:
    """Return variables computed from a mention: `stacked = torch.cat([self.bank, x])`."""
    return {
        target.id
        for node, _ in walk(root)
        if isinstance(node, ast.Assign) and uses(node.value, names)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_looped(value: ast.expr, name: str) -> bool:
    """Return True for `name`, `name.values()`, `enumerate(name)`, `zip(a, name)`."""
    wrappers = ("enumerate", "zip", "reversed", "list")
    if isinstance(value, ast.Call) and function_name(value) in wrappers:
        return any(_is_looped(argument, name) for argument in value.args)
    return is_mention(value, {name})


def _runs_often(parents: Parents) -> bool:
    """Return True in a loop, or in a function other than `__init__` and `main`."""
    functions = [item.name for item in parents if isinstance(item, FUNCTIONS)]
    return is_in_loop(parents) or bool(functions and functions[-1] not in ("__init__", "main"))
