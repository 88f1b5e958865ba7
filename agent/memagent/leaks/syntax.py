"""Syntax trees of source files, and mentions of a name in them.

A name is a variable's, or with a leading dot that of an attribute or key. A *mention* of `.cache`
is `x.cache` or `x["cache"]`, and what it leads to: `x.cache[key]`. With `()` at its end it is that
of a function, and its calls are mentions.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ParamSpec, TypeVar

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.While, ast.AsyncFor)
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)

DYNAMIC = ".*"
"""Name of attributes whose names are computed: `getattr(x, key)`, `vars(x)[key]`."""
Parents = tuple[ast.AST, ...]
"""Nodes from the root to the one that holds a node."""


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_forgetting: list[Callable[[], None]] = []


def read_once(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Keep the results of a function of the source alone, until `clear_cache`.

    Many holders have the same name, and to look up its lines reads a file several times.
    """
    cached = lru_cache(maxsize=256)(function)
    _forgetting.append(cached.cache_clear)
    return cached  # type: ignore[return-value]


@read_once
def syntax_tree(file: str) -> ast.Module:
    """Return a file's syntax tree, empty if it can't be read."""
    try:
        # linecache also has the cells of a notebook
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


@read_once
def functions(file: str) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return the functions of a file, also the inner ones, by name."""
    by_name: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for node in ast.walk(syntax_tree(file)):
        if isinstance(node, FUNCTIONS):
            by_name.setdefault(node.name, []).append(node)
    return by_name


def clear_cache() -> None:
    """Drop what was read: megabytes, and objects that slow down the next census."""
    for forget in _forgetting:
        forget()
    _contents.clear()


def walk(root: ast.AST) -> Iterator[tuple[ast.AST, Parents]]:
    """Yield every node with its parents, in the order of the source."""
    todo: list[tuple[ast.AST, Parents]] = [(root, ())]
    while todo:
        node, parents = todo.pop()
        yield node, parents
        inner = (*parents, node)
        # a stack: reversed, so that the first child is next
        todo.extend((child, inner) for child in reversed(list(ast.iter_child_nodes(node))))


@dataclass(frozen=True)
class FileContent:
    """Statements and calls of a file with their parents, in the order of the source."""

    tree: ast.Module
    nodes: list[tuple[ast.stmt | ast.Call, Parents]] = field(default_factory=list)
    by_line: dict[int, list[tuple[ast.stmt, Parents]]] = field(default_factory=dict)
    """Statements by their first line."""
    readers: dict[str, dict[int, None]] = field(default_factory=dict)
    """Places in `nodes` of the simple statements that read a variable."""
    called: set[str] = field(default_factory=set)
    """Names of all functions that are called, as `function_name` returns them."""

    def note(self, node: ast.AST, parents: Parents, places: dict[ast.stmt, int]) -> None:
        """Add a node. places: of the statements so far."""
        if isinstance(node, ast.stmt):
            places[node] = len(self.nodes)
            self.nodes.append((node, parents))
            self.by_line.setdefault(node.lineno, []).append((node, parents))
        elif isinstance(node, ast.Call):
            self.nodes.append((node, parents))
            self.called.add(function_name(node))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            around = next(item for item in reversed(parents) if isinstance(item, ast.stmt))
            if isinstance(around, _SIMPLE):
                self.readers.setdefault(node.id, {})[places[around]] = None


_SIMPLE = (ast.Assign, ast.Expr, ast.Return)
_contents: dict[str, FileContent] = {}
NODES_AT_ONCE = 256
"""Nodes that are read before training may go on: about a millisecond."""


def content(file: str) -> FileContent:
    """Return a file's content, read at once unless `read_content` has."""
    for _ in read_content(file):
        pass
    return _contents[file]


def read_content(file: str) -> Iterator[None]:
    """Read a file's content in parts: yield after each."""
    tree = syntax_tree(file)
    if file in _contents and _contents[file].tree is tree:
        return
    new, places = FileContent(tree), dict[ast.stmt, int]()
    for count, (node, parents) in enumerate(walk(tree), 1):
        new.note(node, parents, places)
        if count % NODES_AT_ONCE == 0:
            yield
    _contents[file] = new


def assignment_targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    """Return the targets one by one: `a` and `b` of `a, *b = ...`."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [part for target in targets for part in _unpacked(target)]


def _unpacked(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _unpacked(item)
    elif isinstance(target, ast.Starred):
        yield from _unpacked(target.value)
    else:
        yield target


def assigned_name(file: str, line: int) -> str | None:
    """Return the name that a line assigns to: `guard` or `self.guard`, None for all else."""
    nodes = ast.walk(syntax_tree(file))
    statements = [item for item in nodes if isinstance(item, ast.stmt) and item.lineno == line]
    statement = statements[0] if len(statements) == 1 else None
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    text = ast.unparse(targets[0]) if len(targets) == 1 else ""
    return text if text.replace(".", "").isidentifier() else None


def function_name(call: ast.Call) -> str:
    """Return the last part of what is called: `append` of `a.b.append(x)`, else ""."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def is_mention(node: ast.expr, names: set[str]) -> bool:
    """Return True for a name and what it leads to: `name[key]`, `name.setdefault(key, [])`."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return "." + node.attr in names or is_mention(node.value, names)
    if isinstance(node, ast.Subscript):
        is_dynamic = DYNAMIC in names and is_namespace(node.value)
        return is_dynamic or is_key(node.slice, names) or is_mention(node.value, names)
    if isinstance(node, ast.Call):
        return _is_mentioning_call(node, names)
    return isinstance(node, ast.Starred) and is_mention(node.value, names)


def _is_mentioning_call(node: ast.Call, names: set[str]) -> bool:
    called = function_name(node)
    if called in ("getattr", "vars"):
        key = node.args[1] if len(node.args) > 1 else None
        is_dynamic = DYNAMIC in names and key is not None and not isinstance(key, ast.Constant)
        return is_dynamic or any(is_key(item, names) for item in node.args)
    if called in ("setdefault", "get") and any(is_key(item, names) for item in node.args[:1]):
        return True
    is_method = isinstance(node.func, ast.Attribute)
    return f"{called}()" in names or (
        is_method and is_mention(node.func.value, names)  # type: ignore[attr-defined]
    )


def is_namespace(value: ast.expr) -> bool:
    """Return True for `x.__dict__` and `vars(x)`."""
    if isinstance(value, ast.Call):
        return function_name(value) in ("vars", "globals")
    return isinstance(value, ast.Attribute) and value.attr == "__dict__"


def uses(value: ast.expr, names: set[str]) -> bool:
    """Return whether a mention is anywhere in an expression."""
    return any(is_mention(part, names) for part in ast.walk(value) if isinstance(part, ast.expr))


def is_key(node: ast.expr, names: set[str]) -> bool:
    """Return whether a node is the string "cache" for the name `.cache`."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text and "." + node.value in names  # type: ignore[attr-defined]


def mention_of(node: ast.expr) -> str:
    """Return the name that a target is a mention of: `.cache` for `self.cache`, "" if none."""
    if isinstance(node, ast.Attribute):
        return f".{node.attr}"
    if isinstance(node, ast.Subscript):
        return mention_of(node.value)
    return node.id if isinstance(node, ast.Name) else ""
