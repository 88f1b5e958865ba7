"""Statements and calls in a script's source, with their function, file and text."""

from __future__ import annotations

import ast
import linecache
import re
import tokenize
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from memagent.leaks.syntax import (
    ASSIGNMENTS,
    FUNCTIONS,
    Parents,
    assignment_targets,
    content,
    function_name,
    is_mention,
    mention_of,
    read_once,
    syntax_tree,
    uses,
    walk,
)

GROWS, PASSES, SETS = 3, 2, 1
"""How surely a statement makes an object grow; `growth` has the rules."""

_HOOK_REGISTRATION = re.compile(
    r"register_(module_)?(full_)?(forward|backward|hook|post_accumulate).*"
)


_KEEPING_CALLS = frozenset(
    ("register", "callback", "enter_context", "finalize", "call_soon", "call_later", "create_task")
)


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
    uses_itself: bool = False
    """True for a statement that computes what it assigns from what was there, or adds in place."""
    keeps: bool = False
    """True for a call that keeps its arguments where Python sees no container."""


@dataclass(frozen=True)
class SourceScope:
    """A part of a file: the function that begins at `first_line`, the class `name`, or all."""

    file: str
    first_line: int | None = None
    name: str = ""


def first_assignment(scope: SourceScope, name: str) -> SourceLine | None:
    """Return the first statement that sets a variable or an attribute, growing or not."""
    for node, parents in walk(root_of(scope)):
        if any(is_mention(part, {name}) for part in _targets(node)):
            return source_line(scope.file, node, SETS, parents)
    return None


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return what a statement sets, also the variables of `with`."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return assignment_targets(node) if isinstance(node, ASSIGNMENTS) else []


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


def method_calls(file: str, name: str) -> list[SourceLine]:
    """Return calls of any object's method of this name, those in loops first."""
    lines = _calls(file, lambda call: function_name(call) == name, PASSES)
    return sorted(lines, key=lambda line: not line.in_loop)


def hook_calls(file: str, registry: str = "", functions: Collection[str] = ()) -> list[SourceLine]:
    """Return calls of `register_forward_hook` and the like.

    Those that mention one of the functions come first, then those whose name fits the attribute
    that holds the hooks: `_forward_hooks`.
    """
    calls: list[tuple[bool, bool, SourceLine]] = []
    stem = registry.strip("._").removesuffix("s")
    for node, parents in walk(syntax_tree(file)):
        if isinstance(node, ast.Call) and _HOOK_REGISTRATION.fullmatch(function_name(node)):
            mentioned = {name for item in node.args for name in _names_in(item)}
            is_other = mentioned.isdisjoint(functions)
            line = source_line(file, node, GROWS, parents)
            calls.append((is_other, not function_name(node).endswith(stem), line))
    return [line for *_, line in sorted(calls, key=lambda call: call[:2])]


def _names_in(value: ast.expr) -> Iterator[str]:
    for part in ast.walk(value):
        if isinstance(part, ast.Name | ast.Attribute):
            yield part.id if isinstance(part, ast.Name) else part.attr


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
    classes = (node for node, _ in walk(module) if isinstance(node, ast.ClassDef))
    root = next((node for node in classes if node.name == class_name), module)
    return [
        source_line(file, node, GROWS, parents)
        for node, parents in walk(root)
        if isinstance(node, ASSIGNMENTS)
        and any(
            isinstance(part, ast.Attribute) and part.attr == attribute
            for target in assignment_targets(node)
            for part in ast.walk(target)
        )
    ]


def calls(line: SourceLine, name: str) -> bool:
    """Return True if a statement at a line calls a function or class of that name."""
    statements = (node for node, _ in content(line.file).by_line.get(line.line, ()))
    parts = (part for node in statements for part in ast.walk(node))
    return any(isinstance(part, ast.Call) and function_name(part) == name for part in parts)


