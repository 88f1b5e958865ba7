"""The line that makes something grow: read from the script's source, given the names that lead to what grows.

A name is a variable's, or with a dot before it that of an attribute or key. A *mention* is the variable (`kept`), the attribute or key
(`x.kept`, `x["kept"]`), or a variable that was set from one (`mine = self.kept`, `for mine in kept`).
Statements count by how surely they make it grow:

1. GROWS: a method that adds (`name.append(x)`, `name[key].append(x)`, `name.setdefault(key, []).add(x)`), `name[key] = x`, `name += ...`,
   `heappush(name, x)`; `name = name + x`, `name = torch.cat([name, x])`, `a, name = cell(x, name)`, `register_buffer("name", ...)`.
2. PASSES: `name` is given to a function that makes its parameter grow (that function's line), or asked to do something
   (`metric.update(x)`).
3. SETS: `name = x` inside a loop or a function other than `__init__`.

Of equals the one inside a loop comes first, then the one in the function that owns the name.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

GROWS, PASSES, SETS = 3, 2, 1

ADDING = frozenset(
    ("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put", "put_nowait", "push", "heappush",
     "insort", "insort_left", "insort_right", "register_buffer", "__setitem__", "add_param_group", "add_", "cat_", "index_add_")
)  # fmt: skip
_ASKING = frozenset(
    ("update", "add", "log", "record", "store", "write", "append", "push", "collect", "save", "remember", "observe", "compute", "forward",
     "__call__", "track", "put")
)  # fmt: skip
_HOOKING = re.compile(r"register_(module_)?(full_)?(forward|backward|hook|post_accumulate).*")
_ADDING_FUNCTIONS = frozenset(("heappush", "insort", "insort_left", "insort_right", "heappushpop"))


@dataclass(frozen=True)
class Line:
    """A statement. `strength` is one of GROWS, PASSES, SETS; `function` the function that it is in, "<module>" for none."""

    file: str
    line: int
    function: str
    strength: int
    in_loop: bool
    text: str


@dataclass(frozen=True)
class Scope:
    """A part of a file to look in: the function or class that begins at `first_line` (the whole file for None). A `local` name counts as a
    variable only, and any other as an attribute or key too."""

    file: str
    first_line: int | None = None
    name: str = ""


def growing(scopes: Sequence[Scope], names: Sequence[str]) -> list[Line]:
    """Lines that make it grow, surest first. Names nearest to what grows go before those further off, earlier scopes before later ones,
    but what surely grows before all."""
    found = [
        (line.strength, line.in_loop, -name_rank, -scope_rank, -position, line)
        for scope_rank, scope in enumerate(scopes)
        for name_rank, name in enumerate(dict.fromkeys(names))
        for position, line in enumerate(_lines(scope, name))
    ]
    ranked = sorted(
        found, key=lambda item: (item[0], item[2], item[3], item[1], item[4]), reverse=True
    )
    lines: dict[tuple[str, int], Line] = {}
    for *_, line in ranked:
        lines.setdefault((line.file, line.line), line)
    return list(lines.values())


def setting(scope: Scope, name: str) -> Line | None:
    """The first statement that gives a variable or an attribute its value, growing or not."""
    for node, parents in _walk(_root(scope)):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = [part for target in _targets(node) for part in _parts(target)]
            if any(_is_mention(part, {name}) for part in targets):
                return _line(scope.file, node, SETS, parents)
    return None


def calls_with(file: str, keyword: str) -> list[Line]:
    """Calls that are given `keyword=True`."""
    return [
        _line(file, node, SETS, parents)
        for node, parents in _walk(tree(file))
        if isinstance(node, ast.Call)
        and any(
            item.arg == keyword
            and isinstance(item.value, ast.Constant)
            and item.value.value is True
            for item in node.keywords
        )
    ]


def attribute_sets(file: str, name: str, attribute: str) -> list[Line]:
    """`anything.attribute = x` inside the class or function `name`."""
    root = next(
        (
            node
            for node, _ in _walk(tree(file))
            if isinstance(node, ast.ClassDef) and node.name == name
        ),
        tree(file),
    )
    return [
        _line(file, node, GROWS, parents)
        for node, parents in _walk(root)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        and any(
            isinstance(part, ast.Attribute) and part.attr == attribute
            for target in _targets(node)
            for part in ast.walk(target)
        )
    ]


def is_hook(file: str, function: str) -> bool:
    """Whether the source hands this function to something like `register_forward_hook`."""
    name = function.rpartition(".")[2]
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and "hook" in node.func.attr
        and any(
            (isinstance(part, ast.Name) and part.id == name)
            or (isinstance(part, ast.Attribute) and part.attr == name)
            for argument in node.args
            for part in ast.walk(argument)
        )
        for node, _ in _walk(tree(file))
    )


def hook_calls(file: str) -> list[Line]:
    """Calls of `register_forward_hook` and its like."""
    return [
        _line(file, node, GROWS, parents)
        for node, parents in _walk(tree(file))
        if isinstance(node, ast.Call) and _HOOKING.fullmatch(_called(node.func))
    ]


@lru_cache(maxsize=64)
def tree(file: str) -> ast.Module:
    """A file's syntax tree; an empty one for what cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def forget() -> None:
    """Let go of the syntax trees: megabytes, and objects that a later census would have to pass."""
    tree.cache_clear()


