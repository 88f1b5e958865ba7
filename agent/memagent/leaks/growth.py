"""The line that makes something grow, found in the script's source.

`syntax` defines names and mentions. A variable assigned from a mention (`items = self.cache`, `for
item in cache`) counts as one, too, and so does a function that returns one. Statements rank by how
surely they make the named object grow:

1. GROWS: a method that adds (`name.append(x)`, `name[key].append(x)`, `name.setdefault(key,
   []).add(x)`), that method as a callback (`register_hook(name.append)`), `name[key] = x`, `name +=
   ...`, `heappush(name, x)`; `name = name + x`, `name = torch.cat([name, x])`, `a, name = cell(x,
   name)`, `register_buffer("name", ...)`; `raise name`: its traceback grows.
2. PASSES: `name` is passed to a function or class that makes its parameter grow (that function's
   line), or is asked to take something in (`metric.update(x)`), or a constant key of it is set.
3. SETS: `name = x` inside a loop or a function other than `__init__`.

Among equals, a statement in a loop comes first, then one in the function that owns the name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from memagent.leaks.aliases import (
    ADDING_METHODS,
    accessors,
    aliases_of,
    copies_of,
    derived_variables,
    functions_with,
    writers_of,
)
from memagent.leaks.growing_statements import (
    adds_items,
    changes_in_place,
    fills_new_object,
    growth_strength,
    is_reference,
    runs_once,
)
from memagent.leaks.source_lines import (
    GROWS,
    PASSES,
    SETS,
    SourceLine,
    SourceScope,
    root_of,
    source_line,
)
from memagent.leaks.syntax import (
    FUNCTIONS,
    Parents,
    assignment_targets,
    function_name,
    is_mention,
    read_once,
    syntax_tree,
    uses,
    walk,
)

_STORING_METHODS = frozenset(
    (
        *("update", "add", "log", "record", "store", "write", "append", "push", "put", "collect"),
        *("save", "remember", "observe", "track", "compute", "forward", "__call__"),
    )
)
_WRITING_METHODS = frozenset(
    ("write", "writelines", "writerow", "writerows", "writeheader", "dump", "save", "append", "add")
)
_STREAM_PLACES: dict[str, tuple[int | str | None, ...]] = {
    "print": ("file",),
    **dict.fromkeys(("dump", "save"), (1, "f", "fp", "file")),
}
"""Places and names of the stream that functions write to: `torch.save(net, stream)`."""
_NUMPY = {"np", "numpy"}
_MAX_CALLS = 4
"""Calls that a parameter is followed through."""


def growing_lines(scopes: Sequence[SourceScope], names: Sequence[str]) -> list[SourceLine]:
    """Return lines that make a name grow, surest first.

    Among equally sure ones, earlier names go before later ones, then earlier scopes.
    """
    ranked = [
        ((_certainty(line), -name_rank, -scope_rank, line.in_loop, -position), line)
        for scope_rank, scope in enumerate(scopes)
        for name_rank, name in enumerate(dict.fromkeys(names))
        for position, line in enumerate(_known_lines(scope, name))
    ]
    ranked.sort(key=lambda item: item[0], reverse=True)
    lines: dict[tuple[str, int], SourceLine] = {}
    for _, line in ranked:
        lines.setdefault((line.file, line.line), line)
    return list(lines.values())


def _certainty(line: SourceLine) -> int:
    return SETS if runs_once(line) else line.strength


def lines_adding_to_self(scope: SourceScope) -> list[SourceLine]:
    """Return statements of a collection's class that add to it: `self[key] = x`."""
    return [
        source_line(scope.file, node, GROWS, parents)
        for node, parents in walk(root_of(scope))
        if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign) and _adds_to_self(node)
    ]


def _adds_to_self(node: ast.Expr | ast.Assign | ast.AugAssign) -> bool:
    if not isinstance(node, ast.Expr):
        targets = assignment_targets(node)
        return any(isinstance(part, ast.Subscript) and _is_self(part.value) for part in targets)
    call = node.value
    is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    return (
        is_method
        and function_name(call) in ADDING_METHODS  # type: ignore[arg-type]
        and _is_self(call.func.value)  # type: ignore[attr-defined]
    )


def _is_self(node: ast.expr) -> bool:
    """Return True for `self` and `super()`."""
    if isinstance(node, ast.Call):
        return function_name(node) == "super"
    return isinstance(node, ast.Name) and node.id == "self"


@read_once
def _known_lines(scope: SourceScope, name: str) -> tuple[SourceLine, ...]:
    return tuple(_lines_of_name(scope, name))


def _lines_of_name(scope: SourceScope, name: str) -> Iterator[SourceLine]:
    root = root_of(scope)
    names = {name, *accessors(scope.file, name)}
    aliases = aliases_of(root, names)
    names |= aliases
    derived = names | derived_variables(root, names)
    wrappers = functions_with(root, derived)
    writers = writers_of(root, names)
    for node, parents in walk(root):
        if isinstance(node, ast.stmt):
            strength = growth_strength(node, names, parents, name)
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            uses_itself = value is not None and (
                (uses(value, derived) and not is_reference(value, names))
                or (isinstance(value, ast.Name) and value.id in wrappers)
            )
            if strength == SETS and uses_itself:
                strength = GROWS
            uses_itself |= changes_in_place(node, aliases)
            if fills_new_object(node, parents, name):
                strength = min(strength, SETS)
            if strength:
                line = source_line(scope.file, node, strength, parents)
                inner = _lines_in_value(scope.file, value, names, parents)
                yield from inner or [replace(line, uses_itself=uses_itself)]
            elif isinstance(node, ast.Expr | ast.Assign | ast.Return | ast.AugAssign):
                yield from _passing_lines(scope.file, node, names, parents)
                if any(_writes(part, writers) for part in ast.walk(node)):
                    yield source_line(scope.file, node, PASSES, parents)
        elif isinstance(node, ast.NamedExpr) and node.target.id in names:
            yield source_line(scope.file, node, SETS, parents)