def later_uses(file: str, node: ast.stmt, parents: Parents) -> Iterator[tuple[ast.stmt, Parents]]:
    """Yield the later statements of a function, or a module, that use what one of them sets.

    Those of `item = make()` are `rows.append(item)` and `yield item`.
    """
    targets = assignment_targets(node) if isinstance(node, ASSIGNMENTS) else []
    names = {part.id for part in targets if isinstance(part, ast.Name)}
    scopes = [place for place, item in enumerate(parents) if isinstance(item, FUNCTIONS)]
    scope = parents[max(scopes, default=0)] if parents else None
    known = content(file)
    places = {place for name in names for place in known.readers.get(name, ())}
    for later, outer in (known.nodes[place] for place in sorted(places)):
        # a function may have variables of the same names as its module
        is_here = scope in outer if scopes else not any(map(_is_function, outer))
        if is_here and later.lineno > node.lineno:
            yield later, outer  # type: ignore[misc]


def lines_of_later_uses(file: str, number: int) -> list[SourceLine]:
    """Return the later uses of what the statements at a line set."""
    return [
        replace(source_line(file, later, PASSES, inner), keeps=any(map(_keeps, ast.walk(later))))
        for node, parents in content(file).by_line.get(number, ())
        if isinstance(node, ASSIGNMENTS)
        for later, inner in later_uses(file, node, parents)
    ]


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, FUNCTIONS)


def _keeps(node: ast.AST) -> bool:
    """Return True for `atexit.register(write, item)`."""
    return isinstance(node, ast.Call) and function_name(node) in _KEEPING_CALLS


@read_once
def root_of(scope: SourceScope) -> ast.AST:
    """Return the scope's function or class with all that's nested in it, else the file."""
    module = syntax_tree(scope.file)
    if scope.first_line is None and not scope.name:
        return module
    for node, _ in walk(module):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", ())
            first_line = min([node.lineno, *(item.lineno for item in decorators)])
            has_name = scope.name and getattr(node, "name", "") == scope.name
            if first_line == scope.first_line or has_name:
                return node
    return module


def source_line(file: str, node: ast.AST, strength: int, parents: Parents) -> SourceLine:
    """Return a node of the file's tree as a line of its source."""
    names = [item.name for item in parents if isinstance(item, (*FUNCTIONS, ast.ClassDef))]
    number = int(getattr(node, "lineno", 0))
    function = ".".join(names) or "<module>"
    return SourceLine(
        file, number, function, strength, is_in_loop(parents), code_text(file, number)
    )


def code_text(file: str, number: int) -> str:
    """Return a line of the source without its comment."""
    text = linecache.getline(file, number)
    with suppress(tokenize.TokenError, SyntaxError):  # a part of a statement
        for token in tokenize.generate_tokens(iter([text]).__next__):
            if token.type == tokenize.COMMENT:
                return text[: token.start[1]].strip()
    return text.strip()


def is_in_loop(parents: Parents) -> bool:
    """Return whether one of the parents is a loop."""
    return any(isinstance(item, ast.For | ast.While | ast.AsyncFor) for item in parents)


def _calls(file: str, matches: Callable[[ast.Call], bool], strength: int) -> list[SourceLine]:
    return [
        source_line(file, node, strength, parents)
        for node, parents in walk(syntax_tree(file))
        if isinstance(node, ast.Call) and matches(node)
    ]


def lengthens(file: str, number: int, functions: Collection[int]) -> bool:
    """Return True if the statement at a line makes something anew, longer: `text += "..."`.

    functions: first lines of running functions. A variable of another one ends with its call.
    """
    for node, parents in walk(syntax_tree(file)):
        if not isinstance(node, ast.Assign | ast.AugAssign) or node.lineno != number:
            continue
        targets = assignment_targets(node)
        function = next((item for item in reversed(parents) if isinstance(item, FUNCTIONS)), None)
        ends = function is not None and function.lineno not in functions
        if ends and all(_ends_with(function, part) for part in targets):  # type: ignore[arg-type]
            return False
        names = {mention_of(part) for part in targets}
        return isinstance(node, ast.AugAssign) or uses(node.value, names)
    return False


def _ends_with(function: ast.FunctionDef | ast.AsyncFunctionDef, target: ast.expr) -> bool:
    """Return True for a variable of a function that isn't a generator, and doesn't wait."""
    parts = list(ast.walk(function))
    outer = (part for part in parts if isinstance(part, ast.Global | ast.Nonlocal))
    waits = any(isinstance(part, ast.Yield | ast.YieldFrom | ast.Await) for part in parts)
    is_local = isinstance(target, ast.Name) and not any(target.id in item.names for item in outer)
    return is_local and not waits
