"""The line that makes something grow, found in the script's source.

A name is a variable's, or with a leading dot that of an attribute or key. A *mention* of `.cache`
is `x.cache` or `x["cache"]`; a variable assigned from a mention (`items = self.cache`, `for item in
cache`) counts as one, too. Statements rank by how surely they make the named object grow:

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
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

GROWS, PASSES, SETS = 3, 2, 1

ADDING_METHODS = frozenset(
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
_HOOK_REGISTRATION = re.compile(
    r"register_(module_)?(full_)?(forward|backward|hook|post_accumulate).*"
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)

_Parents = tuple[ast.AST, ...]


@dataclass(frozen=True)
class SourceLine:
    """A statement. `function` is "<module>" outside of functions and classes."""

    file: str
    line: int
    function: str
    strength: int
    """GROWS, PASSES or SETS."""
    in_loop: bool
    text: str


@dataclass(frozen=True)
class SourceScope:
    """A part of a file: the function that begins at `first_line`, the class `name`, or all."""

    file: str
    first_line: int | None = None
    name: str = ""


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


def first_assignment(scope: SourceScope, name: str) -> SourceLine | None:
    """Return the first statement that sets a variable or an attribute, growing or not."""
    for node, parents in _walk(_root_of(scope)):
        if isinstance(node, _ASSIGNMENTS):
            targets = [part for target in _targets(node) for part in _unpacked(target)]
            if any(_is_mention(part, {name}) for part in targets):
                return _source_line(scope.file, node, SETS, parents)
    return None


def calls_with(file: str, keyword: str) -> list[SourceLine]:
    """Return calls with `keyword=True`."""

    def passes_keyword(call: ast.Call) -> bool:
        return any(
            item.arg == keyword
            and isinstance(item.value, ast.Constant)
            and item.value.value is True
            for item in call.keywords
        )

    return _calls(file, passes_keyword, SETS)


def hook_calls(file: str) -> list[SourceLine]:
    """Return calls of `register_forward_hook` and the like."""
    return _calls(
        file, lambda call: _HOOK_REGISTRATION.fullmatch(_function_name(call)) is not None, GROWS
    )


def is_hook(file: str, function: str) -> bool:
    """Return True if the source passes this function to something like `register_forward_hook`."""
    name = function.rpartition(".")[2]

    def registers_it(call: ast.Call) -> bool:
        return (
            isinstance(call.func, ast.Attribute)
            and "hook" in call.func.attr
            and any(
                (isinstance(part, ast.Name) and part.id == name)
                or (isinstance(part, ast.Attribute) and part.attr == name)
                for argument in call.args
                for part in ast.walk(argument)
            )
        )

    return bool(_calls(file, registers_it, GROWS))


def attribute_assignments(file: str, class_name: str, attribute: str) -> list[SourceLine]:
    """Return statements `anything.attribute = x` inside a class; in the file if it's not found."""
    module = syntax_tree(file)
    classes = (node for node, _ in _walk(module) if isinstance(node, ast.ClassDef))
    root = next((node for node in classes if node.name == class_name), module)
    return [
        _source_line(file, node, GROWS, parents)
        for node, parents in _walk(root)
        if isinstance(node, _ASSIGNMENTS)
        and any(
            isinstance(part, ast.Attribute) and part.attr == attribute
            for target in _targets(node)
            for part in ast.walk(target)
        )
    ]


@lru_cache(maxsize=64)
def syntax_tree(file: str) -> ast.Module:
    """Return a file's syntax tree, empty if it can't be read."""
    try:
        # linecache also has the cells of a notebook
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def clear_cache() -> None:
    """Drop the syntax trees: megabytes, and objects that slow down the next census."""
    syntax_tree.cache_clear()


# -- one name in one scope ----------------------------------------------------------------------


def _lines_of_name(scope: SourceScope, name: str) -> Iterator[SourceLine]:
    root = _root_of(scope)
    names = {name, *_aliases(root, name)}
    derived = names | _derived_variables(root, names)
    for node, parents in _walk(root):
        if isinstance(node, ast.stmt):
            strength = _strength(node, names, parents, name)
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if strength == SETS and value is not None and _uses(value, derived):
                strength = GROWS  # set to something computed from itself
            if strength:
                yield _source_line(scope.file, node, strength, parents)
            elif isinstance(node, ast.Expr | ast.Assign | ast.Return | ast.AugAssign):
                yield from _passing_lines(scope.file, node, names, parents)
        elif isinstance(node, ast.NamedExpr) and node.target.id in names:
            yield _source_line(scope.file, node, SETS, parents)