# -- one name in one scope ----------------------------------------------------------------------------------------------------


def _lines(scope: Scope, name: str) -> Iterator[Line]:
    root = _root(scope)
    names = {name, *_aliases(root, name)}
    derived = names | _derived(root, names)
    for node, parents in _walk(root):
        if isinstance(node, ast.stmt):
            strength = _strength(node, names, parents, name)
            if (
                strength == SETS
                and isinstance(node, ast.Assign | ast.AnnAssign)
                and node.value is not None
            ):
                strength = GROWS if _is_used(node.value, derived) else SETS
            if strength:
                yield _line(scope.file, node, strength, parents)
            elif isinstance(node, ast.Expr | ast.Assign | ast.Return | ast.AugAssign):
                yield from _passed(scope.file, node, names, parents)
        elif isinstance(node, ast.NamedExpr) and node.target.id in names:
            yield _line(scope.file, node, SETS, parents)


def _root(scope: Scope) -> ast.AST:
    """The function or class, with what is nested in it; the file if it is not found."""
    if scope.first_line is None and not scope.name:
        return tree(scope.file)
    for node, _ in _walk(tree(scope.file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            first = min(
                [node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))]
            )
            if first == scope.first_line or (
                scope.name and getattr(node, "name", "") == scope.name
            ):
                return node
    return tree(scope.file)


def _strength(node: ast.stmt, names: set[str], parents: Sequence[ast.AST], name: str) -> int:
    if isinstance(node, ast.Expr):
        return GROWS * _adds(node.value, names)
    if isinstance(node, ast.AugAssign):
        return GROWS * _mentions_target(node.target, names)
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        return _strength_of_setting(node, node.value, names, parents, name)
    return 0


def _strength_of_setting(
    node: ast.Assign | ast.AnnAssign,
    value: ast.expr,
    names: set[str],
    parents: Sequence[ast.AST],
    name: str,
) -> int:
    targets = [part for target in _targets(node) for part in _parts(target)]
    if _adds(value, names) or any(
        isinstance(part, ast.Subscript) and _is_mention(part.value, names) for part in targets
    ):
        return GROWS
    if not any(_is_mention(part, {name}) for part in targets):
        return 0
    return GROWS if _is_used(value, names) else SETS * _runs_often(parents)


def _adds(call: ast.expr, names: set[str]) -> bool:
    if isinstance(call, ast.Await):
        return _adds(call.value, names)
    if not isinstance(call, ast.Call):
        return False
    function, arguments = call.func, call.args
    called = _called(function)
    if called in (
        "register_buffer",
        "setattr",
    ):  # setattr(module, "name", value), module.register_buffer("name", value)
        place = 0 if called == "register_buffer" else 1
        return (
            len(arguments) > place + 1
            and _is_constant(arguments[place], names)
            and _is_used(arguments[place + 1], names)
        )
    if (
        isinstance(function, ast.Attribute)
        and called in ADDING
        and _is_mention(function.value, names)
    ):
        return True
    if called in _ADDING_FUNCTIONS:
        return any(_is_mention(item, names) for item in arguments[:1])
    return isinstance(function, ast.Name) and called in names


def _called(function: ast.expr) -> str:
    return (
        function.attr
        if isinstance(function, ast.Attribute)
        else function.id
        if isinstance(function, ast.Name)
        else ""
    )


def _passed(
    file: str, node: ast.stmt, names: set[str], parents: Sequence[ast.AST]
) -> Iterator[Line]:
    """The line in a function of this file that makes the parameter grow to which the name is given; else a call that asks it."""
    for call in [part for part in ast.walk(node) if isinstance(part, ast.Call)]:
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr in _ASKING
            and _is_mention(function.value, names)
        ):
            yield _line(file, node, PASSES, parents)
        called = _called(function)
        for place, argument in [
            *enumerate(call.args),
            *((item.arg, item.value) for item in call.keywords),
        ]:
            if called and _is_mention(argument, names):
                yield from _inside(file, called, place, isinstance(function, ast.Attribute))