def _writes(node: ast.AST, writers: set[str]) -> bool:
    """Return True for `writer.writerow(x)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _WRITING_METHODS
        and is_mention(node.func.value, writers)
    )


def _lines_in_value(
    file: str, value: ast.expr | None, names: set[str], parents: Parents
) -> list[SourceLine]:
    """Return the lines of a function that adds items to what it's passed: `state = add(state)`."""
    if not isinstance(value, ast.Call):
        return []
    lines = _passing_lines(file, ast.Expr(value), names, parents, are_items=True)
    return [replace(line, strength=GROWS) for line in lines]


def _passing_lines(
    file: str,
    node: ast.stmt,
    names: set[str],
    parents: Parents,
    calls: int = _MAX_CALLS,
    *,
    are_items: bool = False,
) -> Iterator[SourceLine]:
    """Yield lines of functions that make an argument grow, and calls of storing methods.

    are_items: only those that add items to it.
    """
    for call in [part for part in ast.walk(node) if isinstance(part, ast.Call)]:
        function, called = call.func, function_name(call)
        is_method = isinstance(function, ast.Attribute)
        is_storing = is_method and called in _STORING_METHODS
        if is_storing and not are_items and is_mention(function.value, names):  # type: ignore[attr-defined]
            yield source_line(file, node, PASSES, parents)
        keywords = ((item.arg, item.value) for item in call.keywords)
        arguments = call.args
        if called == "partial" and arguments:
            function, *arguments = arguments
            is_method = isinstance(function, ast.Attribute)
            called = getattr(function, "attr", "") or getattr(function, "id", "")
        for place, argument in [*enumerate(arguments), *keywords]:
            is_stream = _is_stream(function, called, place, arguments) and not are_items
            if is_stream and is_mention(argument, names):
                yield source_line(file, node, PASSES, parents)
            if called and calls and is_mention(argument, names):
                yield from _lines_in_function(
                    file, called, place, calls - 1, is_method=is_method, are_items=are_items
                )


def _is_stream(
    function: ast.expr, called: str, place: int | str | None, arguments: Sequence[ast.expr]
) -> bool:
    """Return True for the argument that a function writes to.

    numpy's `save(file, rows)` takes the file first, as others do that get its name.
    """
    if place not in _STREAM_PLACES.get(called, ()):
        return False
    if place != 1:
        return True
    first = arguments[0]
    is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
    is_numpy = isinstance(function, ast.Attribute) and is_mention(function.value, _NUMPY)
    return not is_text and not isinstance(first, ast.JoinedStr) and not is_numpy


def _lines_in_function(
    file: str,
    called: str,
    place: int | str | None,
    calls: int,
    *,
    is_method: bool,
    are_items: bool = False,
) -> Iterator[SourceLine]:
    """Yield the lines in a function of the file that make the parameter at `place` grow.

    A class passes its arguments to `__init__`, and its attributes may be set to them.
    """
    for node, outer in walk(syntax_tree(file)):
        owner = outer[-1] if outer and isinstance(outer[-1], ast.ClassDef) else None
        is_constructor = owner is not None and owner.name == called
        wanted = "__init__" if is_constructor else called
        if not isinstance(node, FUNCTIONS) or node.name != wanted:
            continue
        is_method |= is_constructor
        name = place
        if isinstance(place, int):
            parameters = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
            if is_method and parameters and parameters[0] in ("self", "cls"):
                parameters = parameters[1:]
            name = parameters[place] if place < len(parameters) else None
        if not isinstance(name, str) or not name:
            continue
        yield from _lines_of_parameter(file, node, name, calls, are_items=are_items)
        if is_constructor and owner is not None:
            for attribute in _attributes_set_to(node, name):
                yield from _lines_of_parameter(file, owner, attribute, 0, are_items=are_items)


def _lines_of_parameter(
    file: str, root: ast.AST, name: str, calls: int, *, are_items: bool = False
) -> Iterator[SourceLine]:
    names = {name, *copies_of(root, {name})}
    names |= aliases_of(root, names)
    for node, parents in walk(root):
        if not isinstance(node, ast.stmt):
            continue
        strength = growth_strength(node, names, parents, name)
        if strength == GROWS and (not are_items or adds_items(node, names)):
            yield source_line(file, node, PASSES, parents)
        elif isinstance(node, ast.Expr | ast.Assign | ast.Return):
            yield from _passing_lines(file, node, names, parents, calls, are_items=are_items)


def _attributes_set_to(function: ast.AST, name: str) -> list[str]:
    """Return `.data` for `self.data = name`."""
    return [
        f".{target.attr}"
        for node, _ in walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
        for target in node.targets
        if node.value.id == name and isinstance(target, ast.Attribute)
    ]