def _root_of(scope: SourceScope) -> ast.AST:
    """Return the scope's function or class with all that's nested in it, else the file."""
    module = syntax_tree(scope.file)
    if scope.first_line is None and not scope.name:
        return module
    for node, _ in _walk(module):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", ())
            first_line = min([node.lineno, *(item.lineno for item in decorators)])
            has_name = scope.name and getattr(node, "name", "") == scope.name
            if first_line == scope.first_line or has_name:
                return node
    return module


def _strength(node: ast.stmt, names: set[str], parents: _Parents, name: str) -> int:
    """Return how surely a statement makes the names grow, 0 if it doesn't."""
    if isinstance(node, ast.Expr):
        return GROWS * _adds(node.value, names)
    if isinstance(node, ast.AugAssign):
        return GROWS * any(_is_mention(part, names) for part in _unpacked(node.target))
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return 0
    targets = [part for target in _targets(node) for part in _unpacked(target)]
    items = [part.value for part in targets if isinstance(part, ast.Subscript)]
    if _adds(node.value, names) or any(_is_mention(item, names) for item in items):
        return GROWS
    if not any(_is_mention(part, {name}) for part in targets):
        return 0
    return GROWS if _uses(node.value, names) else SETS * _runs_often(parents)


def _adds(call: ast.expr, names: set[str]) -> bool:
    """Return True if a call adds something to one of the names."""
    if isinstance(call, ast.Await):
        return _adds(call.value, names)
    if not isinstance(call, ast.Call):
        return False
    function, arguments, called = call.func, call.args, _function_name(call)
    if called in ("register_buffer", "setattr"):
        # The attribute's name is a string: `setattr(module, "name", value)`.
        place = 0 if called == "register_buffer" else 1
        return (
            len(arguments) > place + 1
            and _is_key(arguments[place], names)
            and _uses(arguments[place + 1], names)
        )
    is_method = isinstance(function, ast.Attribute) and called in ADDING_METHODS
    if is_method and _is_mention(function.value, names):  # type: ignore[attr-defined]
        return True
    if called in _ADDING_FUNCTIONS:
        return any(_is_mention(item, names) for item in arguments[:1])
    return isinstance(function, ast.Name) and called in names  # an alias: add = name.append


def _passing_lines(
    file: str, node: ast.stmt, names: set[str], parents: _Parents
) -> Iterator[SourceLine]:
    """Yield lines of functions that make an argument grow, and calls of storing methods."""
    for call in [part for part in ast.walk(node) if isinstance(part, ast.Call)]:
        function, called = call.func, _function_name(call)
        is_method = isinstance(function, ast.Attribute)
        is_storing = is_method and called in _STORING_METHODS
        if is_storing and _is_mention(function.value, names):  # type: ignore[attr-defined]
            yield _source_line(file, node, PASSES, parents)
        keywords = ((item.arg, item.value) for item in call.keywords)
        for place, argument in [*enumerate(call.args), *keywords]:
            if called and _is_mention(argument, names):
                yield from _lines_in_function(file, called, place, is_method=is_method)


def _lines_in_function(
    file: str, called: str, place: int | str | None, *, is_method: bool
) -> Iterator[SourceLine]:
    """Yield the lines in a function of the file that make the parameter at `place` grow."""
    for node, _ in _walk(syntax_tree(file)):
        if not isinstance(node, _FUNCTIONS) or node.name != called:
            continue
        name = place
        if isinstance(place, int):
            parameters = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
            if is_method and parameters and parameters[0] in ("self", "cls"):
                parameters = parameters[1:]
            name = parameters[place] if place < len(parameters) else None
        if not isinstance(name, str) or not name:
            continue
        for inner, parents in _walk(node):
            if isinstance(inner, ast.stmt) and _strength(inner, {name}, parents, name) == GROWS:
                yield _source_line(file, inner, PASSES, parents)