def _inside(file: str, called: str, place: int | str | None, is_method: bool) -> Iterator[Line]:
    for node, _ in _walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == called:
            parameters = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
            if is_method and parameters and parameters[0] in ("self", "cls"):
                parameters = parameters[1:]
            name = (
                place
                if isinstance(place, str)
                else parameters[place]
                if isinstance(place, int) and place < len(parameters)
                else None
            )
            for inner, parents in _walk(node):
                if (
                    name
                    and isinstance(inner, ast.stmt)
                    and _strength(inner, {name}, parents, name) == GROWS
                ):
                    yield _line(file, inner, PASSES, parents)


def _aliases(root: ast.AST, name: str) -> set[str]:
    """Variables set from a mention of the name, loops over it, and methods taken from it: `add = kept.append`."""
    found = set()
    for node, _ in _walk(root):
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            value = node.value
            taken = (
                value.value if isinstance(value, ast.Attribute) and value.attr in ADDING else value
            )
            if isinstance(taken, ast.Name | ast.Attribute | ast.Subscript) and _is_mention(
                taken, {name}
            ):
                found.add(node.targets[0].id)
        elif isinstance(node, ast.For) and _is_looped(node.iter, name):
            found.update(part.id for part in ast.walk(node.target) if isinstance(part, ast.Name))
    return found - {name}


def _derived(root: ast.AST, names: set[str]) -> set[str]:
    """Variables computed from a mention: `stacked = torch.cat([self.bank, x])`, which is then set."""
    return {
        target.id
        for node, _ in _walk(root)
        if isinstance(node, ast.Assign) and _is_used(node.value, names)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_looped(value: ast.expr, name: str) -> bool:
    """`name`, `name.values()`, `enumerate(name)`, `zip(a, name)`."""
    if isinstance(value, ast.Call) and _called(value.func) in (
        "enumerate",
        "zip",
        "reversed",
        "list",
    ):
        return any(_is_looped(argument, name) for argument in value.args)
    return _is_mention(value, {name})


# -- mentions -----------------------------------------------------------------------------------------------------------------


def _is_mention(node: ast.expr, names: set[str]) -> bool:
    """The thing itself, and what is reached from it: `name[key]`, `name.values`, `name.setdefault(key, [])`."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return "." + node.attr in names or _is_mention(node.value, names)
    if isinstance(node, ast.Subscript):
        return _is_constant(node.slice, names) or _is_mention(node.value, names)
    if isinstance(node, ast.Call):
        if _called(node.func) in ("getattr", "vars"):
            return any(_is_constant(item, names) for item in node.args)
        return isinstance(node.func, ast.Attribute) and _is_mention(node.func.value, names)
    return isinstance(node, ast.Starred) and _is_mention(node.value, names)


def _is_used(value: ast.expr, names: set[str]) -> bool:
    return any(_is_mention(part, names) for part in ast.walk(value) if isinstance(part, ast.expr))


def _is_constant(node: ast.expr, names: set[str]) -> bool:
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and "." + node.value in names
    )


def _mentions_target(node: ast.expr, names: set[str]) -> bool:
    return any(_is_mention(part, names) for part in _parts(node))


def _targets(node: ast.stmt) -> list[ast.expr]:
    return list(node.targets) if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _parts(item)
    elif isinstance(target, ast.Starred):
        yield from _parts(target.value)
    else:
        yield target


# -- the tree -----------------------------------------------------------------------------------------------------------------


def _walk(root: ast.AST) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Every node with those above it, in the order of the source."""
    todo: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(root, ())]
    while todo:
        node, parents = todo.pop()
        yield node, parents
        inner = (*parents, node)
        todo.extend((child, inner) for child in reversed(list(ast.iter_child_nodes(node))))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _runs_often(parents: Sequence[ast.AST]) -> bool:
    """In a loop, or in a function that is no constructor."""
    functions = [item.name for item in parents if isinstance(item, _FUNCTIONS)]
    return _in_loop(parents) or bool(functions and functions[-1] not in ("__init__", "main"))


def _in_loop(parents: Sequence[ast.AST]) -> bool:
    return any(isinstance(item, ast.For | ast.While | ast.AsyncFor) for item in parents)


def _line(file: str, node: ast.AST, strength: int, parents: Iterable[ast.AST]) -> Line:
    above = list(parents)
    named = [item.name for item in above if isinstance(item, (*_FUNCTIONS, ast.ClassDef))]
    number = int(getattr(node, "lineno", 0))
    return Line(
        file,
        number,
        ".".join(named) or "<module>",
        strength,
        _in_loop(above),
        linecache.getline(file, number).strip(),
    )