def _aliases(root: ast.AST, name: str) -> set[str]:
    """Return variables set from a mention, loop variables, and `add` in `add = name.append`."""
    aliases = set()
    for node, _ in _walk(root):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(value, ast.Attribute) and value.attr in ADDING_METHODS:
                value = value.value
            is_reference = isinstance(value, ast.Name | ast.Attribute | ast.Subscript)
            if isinstance(target, ast.Name) and is_reference and _is_mention(value, {name}):
                aliases.add(target.id)
        elif isinstance(node, ast.For) and _is_looped(node.iter, name):
            aliases.update(part.id for part in ast.walk(node.target) if isinstance(part, ast.Name))
    return aliases - {name}


def _derived_variables(root: ast.AST, names: set[str]) -> set[str]:
    """Return variables computed from a mention: `stacked = torch.cat([self.bank, x])`."""
    return {
        target.id
        for node, _ in _walk(root)
        if isinstance(node, ast.Assign) and _uses(node.value, names)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_looped(value: ast.expr, name: str) -> bool:
    """Return True for `name`, `name.values()`, `enumerate(name)`, `zip(a, name)`."""
    wrappers = ("enumerate", "zip", "reversed", "list")
    if isinstance(value, ast.Call) and _function_name(value) in wrappers:
        return any(_is_looped(argument, name) for argument in value.args)
    return _is_mention(value, {name})


# -- mentions -----------------------------------------------------------------------------------


def _is_mention(node: ast.expr, names: set[str]) -> bool:
    """Return True for a name and what it leads to: `name[key]`, `name.setdefault(key, [])`."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return "." + node.attr in names or _is_mention(node.value, names)
    if isinstance(node, ast.Subscript):
        return _is_key(node.slice, names) or _is_mention(node.value, names)
    if isinstance(node, ast.Call):
        if _function_name(node) in ("getattr", "vars"):
            return any(_is_key(item, names) for item in node.args)
        return isinstance(node.func, ast.Attribute) and _is_mention(node.func.value, names)
    return isinstance(node, ast.Starred) and _is_mention(node.value, names)


def _uses(value: ast.expr, names: set[str]) -> bool:
    return any(_is_mention(part, names) for part in ast.walk(value) if isinstance(part, ast.expr))


def _is_key(node: ast.expr, names: set[str]) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text and "." + node.value in names  # type: ignore[attr-defined]


def _function_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


# -- the syntax tree ----------------------------------------------------------------------------


def _walk(root: ast.AST) -> Iterator[tuple[ast.AST, _Parents]]:
    """Yield every node with its parents, in the order of the source."""
    todo: list[tuple[ast.AST, _Parents]] = [(root, ())]
    while todo:
        node, parents = todo.pop()
        yield node, parents
        inner = (*parents, node)
        # a stack: reversed, so that the first child is next
        todo.extend((child, inner) for child in reversed(list(ast.iter_child_nodes(node))))


def _calls(file: str, matches: Callable[[ast.Call], bool], strength: int) -> list[SourceLine]:
    return [
        _source_line(file, node, strength, parents)
        for node, parents in _walk(syntax_tree(file))
        if isinstance(node, ast.Call) and matches(node)
    ]


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    return list(node.targets) if isinstance(node, ast.Assign) else [node.target]


def _unpacked(target: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of an assignment's target: `a` and `b` of `a, *b = ...`."""
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _unpacked(item)
    elif isinstance(target, ast.Starred):
        yield from _unpacked(target.value)
    else:
        yield target


def _runs_often(parents: _Parents) -> bool:
    """Return True in a loop, or in a function other than `__init__` and `main`."""
    functions = [item.name for item in parents if isinstance(item, _FUNCTIONS)]
    return _is_in_loop(parents) or bool(functions and functions[-1] not in ("__init__", "main"))


def _is_in_loop(parents: _Parents) -> bool:
    return any(isinstance(item, ast.For | ast.While | ast.AsyncFor) for item in parents)


def _source_line(file: str, node: ast.AST, strength: int, parents: _Parents) -> SourceLine:
    names = [item.name for item in parents if isinstance(item, (*_FUNCTIONS, ast.ClassDef))]
    number = int(getattr(node, "lineno", 0))
    function, text = ".".join(names) or "<module>", linecache.getline(file, number).strip()
    return SourceLine(file, number, function, strength, _is_in_loop(parents), text)
